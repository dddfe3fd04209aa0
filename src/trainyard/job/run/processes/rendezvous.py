"""Rendezvous: the store in which ranks that a launcher started find each other."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore
from torch.distributed.constants import default_pg_timeout

from trainyard.hardware.interface import is_loopback
from trainyard.reading.arguments import WrongValueError


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
    if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        store = _listening_store(host, port, num_ranks, several_machines)
    else:
        store = TCPStore(host, port, num_ranks, is_master=False, timeout=default_pg_timeout)
    # Each start of an elastic launcher under keys of its own: old addresses would be waited for in vain.
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"trainyard-{restart}", store)


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
