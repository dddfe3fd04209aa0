"""The network interface on which processes that compute together wait for each other."""

from __future__ import annotations

import ipaddress
import os
import socket

import psutil

__all__ = ["is_loopback", "own_address", "use_interface"]

_GLOO, _NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
_ANY_PORT = 9  # nothing is sent there


def use_interface(peer: str = "") -> None:
    """Have process groups that this process makes from now on listen on one interface only.

    That is the loopback interface where all processes are on this machine. A user who has set PyTorch's variables is
    not overruled.

    Parameters
    ----------
    peer : name or address of another machine whose processes take part; "" if there is none.
    """
    alone = not peer or is_loopback(peer)
    name = _interface_of("127.0.0.1" if alone else own_address(peer))
    if not name:
        return
    os.environ.setdefault(_GLOO, name)
    if alone:
        # Between machines NCCL knows better which networks are fast; it listens on one interface in any case.
        os.environ.setdefault(_NCCL, name)


def is_loopback(host: str) -> bool:
    """Whether a name or an address says by itself that only this machine reaches it."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def own_address(peer: str) -> str:
    """Return the address of this machine on the way to another one; "" if it cannot be found."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(peer, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            own = str(probe.getsockname()[0])
    except OSError:
        return ""
    # What hosts files often say of the machine's own name is of no use to others.
    return "" if is_loopback(own) else own


def _interface_of(address: str) -> str:
    """The interface that has an address; "" if none has."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in entries):
            return name
    return ""
