"""Where options let something be written: looked at before a verb does anything, and written with one message."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import tyro

from trainyard.user_file import is_config

__all__ = ["Output", "check_outputs", "writing"]


class Output(Enum):
    """What an option names."""

    FILE = "file"
    FOLDER = "folder"


def check_outputs(options: Any) -> None:
    """Refuse where nothing can be written, files that are read or written already, and those in folders that are read.

    Raises
    ------
    ValueError
        Names the option, and what is in the way.
    """
    for name, hint in get_type_hints(type(options), include_extras=True).items():
        for kind in get_args(hint):
            path = getattr(options, name)
            if isinstance(kind, Output) and path is not None:
                try:
                    found = _in_the_way(path, kind)
                except OSError as error:
                    found = f"nothing can be written there: {error.strerror}"
                if found:
                    option = "--" + name.replace("_", "-")
                    raise ValueError(f"{option} {path}: {found}; give another {kind.value}")
    written = _written(options)
    _check_apart(written)
    _check_not_read(options, written)


def _written(options: Any) -> dict[str, Path]:
    """Files that will be written, by option; neither devices nor pipes."""
    found = {}
    for name, hint in get_type_hints(type(options), include_extras=True).items():
        path = getattr(options, name) if Output.FILE in get_args(hint) else None
        if path is not None and (path.is_file() or not path.exists()):
            found["--" + name.replace("_", "-")] = path
    return found


def _check_apart(written: dict[str, Path]) -> None:
    """Refuse one file for two things, of which the second would be written over the first."""
    taken: dict[Path, str] = {}
    for option, path in written.items():
        other = taken.setdefault(path.resolve(), option)
        if other != option:
            raise ValueError(f"{other} and {option} are both {path}; give each a file of its own")


def _check_not_read(options: Any, written: dict[str, Path]) -> None:
    """Refuse to write over a file, or into a folder, that another option names, which is read."""
    for name, hint in get_type_hints(type(options), include_extras=True).items():
        if not written or any(isinstance(kind, Output) for kind in get_args(hint)):
            continue
        is_positional = tyro.conf.Positional in get_args(hint)
        reader = name.upper() if is_positional else "--" + name.replace("_", "-")
        for read in _read(getattr(options, name)):
            for option, path in written.items():
                if path.exists() and path.samefile(read):
                    raise ValueError(
                        f"{option} {path} would overwrite what {reader} reads; give another file"
                    )
                if read.is_dir() and path.resolve().is_relative_to(read.resolve()):
                    raise ValueError(
                        f"{option} {path} lies in the folder {read}, which {reader} reads; give another file"
                    )


def _read(value: Any) -> Iterator[Path]:
    """Files and folders that an option may name.

    That is a path; paths such as ``layers,tables:NAME``; or text such as ``own.py:Policy(x=1) + vtc,sarathi``, in which a
    folder is one of a model, as names may be those of folders by chance.
    """
    if isinstance(value, Path):
        parts = (
            [value] if value.exists() else [Path(each.partition(":")[0]) for each in str(value).split(",")]
        )
        yield from filter(Path.exists, parts)
    elif isinstance(value, str):
        for text in (value, *re.split(r"[,+]", value)):
            for each in (text.strip(), text.strip().partition(":")[0]):
                if _is_readable(each):
                    yield Path(each)


def _is_readable(text: str) -> bool:
    """Whether there is such a file, or such a folder of a model; what cannot be a path is none."""
    try:
        return Path(text).is_file() or (Path(text).is_dir() and is_config(text))
    except (OSError, ValueError):
        return False


@contextmanager
def writing(what: str, path: Path) -> Iterator[None]:
    """Write something, such as ``page``, after all the work that it tells of.

    Raises
    ------
    FailedRunError
        If that fails after all.
    """
    from trainyard.job.run.errors import FailedRunError

    try:
        yield
    except OSError as error:
        raise FailedRunError(
            f"the {what} cannot be written to {path}: {error.strerror}; give another file"
        ) from error


def _in_the_way(path: Path, kind: Output) -> str:
    if kind is Output.FOLDER:
        there = next(each for each in (path, *path.absolute().parents) if each.exists())
        if not there.is_dir():
            return f"{'it' if there == path else there} is no folder"
        _try_in(there)
        return ""
    if not path.exists():
        if not path.parent.is_dir():
            return f"there is no folder {path.parent}"
        _try_in(path.parent)
        return ""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        return "it is a folder"
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or _takes_all(path)):
        return "it is a device or a socket"
    return "" if os.access(path, os.W_OK) else "it may not be written"


def _try_in(folder: Path) -> None:
    """Make a file there that nobody sees, as modes do not say all."""
    with tempfile.TemporaryFile(dir=folder):
        pass


def _takes_all(path: Path) -> bool:
    """Whether it is a terminal, or what throws everything away."""
    return path.is_char_device() and (
        path.resolve() == Path(os.devnull) or str(path.resolve()).startswith("/dev/pts/")
    )
