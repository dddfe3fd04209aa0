"""A job of an earlier daemon that still leaves its devices keeps them, also before it is looked at."""

from __future__ import annotations

import random
from pathlib import Path
from threading import Event as Signal

import pytest
from test_daemon_restarts import CLUSTER, World, form

from trainyard.fleet.daemon import daemon as daemons
from trainyard.fleet.daemon.lookahead import Lookahead
from trainyard.fleet.daemon.store import Store
from trainyard.fleet.daemon.tables import State
from trainyard.fleet.run.event import Event, Happening
from trainyard.fleet.run.fault import BackendError
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.workload.job import Grant, Job
from trainyard.fleet.workload.own import read_form


@pytest.mark.parametrize("leaves", [True, False], ids=["leaves", "was not told"])
@pytest.mark.parametrize("is_silent", [False, True], ids=["known", "not known"])
def test_devices_of_a_job_that_is_not_looked_at_yet_are_free_when_it_has_left(
    leaves: bool, is_silent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last daemon took them from a job and was to start another on them."""
    world, on, is_looked_at = World(random.Random(0), crashes=0.0), Grant((0, 1, 2, 3)), Signal()
    store = Store(f"sqlite:///{tmp_path / 'state.sqlite'}")
    for name, happenings in (("a", (Happening.RUNS, Happening.LEAVES)), ("b", (Happening.RUNS,))):
        job = read_form(form(name, 4), Path("form"))
        store.add(job, "", form(name, 4), 1.0)
        for what in happenings:
            store.write_event(Event(1.0, job, what, on), None)
    world.running["a"] = on
    world.leaving |= {"a"} if leaves else set()
    monkeypatch.setattr(world, "has_left", lambda name: name not in world.leaving)

    def adopt(job: Job, grant: Grant) -> bool:
        adopted.append(job.name)
        if job.name == "a" and is_silent:
            raise BackendError("the manager does not answer")
        return original(job, grant)

    original, adopted = world.adopt, list[str]()
    monkeypatch.setattr(world, "adopt", adopt)
    daemon = daemons.Daemon(CLUSTER, scheduler_of("fifo"), world, store, tmp_path)
    daemon._lookahead = Lookahead(lambda _: is_looked_at.wait(), daemon._news.set, daemon._put_off)
    for _ in range(3):
        daemon._turn_safely()
        assert world.running == {"a": on}
    is_silent = False
    adopted.clear()
    for _ in range(3):
        daemon._news.set()
        daemon._turn_safely()
    assert world.leaving == {"a"}
    assert adopted.count("a") <= 1  # each time it would get more time to leave
    world.leaving.clear()
    world.running.clear()
    daemon._turn_safely()
    assert world.running == {"b": on}
    assert daemon.job("a").state is State.WAITING
    is_looked_at.set()
    while any(daemon.job(name).state is not State.ENDED for name in "ab"):
        daemon._turn_safely()
