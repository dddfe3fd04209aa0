"""One scheduler at a time has a folder of jobs: a second one would take their devices and make the first one's leave."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from trainyard.fleet.errors import FleetError
from trainyard.locks import locked_folder
from trainyard.private import make_private, opener

__all__ = ["only_scheduler"]


@contextmanager
def only_scheduler(folder: Path, jobs: Path) -> Iterator[None]:
    """Be the only daemon and the only run of a folder, which is made if it is not there.

    Parameters
    ----------
    jobs : of the jobs' folders, the same one or one below it.

    Raises
    ------
    FleetError
        If there is another one.
    """
    make_private(jobs)
    with open(folder / "scheduler.lock", "a", opener=opener) as file, ExitStack() as held:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for each in {folder, jobs}:
                held.enter_context(locked_folder(each))
        except BlockingIOError as error:
            raise FleetError(
                f"a daemon or a run has {folder} already; stop it, or give another --folder"
            ) from error
        yield
