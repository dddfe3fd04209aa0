"""What was measured of this machine, in files that outlive the process."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from trainyard.caches import go_without
from trainyard.hardware.measure import machine_identity

__all__ = [
    "cache_folder",
    "damaged",
    "forget_measurements",
    "measurements_file",
    "measuring",
    "recall",
    "remember",
]

_WHAT = "measurements of this machine"
_unwritten: dict[Path, str] = {}  # of this process, where files cannot be written


def cache_folder() -> Path:
    """Folder of measurements: ``$TRAINYARD_CACHE``, else ``~/.cache/trainyard``.

    Returns
    -------
    Path
        It may not exist yet; for who has no home it is none that can.
    """
    given = os.environ.get("TRAINYARD_CACHE")
    if given:
        return Path(given)
    try:
        return Path.home() / ".cache" / "trainyard"
    except RuntimeError:
        return Path(os.devnull) / "trainyard"


def measurements_file(kind: str) -> Path:
    """File of one kind of measurements of this machine, as it is now; it may not exist yet."""
    return cache_folder() / f"{kind}-{_digest()}.json"


def _digest() -> str:
    return hashlib.sha256(json.dumps(machine_identity(), sort_keys=True).encode()).hexdigest()[:16]


def forget_measurements() -> None:
    """Delete all that is remembered of this machine: it is measured again when it is asked for."""
    _unwritten.clear()
    try:
        for path in cache_folder().glob(f"*-{_digest()}.json"):
            path.unlink(missing_ok=True)
    except OSError as error:
        go_without(_WHAT, cache_folder(), error)


@contextmanager
def measuring(waits: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Be the only one who measures this machine: two at once slow each other, and find the same.

    Whoever had to wait looks into the files again, and keeps what is in them.

    Parameters
    ----------
    waits
        Called if another process measures now, which may take a minute.
    """
    path = measurements_file("measuring").with_suffix(".lock")
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waits()
                fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            go_without(_WHAT, path.parent, error)
        yield


def recall(path: Path) -> str | None:
    """What was remembered in a file; None if nothing was, or it cannot be read."""
    if path in _unwritten:
        return _unwritten[path]
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        damaged(path, error)
        return None


def damaged(path: Path, error: Exception) -> None:
    """Say once that what a file holds is not used."""
    go_without(_WHAT, path, error)


def remember(path: Path, text: str) -> None:
    """Keep a text in a file; where it cannot be written, until this process ends."""
    try:
        _write_whole(path, text)
        _unwritten.pop(path, None)
    except OSError as error:
        go_without(_WHAT, path.parent, error)
        _unwritten[path] = text


def _write_whole(path: Path, text: str) -> None:
    """Write beside the target and rename, so that a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
