"""Ranks that a launcher started: rank 0 alone plans and prints, and all do what it decided."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta

from trainyard.job.run.processes.launchers import is_launched

__all__ = ["agreed", "is_launched", "is_silent", "num_launched"]

_LONGEST_PLANNING = timedelta(hours=1)


def is_silent() -> bool:
    """Return whether another process prints for this one."""
    return is_launched() and int(os.environ["RANK"]) > 0


def num_launched() -> int:
    """Return the number of ranks that the launcher started."""
    return int(os.environ["WORLD_SIZE"])


def agreed(name: str, make: Callable[[], str]) -> str:
    """A text that rank 0 makes and every rank gets; without a launcher, just made.

    Parameters
    ----------
    name : of the text, for the store in which ranks find it.
    make : called on rank 0 only.

    Raises
    ------
    ValueError
        If the launcher keeps no store of its own (``torchrun`` does).
    """
    if not is_launched():
        return make()
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        raise ValueError(
            "processes that were started without torchrun cannot agree on a plan or a folder: save a plan with "
            "`trainyard plan`, start `trainyard run PLAN --checkpoint FOLDER` in each, or use torchrun"
        )
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    shared = TCPStore(address, port, is_master=False, timeout=_LONGEST_PLANNING)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"trainyard-cli-{attempt}", shared)
    if not is_silent():
        store.set(name, make())
    return str(store.get(name).decode())
