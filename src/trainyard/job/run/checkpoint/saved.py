"""Checkpoints of a folder, and whether they are whole, without importing PyTorch.

``<folder>/step-00000012`` holds the files of tensors, ``run.json``, which says all else that a resumption needs and how
long each file is, with its checksum, and last the checksum of ``run.json``.
"""

from __future__ import annotations

import json
import os
import re
import reprlib
import stat
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.job.run.best import Evaluated
from trainyard.job.run.errors import CheckpointError

RUN, CHECKSUM = "run.json", "run.json.crc32"
_STEP = re.compile(r"step-(\d{1,18})")
_TENSORS = re.compile(r"rank-\d{5,9}\.safetensors")
_MOST_BYTES = 2**28  # of ``run.json``
_PIECE_BYTES = 2**22
_KINDS = {
    "step": int,
    "num_updates": int,
    "program": str,
    "torch": str,
    "plan": str,
    "position": str,
    "fields": list,
    "optimizer": str,
    "evaluations": list,
    **dict.fromkeys(("settings", "options", "batch", "numbers"), dict),
}
"""JSON types of the fields of `About`."""


@dataclass(frozen=True)
class FileEntry:
    """Length and checksum of a file as it was written."""

    num_bytes: int
    crc32: int


@dataclass(frozen=True)
class About:
    """Content of a checkpoint beside tensors.

    Attributes
    ----------
    step : steps done; also the next step's number, and so the position in the data.
    num_updates : steps whose update was applied.
    fields : what is kept per trained parameter.
    settings : what makes the run what it is; see ``same_run.settings_of``.
    options : how the run went otherwise, which may change; see ``TrainConfig.options``.
    program, torch : see ``same_run.ModelIdentity``.
    plan : text form of the plan that it was written under.
    batch : checksums of the last step's batch, by path.
    position : in the data, as text, where the number of the step does not say it; see ``DataReader.state``.
    evaluations : of the run so far.
    optimizer : class and options of a user's own optimizer; empty for the others.
    numbers : what it counts, of its state and by group.
    """

    step: int
    num_updates: int
    fields: tuple[str, ...]
    settings: Mapping[str, Any]
    options: Mapping[str, Any]
    program: str
    torch: str
    plan: str
    batch: Mapping[str, int]
    position: str
    evaluations: tuple[Evaluated, ...]
    optimizer: str
    numbers: Mapping[str, Any]


def path_of(folder: Path, step: int) -> Path:
    """Return the folder of the checkpoint of a step."""
    return folder / f"step-{step:08d}"


def saved_steps(folder: Path) -> list[int]:
    """Steps of which a folder holds a checkpoint, whole or damaged, newest first."""
    found = [int(match[1]) for path in folder.glob("step-*") if (match := _STEP.fullmatch(path.name))]
    return sorted((step for step in set(found) if path_of(folder, step).is_dir()), reverse=True)


def complete_steps(folder: Path) -> list[int]:
    """Steps of which a folder holds a checkpoint with all its files, newest first; files of tensors are not read."""
    return [step for step in saved_steps(folder) if incomplete(path_of(folder, step)) is None]


def incomplete(checkpoint: Path) -> str | None:
    """Return what is wrong with a checkpoint, without reading its tensors; None if nothing is."""
    try:
        described = read_run(checkpoint)
        about_in(described, checkpoint)
        files = read_files(described, checkpoint)
    except CheckpointError as error:
        return str(error)
    return next((p for name, entry in files.items() if (p := _unlike(checkpoint / name, entry))), None)


def damage(checkpoint: Path, first: int = 0, every: int = 1) -> str | None:
    """Return what is wrong with a checkpoint. Of its files of tensors, ``first``, ``first + every``, ... are read."""
    if (problem := incomplete(checkpoint)) is not None:
        return problem
    files = read_files(read_run(checkpoint), checkpoint)
    for name in sorted(files)[first::every]:
        try:
            if _crc32(checkpoint / name) != files[name].crc32:
                return f"{checkpoint / name} is damaged: its checksum is not the one written"
        except OSError as error:
            return f"{checkpoint / name} cannot be read: {error.strerror}"
    return None


def newest_complete(folder: Path) -> Path:
    """The newest checkpoint of a folder that has all its files.

    Raises
    ------
    CheckpointError
        If there is none; the message says what is wrong with those that the folder holds.
    """
    if steps := complete_steps(folder):
        return path_of(folder, steps[0])
    problems = [incomplete(path_of(folder, step)) for step in saved_steps(folder)]
    if problems:
        raise CheckpointError(
            f"{folder} has no undamaged checkpoint: {'; '.join(map(str, problems))}. Put back what is missing, or begin "
            "in another folder"
        )
    what = "holds" if folder.is_dir() else "does not exist, so it holds"
    raise CheckpointError(
        f"{folder} {what} no checkpoint. There is nothing to resume from: leave out --resume to begin, or give the "
        "folder of the run"
    )


