"""Claims of optimus: convergence and speed are learnt from a few points, and devices go where they save most time."""

from __future__ import annotations

import csv
import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from shared_data import DATA, needs_data

from trainyard.fleet.allocation import Placed
from trainyard.fleet.errors import FleetError
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.place.nodes import ANYWHERE
from trainyard.fleet.policies.optimus import (
    Optimus,
    evenly,
    speed_curve,
    unit_seconds,
    work_left,
)
from trainyard.fleet.records import Recorder
from trainyard.fleet.replicas.optimus import OptimusInPollux
from trainyard.fleet.reproduce.programs.pollux import as_in_pollux, optimus_run, resizable
from trainyard.fleet.snapshot import Snapshot
from trainyard.fleet.workload.goodput import Limits, Report
from trainyard.fleet.workload.job import Grant, Job, Spot
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster

POLLUX = DATA / "cluster" / "pollux"


def losses(b0: float, b1: float, b2: float, epochs: int) -> tuple[tuple[float, float], ...]:
    return tuple((100.0 * k, 1 / (b0 * k + b1) + b2) for k in range(1, epochs + 1))


def test_convergence_is_foreseen() -> None:
    """Section 3.1: from the first tenth of a training, the epoch in which it will have converged, within a tenth."""
    b0, b1, b2, threshold = 0.2, 0.8, 0.3, 1e-3
    first = 1 / (b0 + b1) + b2
    steps = (k for k in itertools.count(1) if 1 / (b0 * k + b1) - 1 / (b0 * (k + 1) + b1) < threshold * first)
    end = next(steps)
    for seen in (end // 10, end // 2):
        left = work_left(losses(b0, b1, b2, seen), 100.0 * seen, threshold)
        assert left is not None
        assert left / 100 + seen == pytest.approx(end, rel=0.1)


def test_one_bad_loss_does_not_matter() -> None:
    """Section 3.1: outliers are taken out before the fit."""
    points = list(losses(0.2, 0.8, 0.3, 12))
    good = work_left(tuple(points), 1200.0, 1e-3)
    points[5] = (points[5][0], 5 * points[5][1])
    assert work_left(tuple(points), 1200.0, 1e-3) == pytest.approx(good, rel=0.15)


def test_the_end_is_unknown_without_losses_and_near_when_it_has_passed() -> None:
    assert work_left(losses(0.2, 0.8, 0.3, 2), 200.0, 1e-3) is None
    assert work_left(losses(0.2, 0.8, 0.3, 500), 50_000.0, 1e-3) == pytest.approx(100.0)
    assert work_left(tuple((float(k), 1.0) for k in range(1, 9)), 8.0, 1e-3) == pytest.approx(1.0)


def test_speed_is_learnt_from_five_trials() -> None:
    """Section 3.2: non-negative least squares; what was not tried is predicted."""
    true = np.array([8.0, 0.5, 0.02])
    curve = speed_curve(tuple((num, unit_seconds(true, num)) for num in (1, 3, 7, 13, 20)))
    np.testing.assert_allclose(curve, true, rtol=1e-6)
    falling = speed_curve(((1, 1.0), (2, 0.4), (4, 0.1)))
    assert (falling >= 0).all()


@dataclass(frozen=True)
class Curved:
    """A job of which a unit of work takes ``a0 / w + a1 + a2 w`` seconds."""

    curve: tuple[float, float, float]

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        return 1 / unit_seconds(np.array(self.curve), spot.num_devices)


CURVES = [(60.0, 0.0, 0.4), (30.0, 5.0, 0.1), (90.0, 1.0, 2.0)]


def snapshot(
    works: list[float], optimus: Optimus, cluster: Cluster, reports: list[Report | None]
) -> Snapshot:
    allocator = Allocator(cluster, optimus, ANYWHERE, Costs(), Recorder(keep_spans=False))
    table = allocator.table
    for i, (work, report) in enumerate(zip(works, reports, strict=True)):
        job = Job(f"job{i}", float(i), 1, work, Curved(CURVES[i]), min_devices=1, max_devices=12)
        allocator.enter(job, float(i), -1)
        table.reports[int(table.active[-1])] = report
    free = cluster.devices_per_node.copy()
    return Snapshot(10.0, cluster, free, optimus.needs, table.active.copy(), table)


def best_counts(works: list[float], room: int) -> tuple[int, ...]:
    """The division in which the jobs take least time together, found by trying all."""
    times = [
        [work * unit_seconds(np.array(curve), num) for num in range(1, room)]
        for work, curve in zip(works, CURVES, strict=True)
    ]
    divisions = (d for d in itertools.product(range(1, room), repeat=3) if sum(d) <= room and max(d) <= 12)
    return min(divisions, key=lambda d: (sum(times[j][n - 1] for j, n in enumerate(d)), sum(d)))


@pytest.mark.parametrize("works", [[100.0, 100.0, 100.0], [10.0, 400.0, 50.0], [1.0, 1.0, 900.0]])
def test_marginal_gains_find_the_best_division(works: list[float]) -> None:
    """Section 4.1: where each device gains less than the one before, taking the largest gain is best."""
    optimus, cluster = OptimusInPollux(), Cluster.uniform(4, 4)
    given, _ = optimus.decide(snapshot(works, optimus, cluster, [None] * 3), optimus.start(cluster))
    assert isinstance(given.given, Placed)
    assert tuple(len(devices) for devices in given.given.devices) == best_counts(works, 16)


def test_learnt_is_as_good_as_told() -> None:
    """With the losses of its first epochs and five trials, the division is that of the work that is really left."""
    optimus, cluster = Optimus(), Cluster.uniform(4, 4)
    shapes = [(0.05, 0.5), (0.4, 0.5), (0.2, 0.5)]
    reports: list[Report | None] = [
        Report(Limits(1, 1, 1, 1), losses=losses(b0, b1, 0.1, 10)) for b0, b1 in shapes
    ]
    left = [work_left(report.losses, 0.0, optimus.threshold) or 0.0 for report in reports if report]
    assert left[0] > left[2] > left[1]
    given, _ = optimus.decide(snapshot([1.0, 1.0, 1.0], optimus, cluster, reports), optimus.start(cluster))
    assert isinstance(given.given, Placed)
    assert tuple(len(devices) for devices in given.given.devices) == best_counts(left, 16)


def test_evenly_on_the_fewest_nodes() -> None:
    """Section 4.2, theorem 1: no smaller number of nodes can hold the job with equal parts, and parts differ by one."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        free, wanted = rng.integers(0, 9, 5), int(rng.integers(1, 17))
        if free.sum() < wanted:
            continue
        found = evenly(free, wanted)
        assert sum(found.values()) == wanted
        assert all(count <= free[node] for node, count in found.items())
        fits = [
            n
            for n in range(1, 6)
            if all(np.sort(free)[::-1][:n] >= wanted // n + (np.arange(n) < wanted % n))
        ]
        if fits:
            assert len(found) == min(fits)
            assert max(found.values()) - min(found.values()) <= 1


def test_one_type_of_devices() -> None:
    with pytest.raises(FleetError, match="devices of one type; cluster '1x4xA\\+1x4xB' has A, B"):
        Optimus().start(parse_cluster("1x4xA+1x4xB"))


def printed_s() -> float:
    """What Pollux' authors print for their sixth workload."""
    with (DATA / "reference" / "fleet" / "pollux_sia.csv").open() as file:
        (row,) = [r for r in csv.DictReader(file) if r["policy"] == "optimus"]
    return float(row["avg_jct_s"])


@needs_data(DATA)
@pytest.mark.slow
def test_as_the_authors_simulator() -> None:
    run = optimus_run(POLLUX)
    assert len(run.names) == 160
    assert run.mean_completion_s == pytest.approx(printed_s(), rel=1e-6)


@needs_data(DATA)
@pytest.mark.slow
def test_learning_costs_nothing() -> None:
    """Learnt models do as well as the truth that the published program is told."""
    run = as_in_pollux(resizable(POLLUX), Optimus(), round_s=600.0)
    assert run.mean_completion_s < printed_s()
