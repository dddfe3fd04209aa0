"""Setting the clock of the machine, a day forward or back, changes nothing of what jobs have, wait for, or did."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from test_daemon_restarts import CLUSTER, World, form

from trainyard.fleet.daemon import clock as clocks
from trainyard.fleet.daemon import daemon as daemons
from trainyard.fleet.daemon.clock import Clock
from trainyard.fleet.daemon.store import Store
from trainyard.fleet.daemon.tables import State
from trainyard.fleet.scheduler import scheduler_of

DAY_S, BEGAN_S = 86_400.0, 1e9


class Machine:
    """A machine whose clock can be set; each look takes a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.set_s, self.passed_s = BEGAN_S, 0.0
        monkeypatch.setattr(clocks.time, "time", lambda: self.set_s + self.passed_s)
        monkeypatch.setattr(clocks.time, "clock_gettime", self._passed_s)

    def _passed_s(self, which: int) -> float:
        assert which == time.CLOCK_BOOTTIME
        self.passed_s += 0.01
        return self.passed_s


@pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S])
@pytest.mark.parametrize("policy", ["las", "gandiva"])
def test_a_clock_that_is_set_gives_and_takes_no_time(
    policy: str, jump_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a policy that counts time, and one that decides in rounds; again and again while jobs run and fail."""
    machine, store = Machine(monkeypatch), Store(f"sqlite:///{tmp_path / 'state.sqlite'}")
    scheduler = scheduler_of(policy, round_s=0.5 if scheduler_of(policy).rounds else None)
    daemon = daemons.Daemon(CLUSTER, scheduler, World(random.Random(0), 0.0), store, tmp_path)
    monkeypatch.setattr(daemons, "look_at", lambda *_: None)
    monkeypatch.setattr(daemon, "_looked_at", lambda text, _: daemons.read_form(text, Path("form")))
    for name in ("a", "b"):
        daemon.submit(form(name, 4), "")
    turns = 0
    while any(record.state is not State.ENDED for record in store.jobs()):
        daemon._turn_safely()
        assert not daemon.problem
        turns += 1
        assert turns < 3000
        if turns % 5 == 0:
            machine.set_s += jump_s
    for record in store.jobs():
        assert BEGAN_S < record.arrival_s < record.finish_s < BEGAN_S + machine.passed_s
        assert 0.0 < record.attained_s < machine.passed_s
    times_s = [event["at_s"] for event in store.events(1000)]
    assert len(times_s) >= 6  # each job arrives, runs and ends
    assert BEGAN_S < min(times_s) <= max(times_s) < BEGAN_S + machine.passed_s


def test_the_next_daemon_begins_where_the_last_one_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the clock was set back while there was no daemon."""
    machine, store = Machine(monkeypatch), Store(f"sqlite:///{tmp_path / 'state.sqlite'}")
    world = World(random.Random(0), crashes=0.0)
    monkeypatch.setattr(daemons, "_PROGRESS_EVERY_S", 0.0)
    for machine.set_s in (BEGAN_S, BEGAN_S - DAY_S):
        daemon = daemons.Daemon(CLUSTER, scheduler_of("las"), world, store, tmp_path)
        if not store.jobs():
            monkeypatch.setattr(daemon, "_looked_at", lambda text, _: daemons.read_form(text, Path("form")))
            daemon.submit(form("a", 1), "")
        for _ in range(2):
            before = store.jobs()[0].attained_s
            daemon.turn()
            assert 0.0 <= before <= store.jobs()[0].attained_s < 10.0
    while store.jobs()[0].state is not State.ENDED:
        daemon.turn()
    jct_s, queueing_s, device_s = store.totals()
    assert 0.0 < jct_s < machine.passed_s
    assert min(queueing_s, device_s) >= 0.0


def test_a_clock_goes_on_from_the_latest_moment_that_is_known() -> None:
    clock = Clock(4e9)
    assert 4e9 <= clock() <= clock() < 4e9 + 3600.0
    assert abs(Clock()() - time.time()) < 3600.0