def checkpoint_in(folder: Path) -> Path | None:
    """Find the checkpoint that a folder is, or the newest complete one of a run's folder; None if there is none.

    Raises
    ------
    CheckpointError
        If all checkpoints of the folder are damaged.
    """
    if (folder / RUN).exists():
        return folder.resolve()
    return newest_complete(folder).resolve() if saved_steps(folder) else None


def check_unused(folder: Path) -> None:
    """Check that a run may begin in a folder.

    Raises
    ------
    CheckpointError
        If it holds checkpoints, whole or damaged.
    """
    if steps := saved_steps(folder):
        raise CheckpointError(
            f"{folder} already holds a checkpoint of step {steps[0]}; resume from it (--resume), or give another folder "
            "(--checkpoint)"
        )


def started_again() -> bool:
    """Return whether an elastic launcher started this process to replace one that failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def tensor_file(rank: int) -> str:
    """Name of the file of a rank's tensors."""
    return f"rank-{rank:05d}.safetensors"


def write_run(checkpoint: Path, described: Mapping[str, Any]) -> None:
    """Write what a checkpoint says of itself, and then the checksum that makes it count."""
    content = json.dumps(described).encode()
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{RUN} would have {len(content)} bytes; at most {_MOST_BYTES} are read")
    _write(checkpoint / RUN, content)
    _write(checkpoint / CHECKSUM, f"{len(content)} {zlib.crc32(content)}\n".encode())
    sync_folder(checkpoint)


def read_run(checkpoint: Path) -> dict[str, Any]:
    """Read the description of a checkpoint.

    Raises
    ------
    CheckpointError
        If that is missing or not what was written.
    """
    file = checkpoint / RUN
    content = _content(file)
    if f"{len(content)} {zlib.crc32(content)}\n".encode() != _content(checkpoint / CHECKSUM):
        raise CheckpointError(f"{file} is damaged: its checksum is not the one written")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{file} cannot be read: it holds a {type(found).__name__}, not a mapping")
    return found


def read_about(checkpoint: Path) -> About:
    """Read the description of a checkpoint beside tensors.

    Raises
    ------
    CheckpointError
        If that is missing or damaged.
    """
    return about_in(read_run(checkpoint), checkpoint)


def about_in(described: Mapping[str, Any], checkpoint: Path) -> About:
    """Read the fields of ``run.json`` beside tensors.

    Raises
    ------
    CheckpointError
        If something is missing or cannot be, or the folder is called as that of another step.
    """
    try:
        given = {name: described[name] for name in About.__annotations__}
        for name, kind in _KINDS.items():
            if type(given[name]) is not kind:
                raise TypeError(f"{name} is {reprlib.repr(given[name])}")
        if not 0 <= given["num_updates"] <= given["step"] < 10**18:
            raise ValueError(
                f"{reprlib.repr(given['num_updates'])} updates in {reprlib.repr(given['step'])} steps"
            )
        evaluations = tuple((int(step), _numbers(values)) for step, values in given["evaluations"])
        about = About(**{**given, "fields": tuple(map(str, given["fields"])), "evaluations": evaluations})
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{checkpoint / RUN} cannot be read: {type(error).__name__} {error}") from error
    if checkpoint.name != path_of(checkpoint.parent, about.step).name:
        raise CheckpointError(
            f"{checkpoint} has another name than when it was written: it is of step {about.step}"
        )
    return about


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in values.items()}


def read_files(described: Mapping[str, Any], checkpoint: Path) -> dict[str, FileEntry]:
    """The files of tensors that a checkpoint names.

    Raises
    ------
    CheckpointError
        If a name is not one that is written, so that nothing outside of the folder is ever opened.
    """
    try:
        files = {
            str(name): FileEntry(int(given["bytes"]), int(given["crc32"]))
            for name, given in described["files"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(
            f"{checkpoint / RUN} cannot be read: its files are wrong ({type(error).__name__} {error})"
        ) from error
    for name in files:
        if not _TENSORS.fullmatch(name):
            raise CheckpointError(
                f"{checkpoint / RUN} cannot be read: {name!r} is no name of a file of tensors"
            )
    return files


def sync_folder(folder: Path) -> None:
    """Make new names and renames in a folder last; some systems cannot open one."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unlike(file: Path, entry: FileEntry) -> str | None:
    """Return how a file differs from its entry, without reading it; None if it does not."""
    try:
        found = file.lstat()
    except OSError as error:
        return f"{file} is missing" if isinstance(error, FileNotFoundError) else f"{file}: {error.strerror}"
    if not stat.S_ISREG(found.st_mode):
        return f"{file} is damaged: it is not a plain file"
    if found.st_size != entry.num_bytes:
        return f"{file} is damaged: it has {found.st_size} bytes, {entry.num_bytes} were written"
    return None


def _content(file: Path) -> bytes:
    try:
        found = file.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            raise CheckpointError(f"{file} is damaged: it is no plain file of at most {_MOST_BYTES} bytes")
        return file.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing") from None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error


def _crc32(file: Path) -> int:
    value = 0
    with file.open("rb") as stream:
        while piece := stream.read(_PIECE_BYTES):
            value = zlib.crc32(piece, value)
    return value


def _write(file: Path, content: bytes) -> None:
    with file.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
