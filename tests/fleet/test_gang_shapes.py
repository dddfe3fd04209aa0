"""Gangs whose workers must each lie on one node, under every policy: heeded, or refused in words."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from runs import finished
from test_fleet_conformance import CLUSTER, EVERY, text_of

from trainyard.fleet.catalog import Entry, parse_policy
from trainyard.fleet.errors import FleetError
from trainyard.fleet.place.nodes import ANYWHERE, CONSOLIDATED, PACKED, PLACEMENTS, WORKER, workers_for
from trainyard.fleet.records import FleetRun
from trainyard.fleet.run.backends import check_runnable
from trainyard.fleet.scheduler import Scheduler, scheduler_of
from trainyard.fleet.traits import traits_of
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import training_job
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster

THREES = Cluster.uniform(3, 3)
HOWS = pytest.mark.parametrize("how", PLACEMENTS.values(), ids=PLACEMENTS)


@HOWS
@pytest.mark.parametrize("seed", range(50))
def test_nodes_give_whole_workers(how: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = np.full(5, 8) if seed % 2 else rng.integers(1, 9, 5)
    free = np.array([rng.integers(0, size + 1) for size in sizes])
    worker, count = int(rng.integers(1, 5)), int(rng.integers(1, 8))
    racks = rng.integers(0, 2, 5) if seed % 3 == 0 else np.zeros(5, np.int64)
    taken = workers_for(how + WORKER * worker, free, worker * count, sizes, racks, bool(racks.any()))
    room = int((free // worker).sum())
    if len(taken):
        assert taken.sum() == worker * count
        assert (taken <= free).all()
        assert (taken % worker == 0).all()
    elif how != CONSOLIDATED:
        assert room < count
    else:  # it waits for whole nodes, but never where one node has room for all
        assert (free // worker).max() < count


@HOWS
def test_a_worker_of_one_device_is_a_device(how: int) -> None:
    sizes, racks = np.full(4, 8), np.zeros(4, np.int64)
    for seed in range(20):
        free = np.random.default_rng(seed).integers(0, 9, 4)
        args = free, 1 + seed, sizes, racks, False
        np.testing.assert_array_equal(workers_for(how + WORKER, *args), workers_for(how, *args))


def test_workers_that_no_node_can_hold_have_no_place() -> None:
    free = np.array([2, 2, 2, 2])
    for how in (ANYWHERE, CONSOLIDATED, PACKED):
        assert not len(workers_for(how + WORKER * 4, free, 8, free, np.zeros(4, np.int64), False))


def devices_by_node(run: FleetRun, cluster: Cluster) -> dict[str, list[list[int]]]:
    """Of every span of each job, how many devices it had on each of its nodes."""
    found: dict[str, list[list[int]]] = {}
    for span in run.spans or ():
        counts = Counter(cluster.node_of[list(span.devices)].tolist())
        found.setdefault(span.job, []).append(sorted(counts.values()))
    return found


def test_a_gang_waits_for_nodes_with_room_for_its_workers() -> None:
    """Of every node two devices are in use until the first is free at 10 s."""
    around = [declared_job(f"{i}", 0, 2, 10.0 + i, gang=(2,)) for i in range(3)]
    loose, shaped = (declared_job(name, 1, 3, 100, gang=gang) for name, gang in (("a", ()), ("b", (3,))))
    fifo = scheduler_of("fifo", "anywhere")
    assert finished(fifo.simulate([*around, loose], THREES))["a"] == 101
    run = fifo.simulate([*around, shaped], THREES, keep_spans=True)
    assert finished(run)["b"] == 110
    pairs = fifo.simulate([declared_job("c", 0, 4, 5, gang=(2, 2))], THREES, keep_spans=True)
    assert devices_by_node(pairs, THREES)["c"] == [[2, 2]]


def jobs_of_workers() -> list[Job]:
    """Gangs of several shapes, more than fit, and jobs without one between them."""
    rng, jobs = np.random.default_rng(0), []
    for i in range(30):
        worker, count = ((2, 2), (3, 1), (2, 3), (1, 2), (0, 2))[i % 5]
        size = max(1, worker) * count
        length_s = float(rng.integers(10, 400))
        jobs.append(
            declared_job(
                f"{worker}x{count} {i}", 20.0 * i, size, length_s, gang=(worker,) * count * (worker > 0)
            )
        )
    return jobs


@EVERY
def test_every_policy_heeds_workers_or_refuses_them(entry: Entry, variant: str) -> None:
    check_heeds_workers_or_refuses_them(scheduler_of(text_of(entry, variant)))


def check_heeds_workers_or_refuses_them(scheduler: Scheduler) -> None:
    jobs = jobs_of_workers()
    if not traits_of(scheduler.policy).supports:
        with pytest.raises(
            FleetError, match=r"workers of 2\+2 devices, each on one node, and the policy gives devices"
        ):
            scheduler.simulate(jobs, CLUSTER, strict=True)
        return
    run = scheduler.simulate(jobs, CLUSTER, keep_spans=True)
    assert len(run.names) == len(jobs)
    for name, spans in devices_by_node(run, CLUSTER).items():
        worker = max(1, int(name[0]))
        assert all(count % worker == 0 for span in spans for count in span), name


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"gang": (2, 1, 1)}, "places workers of one size only"),
        ({"gang": (1, 1)}, "together these are not its 4 devices"),
        ({"gang": (4,)}, "no nodes of one type with room for all"),
        ({"pinned_cell": "mine"}, "asks for the pinned cell 'mine', and the policy knows no cells"),
    ],
)
def test_what_cannot_be_heeded_is_refused(asked: dict[str, object], said: str) -> None:
    job = declared_job("a", 0, 4, 5, **asked)
    with pytest.raises(FleetError, match=said):
        scheduler_of("fifo").simulate([job], THREES, strict=True)


def test_workers_may_lie_on_one_type_of_device() -> None:
    """The nodes of the first type are too small for them."""
    cluster = Cluster.of_pools([("small", 8, 1), ("large", 2, 4)])
    run = scheduler_of("fifo").simulate([declared_job("a", 0, 4, 5, gang=(2, 2))], cluster, keep_spans=True)
    assert devices_by_node(run, cluster)["a"] == [[4]]
    small = declared_job("a", 0, 4, 5, gang=(2, 2), device_types=("small",))
    with pytest.raises(FleetError, match="no nodes of one type with room"):
        scheduler_of("fifo").simulate([small], cluster, strict=True)


def test_real_jobs_are_refused_before_they_run() -> None:
    job = training_job("a", 0.0, 4, Training("gpt-tiny", 4, 5), gang=(2, 2))
    cluster = parse_cluster("2x2xlocal")
    check_runnable([job], cluster, parse_policy("tiresias"))
    with pytest.raises(FleetError, match="without regard to that"):
        check_runnable([job], cluster, parse_policy("pollux"))
