"""Ranks find each other, and nothing that they listen on is reached from where none of them is."""

from __future__ import annotations

import ipaddress
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import plans
import psutil
import pytest
import torch.distributed as dist

from trainyard.errors import TrainyardError
from trainyard.hardware import interface
from trainyard.job.run.processes.fork_server import run_ranks
from trainyard.job.run.processes.rendezvous import _meeting_store, launched_store
from trainyard.job.run.step.data import FunctionData
from trainyard.job.run.train import train


@pytest.fixture(autouse=True)
def _nothing_listens_yet() -> None:
    _meeting_store.cache_clear()


def listening(process: psutil.Process) -> list[str]:
    """Addresses on which a process waits for connections."""
    return [each.laddr.ip for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]


def check_only_here(addresses: list[str]) -> None:
    """Whether no other machine reaches any of them."""
    assert all(ipaddress.ip_address(address).is_loopback for address in addresses), addresses


class _Address(NamedTuple):
    """An address of an interface, as psutil has it."""

    address: str


def _where_it_listens(rank: int = 0) -> list[str]:
    # Said by us: where PyTorch listens by itself, the name of the machine decides, which may be right by chance.
    assert os.environ["GLOO_SOCKET_IFNAME"]
    return listening(psutil.Process())


def test_processes_of_a_group_listen_on_this_machine_only() -> None:
    by_rank = run_ranks(2, _where_it_listens)
    assert len(by_rank) == 2
    for found in by_rank:
        assert found
        check_only_here(found)


def _watched_batches(folder, step):
    if step == 1 and dist.is_initialized():
        found = _where_it_listens()
        assert found
        check_only_here(found)
        (folder / str(dist.get_rank())).touch()
    return {k.removeprefix("batch."): v for k, v in plans.DATA_SOURCE.batch(step).items()}


def test_a_training_listens_on_this_machine_only(tmp_path: Path) -> None:
    batches = partial(_watched_batches, tmp_path)
    train(plans.MODEL, plans.plan(data=2), FunctionData(batches), plans.config(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]  # both have looked


def test_ranks_with_a_folder_meet_in_a_file(tmp_path: Path) -> None:
    one, other = (launched_store(rank, 2, tmp_path / "file", several_machines=False) for rank in (0, 1))
    one.set("said", "by rank 0")
    assert other.get("said") == b"by rank 0"
    assert not listening(psutil.Process())


def test_rank_0_listens_at_its_address_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    _launch(monkeypatch, "127.0.0.1", port)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(launched_store, 1, 2, None, several_machines=False)
        one = launched_store(0, 2, None, several_machines=False)
        one.set("said", "by rank 0")
        assert late.result().get("said") == b"by rank 0"
        # What a training before left there is not taken for this one's.
        assert not launched_store(0, 2, None, several_machines=False).check(["said"])
    assert listening(psutil.Process()) == ["127.0.0.1"]


def test_a_port_that_is_in_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        _launch(monkeypatch, "127.0.0.1", port)
        said = rf"rank 0 cannot listen on .* MASTER_PORT {port}: .*in use.*; set them"
        with pytest.raises(TrainyardError, match=said):
            launched_store(0, 2, None, several_machines=False)


def _launch(monkeypatch: pytest.MonkeyPatch, host: str, port: int) -> None:
    monkeypatch.setenv("MASTER_ADDR", host)
    monkeypatch.setenv("MASTER_PORT", str(port))
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)


def test_where_others_cannot_reach_rank_0_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _launch(monkeypatch, "node7", 29500)
    own = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 29500))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [own])
    with pytest.raises(ValueError, match=r"'node7' is 127\.0\.1\.1 on the machine of rank 0, which other"):
        launched_store(0, 2, None, several_machines=True)


def test_the_interface_is_the_one_to_the_other_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    interfaces = {"lo": "127.0.0.1", "eth0": "192.0.2.7", "ib0": "198.51.100.7"}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {n: [_Address(ip)] for n, ip in interfaces.items()})
    for own, peer, expected in (
        ("", "", "lo"),
        ("", "127.0.0.1", "lo"),
        ("198.51.100.7", "node8", "ib0"),
        ("", "node8", None),
    ):
        monkeypatch.setattr(interface, "own_address", lambda _, own=own: own)
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            monkeypatch.delenv(name, raising=False)
        interface.use_interface(peer)
        assert os.environ.get("GLOO_SOCKET_IFNAME") == expected
        assert os.environ.get("NCCL_SOCKET_IFNAME") == ("lo" if expected == "lo" else None)


def test_the_way_to_another_machine_has_an_address_here() -> None:
    assert interface.own_address("127.0.0.1") == ""  # of no use to others
    assert interface.own_address("no.such.host.invalid") == ""


def test_who_has_chosen_an_interface_is_not_overruled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib3")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    interface.use_interface()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "ib3"
