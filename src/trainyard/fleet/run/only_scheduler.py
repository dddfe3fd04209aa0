"""Let one scheduler at a time have a folder of jobs; a second one would start the same jobs on the same devices."""

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
    """Be the only daemon or run that has a folder while the context is open; the folder is made if it is missing.

    Parameters
    ----------
    folder : folder of the daemon or run.
    jobs : folder that holds one folder for each job: ``folder`` itself, or one below it.

    Raises
    ------
    FleetError
        If another daemon or run has the folder.
    """
    make_private(jobs)
    with open(folder / "scheduler.lock", "a", opener=opener) as file, ExitStack() as locks:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for each in {folder, jobs}:
                locks.enter_context(locked_folder(each))
        except BlockingIOError as error:
            raise FleetError(
                f"a daemon or a run has {folder} already; stop it, or give another --folder"
            ) from error
        yield
