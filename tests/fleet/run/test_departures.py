"""Nobody gets the devices of a job before it has left them; then the next job gets them at once."""

from __future__ import annotations

import pytest
from faulty_backend import FaultyBackend
from test_driver_and_nodes import Nodes, driver, job

from trainyard.fleet.run.backend import Progress
from trainyard.fleet.run.departures import Departures
from trainyard.fleet.run.fault import BackendError
from trainyard.fleet.run.past import Past
from trainyard.fleet.workload.job import Grant
from trainyard.hardware.cluster import Cluster


def test_devices_that_are_not_known_are_all_devices() -> None:
    backend = FaultyBackend(runs={"a": Grant((0,))}, begun={"a": Grant((0,))})
    departures = Departures(backend, lambda _: None)
    departures.leave("a", None)
    assert departures.blocks("b", Grant((3,)))
    backend.let_go("a")
    departures.look()
    assert not departures.blocks("b", Grant((3,)))


def test_devices_are_reserved_until_their_job_is_known_or_leaves() -> None:
    backend = FaultyBackend(runs={"a": Grant((0, 1))}, begun={"a": Grant((0, 1))})
    departures = Departures(backend, lambda _: None)
    for end in (departures.release, lambda name: departures.leave(name, frozenset({0}))):
        departures.reserve("a", frozenset({0, 1}))
        assert departures.blocks("b", Grant((1, 2)))
        assert not departures.blocks("b", Grant((2,)))
        end("a")
        assert not departures.blocks("b", Grant((1, 2)))
    assert departures.blocks("b", Grant((0,)))


def test_a_cancelled_job_makes_room_at_once() -> None:
    backend = Nodes()
    driven = driver("fifo", backend, [], Cluster.uniform(1, 1, "local"))
    for name in ("a", "b"):
        driven.submit(job(name), 0.0)
    driven.step(0.0)
    driven.cancel("a", 1.0)
    driven.step(1.0)
    assert backend.runs == {"b": Grant((0,))}


def test_failures_on_a_node_that_is_lost_do_not_count_on_another() -> None:
    """After two, the job would have to wait five seconds."""
    backend = Nodes()
    driven = driver("fifo", backend, [])
    driven.submit(job("a"), 0.0)
    driven.step(0.0)
    for now_s in (1.0, 2.0):
        backend.runs.clear()
        backend.over["a"] = Progress(1, failure="it fell")
        driven.step(now_s)
        backend.over.clear()
    assert not backend.runs
    backend.gone = frozenset({0})
    driven.step(3.0)
    assert backend.runs == {"a": Grant((1,))}


@pytest.mark.parametrize(
    "past", [Past(None, first_start_s=0.0), Past(Grant((1,)), first_start_s=0.0)], ids=["waits", "moves"]
)
def test_nobody_gets_devices_that_a_job_was_leaving_when_it_cannot_be_restored(past: Past) -> None:
    """Whether it waits or has others by now, its processes are where it was started last."""
    on = Grant((0,))
    backend = FaultyBackend(runs={"a": on}, started_on={"a": on}, leaving={"a"}, silent={"adopt"})
    driven = driver("fifo", backend, [], Cluster.uniform(1, 2, "local"))
    with pytest.raises(BackendError, match="adopt is not answered"):
        driven.restore(job("a"), 0.0, past)
    driven.submit(job("b"), 0.0)
    driven.step(0.0)
    assert backend.runs == {"a": on}
    assert not backend.broken
    backend.silent.clear()
    driven.restore(job("a"), 1.0, past)
    backend.leaving.clear()
    backend.runs.clear()
    driven.step(1.0)
    assert backend.runs.keys() == {"a", "b"}
    assert not backend.broken


def test_a_job_that_never_ran_holds_nothing_back() -> None:
    backend = FaultyBackend(silent={"adopt"})
    driven = driver("fifo", backend, [], Cluster.uniform(1, 1, "local"))
    with pytest.raises(BackendError, match="adopt is not answered"):
        driven.restore(job("a"), 0.0, Past())
    driven.submit(job("b"), 0.0)
    driven.step(0.0)
    assert backend.runs == {"b": Grant((0,))}


def test_a_job_that_loses_a_node_before_it_could_be_told_to_leave_is_told_of_it() -> None:
    """It was started in part, and nothing was answered until the node was lost."""
    backend = FaultyBackend(next_start="partial", silent={"leave"})
    driven = driver("fifo", backend, [], Cluster.uniform(2, 2, "local"))
    driven.submit(job("a"), 0.0)
    driven.step(0.0)
    assert backend.runs == {"a": Grant((0,))}
    backend.lost = frozenset({0})
    driven.step(1.0)
    assert backend.loses == {"a"}
    backend.silent.clear()
    driven.step(2.0)
    assert backend.leaving == {"a"}
    assert not backend.broken


def test_a_job_that_is_restored_after_its_node_was_lost_is_told_of_it() -> None:
    """Its daemon could not restore it before: the backend did not answer."""
    on = Grant((0,))
    backend = FaultyBackend(runs={"a": on}, started_on={"a": on}, begun={"a": on}, silent={"adopt"})
    driven = driver("fifo", backend, [], Cluster.uniform(2, 2, "local"))
    with pytest.raises(BackendError, match="adopt is not answered"):
        driven.restore(job("a"), 0.0, Past(on, first_start_s=0.0))
    backend.lost = frozenset({0})
    driven.step(0.0)
    backend.silent.clear()
    driven.restore(job("a"), 1.0, Past(on, first_start_s=0.0))
    driven.step(1.0)
    assert backend.leaving == {"a"}
    backend.let_go("a")
    driven.step(2.0)
    assert backend.runs == {"a": Grant((2,))}
    assert not backend.broken


def test_a_cancelled_job_does_not_wait() -> None:
    backend = FaultyBackend()
    driven = driver("fifo", backend, [], Cluster.uniform(1, 1, "local"))
    for name in ("a", "b"):
        driven.submit(job(name), 0.0)
    driven.step(0.0)
    assert driven.waiting.keys() == {"b"}
    driven.cancel("b", 1.0)
    assert not driven.waiting
