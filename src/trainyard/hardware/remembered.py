"""What was measured of this machine, in files that outlive the process."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trainyard.hardware.measure import machine_identity

__all__ = ["cache_folder", "forget_measurements", "measurements_file", "measuring", "write_whole"]


def cache_folder() -> Path:
    """Folder of measurements: ``$TRAINYARD_CACHE``, else ``~/.cache/trainyard``.

    Returns
    -------
    Path
        It may not exist yet.
    """
    given = os.environ.get("TRAINYARD_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "trainyard"


def measurements_file(kind: str) -> Path:
    """File of one kind of measurements of this machine, as it is now; it may not exist yet."""
    return cache_folder() / f"{kind}-{_digest()}.json"


def _digest() -> str:
    return hashlib.sha256(json.dumps(machine_identity(), sort_keys=True).encode()).hexdigest()[:16]


def forget_measurements() -> None:
    """Delete all that is remembered of this machine: it is measured again when it is asked for."""
    for path in cache_folder().glob(f"*-{_digest()}.json"):
        path.unlink(missing_ok=True)


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
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_whole(path: Path, text: str) -> None:
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
