"""Nobody gets devices before who had them has left, or is known; then the next one does, at once."""

from __future__ import annotations

from faulty_backend import FaultyBackend
from test_driver_and_nodes import Nodes, driver, job

from trainyard.fleet.run.backend import Progress
from trainyard.fleet.run.departures import Departures
from trainyard.fleet.workload.job import Grant
from trainyard.hardware.cluster import Cluster


def test_devices_that_are_not_known_are_all_devices() -> None:
    backend = FaultyBackend(runs={"a": Grant((0,))}, begun={"a"})
    departures = Departures(backend, lambda _: None)
    departures.leave("a", None)
    assert departures.blocks("b", Grant((3,)))
    backend.let_go("a")
    departures.look()
    assert not departures.blocks("b", Grant((3,)))


def test_what_is_reserved_is_so_until_its_job_is_known_or_leaves() -> None:
    backend = FaultyBackend(runs={"a": Grant((0, 1))}, begun={"a"})
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
