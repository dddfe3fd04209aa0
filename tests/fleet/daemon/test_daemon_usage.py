"""What accounts and users have used is not lost with a daemon: the next one goes on with it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from test_daemon_restarts import CANCELLED, CLUSTER, World, form

from trainyard.fleet.daemon import daemon as daemons
from trainyard.fleet.daemon.store import Store
from trainyard.fleet.scheduler import scheduler_of


class Machine:
    """A machine on which daemons are started one after the other, and its clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.folder, self.monkeypatch = 1000.0, folder, monkeypatch
        self.store = Store(f"sqlite:///{folder / 'state.sqlite'}")
        self.world = World(random.Random(0), crashes=0.0)
        monkeypatch.setattr(daemons, "_PROGRESS_EVERY_S", 0.0)

    def daemon(self, policy: str = "fair_share(half_life_s=None)") -> daemons.Daemon:
        scheduler = scheduler_of(policy)
        found = daemons.Daemon(CLUSTER, scheduler, self.world, self.store, self.folder, lambda: self.now_s)
        self.monkeypatch.setattr(found, "_looked_at", lambda text, _: daemons.read_form(text, Path("form")))
        return found


def used_s(daemon: daemons.Daemon) -> dict[str, float]:
    """Device time of every user."""
    usage = daemon.driver.table.usage
    assert usage is not None
    return {
        owner.user: device_s
        for owner, device_s in zip(daemon.driver.table.owners.all, usage.device_s.tolist(), strict=True)
    }


def test_the_next_daemon_goes_on_with_what_was_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, monkeypatch)
    first = machine.daemon()
    first.submit(form(CANCELLED, 2), "ann")  # it never ends
    first.turn()
    assert set(machine.world.running) == {CANCELLED}
    machine.now_s += 100.0
    first.turn()
    assert used_s(first) == {"ann": 200.0}
    machine.now_s += 50.0  # nobody counts
    second = machine.daemon()
    second.turn()
    assert used_s(second) == {"ann": 300.0}
    machine.now_s += 10.0
    second.submit(form("a", 4), "bob")
    second.turn()
    assert used_s(second) == {"ann": 320.0, "bob": 0.0}
    # One that reads no usage leaves what is written down as it is.
    machine.daemon("fifo").turn()
    assert machine.store.remembered("usage") is not None
    third = machine.daemon()
    third.turn()
    assert used_s(third)["ann"] == 320.0
