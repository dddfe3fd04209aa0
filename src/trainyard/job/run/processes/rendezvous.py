"""Rendezvous: the store in which ranks that a launcher started find each other, and rank 0 gives a text to all."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from itertools import count
from pathlib import Path

from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore
from torch.distributed import DistError
from torch.distributed.constants import default_pg_timeout

from trainyard.hardware.interface import is_loopback
from trainyard.job.run.errors import FailedRunError
from trainyard.job.run.processes.launchers import is_launched, other_machine
from trainyard.reading.arguments import WrongValueError

_LONGEST_WORK = timedelta(hours=1)
"""Longest time for which ranks wait for a text that rank 0 makes, such as a plan."""


class LauncherError(FailedRunError):
    """Ranks of a launcher that did not come together, or of which one ended early."""


def meet() -> None:
    """Wait until all ranks that the launcher started are there.

    Raises
    ------
    LauncherError
        If some do not come.
    WrongValueError
        If rank 0 cannot listen where they would meet.
    """
    num_ranks, store = int(os.environ["WORLD_SIZE"]), _store_of_environment()
    try:
        if store.add("met", 1) == num_ranks:
            store.set("all", "")
        store.wait(["all"], default_pg_timeout)
    except DistError as error:
        raise LauncherError(
            f"not all of the {num_ranks} ranks came to MASTER_ADDR {os.environ['MASTER_ADDR']}, MASTER_PORT "
            f"{os.environ['MASTER_PORT']} ({_first_line(error)}); see what the others printed, and start all again"
        ) from error


def broadcast_text(name: str, make: Callable[[], str]) -> str:
    """Give every rank of a launcher a text that rank 0 makes; without a launcher, make it.

    All ranks call this in the same order.

    Parameters
    ----------
    name : of the text, in words.
    make : called on rank 0 only.

    Raises
    ------
    LauncherError
        If rank 0 ended before it made the text.
    """
    if not is_launched():
        return make()
    store = _store_of_environment()
    try:
        if int(os.environ["RANK"]) == 0:
            store.set("text", made := make())
            return made
        store.wait(["text"], _LONGEST_WORK)
        return str(store.get("text").decode())
    except DistError as error:
        raise LauncherError(
            f"rank 0 ended before it gave the others the {name} ({_first_line(error)}); see what it printed, and start "
            "all again"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _store_of_environment() -> Store:
    """Return a part of the store, for one use."""
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return launched_store(rank, num_ranks, None, several_machines=bool(other_machine()))


@cache
def _meeting_store(rank: int, num_ranks: int, host: str, port: int, *, several_machines: bool) -> Store:
    """Return the store of a launcher's ranks, which stays open until this process ends."""
    if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return _listening_store(host, port, num_ranks, several_machines)
    return TCPStore(host, port, num_ranks, is_master=False, timeout=default_pg_timeout)


_uses: dict[int, count[int]] = {}
"""Number of uses of the store, by rank of this process; the same on all ranks, as they use it in the same order."""


def _own_part(store: Store, rank: int) -> Store:
    """Return a part of a store, with keys of its own for each use and each start of an elastic launcher.

    Values under older keys would be taken for new ones.
    """
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    use = next(_uses.setdefault(rank, count()))
    return PrefixStore(f"trainyard-{restart}-{use}", store)


def launched_store(rank: int, num_ranks: int, file: Path | None, *, several_machines: bool) -> Store:
    """The store of the ranks that a launcher started.

    Parameters
    ----------
    file : in which they meet, new for every start; None where they have no folder in common. Then the variables
        ``MASTER_ADDR`` and ``MASTER_PORT`` say where: rank 0 listens there, and on no other interface, unless the
        launcher does so itself, as ``torchrun`` does.

    Raises
    ------
    WrongValueError
        If rank 0 cannot listen there, or other machines cannot reach that.
    """
    if file is not None:
        met = FileStore(str(file), num_ranks)
        met.set_timeout(default_pg_timeout)
        return met
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return _own_part(_meeting_store(rank, num_ranks, host, port, several_machines=several_machines), rank)


def _listening_store(host: str, port: int, num_ranks: int, several_machines: bool) -> TCPStore:
    """A store that listens on one address of this machine."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        own = str(address[0])
        if several_machines and is_loopback(own) and not is_loopback(host):
            raise WrongValueError(
                f"MASTER_ADDR {host!r} is {own} on the machine of rank 0, which other machines cannot reach; set it "
                "to the address by which they do, or to 127.0.0.1 if all ranks are on this machine"
            )
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(max(128, num_ranks))
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise WrongValueError(
            f"rank 0 cannot listen on MASTER_ADDR {host!r}, MASTER_PORT {port}: {error}; set them to an address of its "
            "own machine and to a free port"
        ) from error
    handle = listener.detach()  # closed by the store
    return TCPStore(
        own,
        port,
        num_ranks,
        is_master=True,
        timeout=default_pg_timeout,
        wait_for_workers=False,
        master_listen_fd=handle,
    )
