"""Claims of pollux: goodput is learnt online, batches grow with the noise, and devices go where they do most good."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from shared_data import DATA, needs_data

from trainyard.fleet.catalog import parse_policy
from trainyard.fleet.errors import FleetError
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.periods import Rounds
from trainyard.fleet.policies.pollux.genetic import Allocations, Floats, Problem, allocations, search
from trainyard.fleet.policies.pollux.offspring import make_child
from trainyard.fleet.policies.pollux.policy import Pollux
from trainyard.fleet.replicas.pollux import PolluxProgram, search_of_program
from trainyard.fleet.simulate import simulate_fleet
from trainyard.fleet.workload.application import Application, SelfTuned, adaptive
from trainyard.fleet.workload.goodput import Batch, Limits, Models, Noise, Report, Timing, divided, gain
from trainyard.fleet.workload.job import Grant, Job, Spot
from trainyard.fleet.workload.readers.pollux import read_applications, read_pollux
from trainyard.fleet.workload.throughput import Theta, fit
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster

POLLUX = DATA / "cluster" / "pollux"
CLUSTER = Cluster.uniform(16, 4, "T4")
TRUE = Theta(0.05, 0.002, 0.08, 0.004, 0.02, 0.001, 1.8)

Search = Callable[..., tuple[Allocations, Floats]]


def steps(theta: Theta, nodes: int, devices: int, local: int) -> tuple[float, float]:
    """Equations 9 to 11 of the paper."""
    grad_s = theta.alpha_grad + theta.beta_grad * local
    alpha, beta = theta[2:4] if nodes > 1 else theta[4:6]
    sync_s = alpha + beta * (devices - 2) if devices > 1 else 0.0
    return grad_s, (grad_s**theta.gamma + sync_s**theta.gamma) ** (1 / theta.gamma)


def seen(theta: Theta, places: list[tuple[int, int]]) -> tuple[tuple[int, int, int, float, float], ...]:
    return tuple(
        (*place, local, *steps(theta, *place, local)) for place in places for local in (16, 32, 64, 128)
    )


def test_the_model_recovers_what_it_was_shown() -> None:
    """Section 4.1: seven parameters from measured steps; they predict steps on devices that were not seen."""
    fitted = fit(seen(TRUE, [(1, 1), (1, 2), (1, 4), (2, 8), (3, 6), (4, 16)]))
    assert fitted.alpha_grad == pytest.approx(TRUE.alpha_grad, rel=0.01)
    assert fitted.beta_grad == pytest.approx(TRUE.beta_grad, rel=0.01)
    for nodes, devices in [(1, 3), (2, 5), (4, 12), (8, 32)]:
        for local in (24, 100):
            predicted, true = (steps(theta, nodes, devices, local)[1] for theta in (fitted, TRUE))
            assert predicted == pytest.approx(true, rel=0.06)


def test_what_was_not_seen_costs_nothing() -> None:
    """Prior-driven exploration: seen on one device only, a job is taken to scale perfectly."""
    fitted = fit(seen(TRUE, [(1, 1)]))
    assert steps(fitted, 2, 8, 64)[1] == pytest.approx(steps(fitted, 1, 1, 64)[0], rel=1e-4)


def test_a_step_gains_as_adascale_has_it() -> None:
    """Without noise, larger batches gain nothing; with nothing but noise, they gain in proportion."""
    assert gain(Noise(1.0, 0.0), 8.0) == pytest.approx(1.0)
    assert gain(Noise(0.0, 1.0), 8.0) == pytest.approx(8.0)
    assert gain(Noise(1.0, 3.0), 4.0) == pytest.approx(4.0 / 1.75)


def report(noise: Noise, places: list[tuple[int, int]]) -> Report:
    timings = tuple(Timing("T4", *row) for row in seen(TRUE, places))
    return Report(Limits(128, 4096, 32, 1024), timings, noise)


def test_best_batch_is_the_best_of_all() -> None:
    """Section 3.3: no other batch size has more goodput; found here by trying all."""
    known = report(Noise(1.0, 40.0), [(1, 1), (1, 4), (2, 8)])
    theta, limits = known.theta(), known.limits
    assert theta is not None
    for nodes, devices in [(1, 1), (1, 4), (2, 8)]:
        best = 0.0
        for size in range(max(limits.smallest, devices * limits.smallest_local), limits.largest + 1, devices):
            local, passes = divided(size, devices, limits)
            grad_s, step_s = steps(theta, nodes, devices, local)
            scale = local * passes * devices / limits.smallest
            best = max(best, gain(Noise(1.0, 40.0), scale) / (step_s + (passes - 1) * grad_s))
        across, count = np.array([nodes > 1]), np.array([devices])
        found = float(Models.of([known]).goodputs_at(across, count)[0])
        assert 0.99 * best <= found <= best * (1 + 1e-9)
        assert Models.of([known]).goodputs(count)[0, int(nodes > 1), devices] == found


def test_batches_grow_with_noise_and_devices() -> None:
    places = [(1, 1), (1, 4), (2, 8)]
    by_noise = [report(Noise(1.0, v), places).batch(2, 8) for v in (1.0, 10.0, 100.0)]
    sizes = [batch.local * batch.num_passes for batch in by_noise]
    assert sizes[0] < sizes[1] < sizes[2]
    known = report(Noise(1.0, 10.0), places)
    totals = [n * known.batch(m, n).local * known.batch(m, n).num_passes for m, n in places]
    assert totals[0] < totals[1] < totals[2]


def test_a_fixed_batch_is_kept_and_accumulated() -> None:
    limits = Limits(128, 4096, 32, 1024)
    assert Report(limits, fixed_batch=4096).batch(1, 2) == Batch(1024, 2)
    assert divided(256, 1, limits) == Batch(128, 2)
    assert divided(256, 2, limits) == Batch(128, 1)
    assert Report(limits).batch(4, 16) == Batch(32, 1)


@pytest.mark.parametrize("step_s", [0.01, 0.05, 0.3, 0.5, 3.0])
@pytest.mark.parametrize("local", [16, 64, 256, 1024])
def test_one_measurement_is_half_constant_and_half_by_sample(local: int, step_s: float) -> None:
    """So that a job is tried on more devices: it does not know which part of its step they would shorten."""
    found = fit(((1, 1, local, step_s, step_s),))
    assert found.alpha_grad == pytest.approx(step_s / 2)
    assert found.beta_grad * local == pytest.approx(step_s / 2, rel=1e-3)


def problem(speedup: np.ndarray, base: list[list[tuple[int, int]]], most: int, num_nodes: int = 4) -> Problem:
    jobs = len(base)
    return Problem(
        np.full(num_nodes, 4, np.int32),
        allocations(base, 4 * num_nodes),
        speedup,
        np.ones(jobs),
        np.ones(jobs, np.int32),
        np.full(jobs, most, np.int32),
        -1.0,
    )


@pytest.mark.parametrize("how", [search, search_of_program])
def test_the_fairest_mean_is_the_least_speedup(how: Search) -> None:
    """Of two jobs on 16 devices, one gains a third of what the other does by each: 4 and 12, found by trying all."""
    n = np.arange(17.0)
    task = problem(np.stack([np.stack([n, n]), np.stack([n / 3, n / 3])]), [[], []], 16)
    found, fitness = how(replace(task, fairness=-np.inf), task.current, 0, 100, 100)
    best = max(min(a, (16 - a) / 3) for a in range(17))
    assert fitness[0] == pytest.approx(best + 4e-3)
    assert sum(count for _, count in found.rows(0)[0]) == 4
    # Nobody is left without devices for the sake of the others, as under the sum.
    sums, _ = how(replace(task, fairness=1.0), task.current, 0, 100, 100)
    assert sum(count for _, count in sums.rows(0)[0]) == 16


@pytest.mark.parametrize("fairness", [0.0, float("nan"), float("inf")])
def test_means_that_are_none_are_refused(fairness: float) -> None:
    with pytest.raises(FleetError, match=f"fairness of speedups must be .* got {fairness}"):
        Pollux(fairness=fairness)


def test_minus_infinity_can_be_named() -> None:
    assert parse_policy("pollux(fairness=-1e999)") == Pollux(fairness=-np.inf)


@pytest.mark.parametrize("how", [search, search_of_program])
@pytest.mark.parametrize("seed", range(5))
def test_search_finds_the_best_division(seed: int, how: Search) -> None:
    """Of two jobs on 16 devices, one scales and one does not: found by trying every division."""
    n = np.arange(17)
    speedup = np.stack([np.stack([n**0.9, n**0.9]), np.stack([np.minimum(n, 1), np.minimum(n, 1)])]).astype(
        float
    )
    task = problem(speedup, [[], []], 16)
    found, fitness = how(task, task.current, seed, 100, 100)
    assert sorted(found.rows(0)[1])[0][1] >= 1
    assert sum(count for _, count in found.rows(0)[0]) == 15
    assert fitness[0] == pytest.approx(2 / (1 / (15**0.9 + 4e-3) + 1 / (1 + 4e-3)))


@pytest.mark.parametrize("how", [search, search_of_program])
def test_distributed_jobs_do_not_share_nodes(how: Search) -> None:
    """Section 4.2.1, interference avoidance; and nobody gets more than there is."""
    n = np.arange(13)
    task = problem(np.broadcast_to(n**0.8, (6, 2, 13)).copy(), [[]] * 6, 12)
    found, fitness = how(task, task.current, 0, 100, 100)
    assert (np.diff(fitness) <= 0).all()
    for which in range(len(fitness)):
        rows = found.rows(which)
        spread = [node for row in rows if len(row) > 1 for node, _ in row]
        assert len(spread) == len(set(spread))
        for node in range(4):
            assert sum(count for row in rows for other, count in row if other == node) <= 4
    assert len({str(found.rows(i)) for i in range(len(fitness))}) == len(fitness)


@pytest.mark.parametrize("how", [search, search_of_program])
def test_a_gang_gets_all_or_nothing(how: Search) -> None:
    """Jobs that run on three devices or not at all; two fit, on their own or next to one that is spread."""
    n = np.arange(4).astype(float)
    task = replace(
        problem(np.broadcast_to(n, (4, 2, 4)).copy(), [[]] * 4, 3, num_nodes=2), least=np.full(4, 3, np.int32)
    )
    found, _ = how(task, task.current, 0, 50, 50)
    counts = [sum(count for _, count in row) for which in range(5) for row in found.rows(which)]
    assert set(counts) <= {0, 3}
    assert [sum(count for _, count in row) for row in found.rows(0)].count(3) == 2


def offspring(
    seed: int, sizes: list[int], *parents: list[list[tuple[int, int]]]
) -> list[list[tuple[int, int]]]:
    """One child of two parents, of jobs that may have any number of devices."""
    num_jobs, devices = len(parents[0]), sum(sizes)
    one, other, child = (allocations(rows, devices) for rows in (*parents, [[]] * num_jobs))
    known = tuple(np.concatenate(pair) for pair in zip(one, other, strict=True))
    random = np.random.Generator(np.random.SFC64(seed))
    least, most = np.ones(num_jobs, np.int32), np.full(num_jobs, devices, np.int32)
    make_child(
        random,
        known,
        0,
        1,
        tuple(part[0] for part in one),
        np.array(sizes, np.int32),
        least,
        most,
        np.zeros(0),
        tuple(part[0] for part in child),
    )
    return child.rows(0)


def test_elements_mutate_as_often_as_written() -> None:
    """Section 4.2.1: each element with chance 1 / nodes, to any number from 0 to the node's devices, alike."""
    nothing: list[list[tuple[int, int]]] = [[]]
    drawn = [offspring(seed, [3] * 8, nothing, nothing)[0] for seed in range(4000)]
    counts = np.bincount([count for row in drawn for _, count in row], minlength=4)[1:]
    # One of 8 elements on average is hit, and a quarter of these are set to 0.
    np.testing.assert_allclose(counts / 4000, 0.25, atol=0.035)
    nodes = np.bincount([node for row in drawn for node, _ in row], minlength=8)
    np.testing.assert_allclose(nodes / 4000, 0.75 / 8, atol=0.02)


def test_rows_come_from_either_parent() -> None:
    """Crossover mixes rows at random: every job is as in one parent, in half of the children as in the first."""
    # No node is of two jobs, and of 400 hardly any becomes that by mutation.
    one, other = [[[(2 * job + parent, 1)] for job in range(6)] for parent in (0, 1)]
    drawn = [offspring(seed, [9] * 400, one, other) for seed in range(600)]
    first = [[(2 * job, 1) in row for job, row in enumerate(rows)] for rows in drawn]
    assert np.mean(first) == pytest.approx(0.5, abs=0.04)
    # Not cut in two: neighbours agree as often as not.
    assert np.mean(np.diff(np.array(first), axis=1) == 0) == pytest.approx(0.5, abs=0.04)


def test_who_leaves_a_shared_node_is_drawn() -> None:
    """Interference avoidance: of two jobs that are both on nodes 0 and 1, either leaves node 0, as often as the other."""
    both = [[(0, 1), (1, 1)]] * 2
    drawn = [offspring(seed, [9] * 400, both, both) for seed in range(400)]
    there = np.array([[any(node == 0 for node, _ in row) for row in rows] for rows in drawn])
    # Of 400 nodes, node 0 is hardly ever hit by a mutation, to be empty.
    parted = there.sum(axis=1) == 1
    assert parted.mean() > 0.95
    assert there[parted, 0].mean() == pytest.approx(0.5, abs=0.08)


def test_contested_devices_are_taken_back_at_random() -> None:
    """Repair: on a node that is asked for twice what it has, nobody is preferred."""
    full = [[(0, 4)], [(0, 4)]]
    drawn = [offspring(seed, [4, 0, 0, 0, 0, 0, 0, 0], full, full) for seed in range(2000)]
    left = np.array([[sum(count for _, count in row) for row in rows] for rows in drawn])
    assert (left.sum(axis=1) <= 4).all()
    assert left.mean(axis=0)[0] == pytest.approx(left.mean(axis=0)[1], abs=0.15)


@pytest.mark.parametrize("how", [search, search_of_program])
def test_moving_must_be_worth_it(how: Search) -> None:
    """The penalty of a restart keeps a job where it is, unless it gains more elsewhere."""
    n = np.arange(5).astype(float)
    base = [[(0, 2)]]
    for factor, devices in [(0.4, 2), (0.6, 4)]:
        task = problem(np.stack([n, n])[None], base, 4)
        changed = replace(task, realloc_factor=np.array([factor]))
        found, _ = how(changed, changed.current, 0, 50, 50)
        assert sum(count for _, count in found.rows(0)[0]) == devices


@pytest.fixture(scope="module")
def applications() -> Mapping[str, Application]:
    return read_applications(POLLUX / "traces")


@needs_data(DATA)
def test_application_between_its_measurements(applications: Mapping[str, Application]) -> None:
    app = applications["cifar10"]
    with (POLLUX / "traces" / "cifar10" / "placements.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["placement"] == "1234"]
    low, high = rows[0], rows[1]
    for turn in [(1, 2, 3, 4), (3, 4, 1, 2)]:
        compute_s, step_s = app.step_s(turn, int(low["local_bsz"]))
        assert step_s == pytest.approx(float(low["step_time"]))
        assert step_s - compute_s == pytest.approx(float(low["sync_time"]))
    part = (40 - int(low["local_bsz"])) / (int(high["local_bsz"]) - int(low["local_bsz"]))
    between = (1 - part) * float(low["step_time"]) + part * float(high["step_time"])
    assert app.step_s((1, 2, 3, 4), 40)[1] == pytest.approx(between)
    # Five nodes lie between those of four and of six.
    four, five, six = (app.step_s((1,) * nodes, 32)[1] for nodes in (4, 5, 6))
    assert min(four, six) <= five <= max(four, six)
    with pytest.raises(FleetError, match="limit its devices"):
        app.step_s((4,) * 30, 32)


@needs_data(DATA)
def test_batch_grows_as_training_proceeds(applications: Mapping[str, Application]) -> None:
    """Figure 1 of the paper: with the noise of its gradients, a job's best batch size grows over its epochs."""
    app = applications["cifar10"]
    profile, grant, spot = SelfTuned(app), Grant(tuple(range(4))), Spot("T4", 4, 1, (4,))
    known: Any = None
    sizes, speeds = [], []
    for done in np.repeat(app.epoch_ends[:-1], 2):
        rate = profile.rate(spot, grant, float(done), known)
        known = rate.report
        sizes.append(rate.batch_size)
        speeds.append(rate.work_per_s)
    assert np.mean(sizes[-40:]) > 1.5 * np.mean(sizes[2:42])
    assert np.mean(speeds[-40:]) > np.mean(speeds[2:42])


def jobs_of(app: Application, arrivals: list[float]) -> Iterator[Job]:
    plain = (Job(f"job{i}", at, 1, 0.0, SelfTuned(app), model=app.name) for i, at in enumerate(arrivals))
    return adaptive(plain, {app.name: app})


@needs_data(DATA)
def test_allocations_shrink_under_load(applications: Mapping[str, Application]) -> None:
    """Alone, a job explores up to many devices, twice as many each time; with others it makes room."""
    cluster = Cluster.uniform(4, 4, "T4")
    jobs = list(jobs_of(applications["cifar10"], [0.0, *([400.0] * 7)]))
    run = simulate_fleet(
        jobs, cluster, Pollux(num_generations=30), rounds=Rounds(60), costs=Costs(30.0, 30.0), keep_spans=True
    )
    mine = [span for span in run.spans if span.job == "job0"]
    alone = [len(span.devices) for span in mine if span.start_s < 400]
    assert alone[0] == 1
    assert all(
        after <= 2 * most for most, after in zip(np.maximum.accumulate(alone[:-1]), alone[1:], strict=True)
    )
    loaded = [len(span.devices) for span in mine if 480 < span.start_s < 900]
    assert max(alone) >= 8
    assert max(loaded) < max(alone)


@needs_data(DATA)
def test_a_run_repeats(applications: Mapping[str, Application]) -> None:
    jobs = list(jobs_of(applications["cifar10"], [0.0, 30.0, 200.0]))
    runs = [
        simulate_fleet(
            jobs,
            Cluster.uniform(2, 4, "T4"),
            Pollux(num_generations=30, seed=s),
            rounds=Rounds(60),
            costs=Costs(30.0, 30.0),
        )
        for s in (1, 1)
    ]
    np.testing.assert_array_equal(runs[0].finish_s, runs[1].finish_s)


@needs_data(DATA)
@pytest.mark.slow
@pytest.mark.long
def test_as_the_authors_simulator() -> None:
    """The average completion time that the authors print for their sixth workload; the search is random, about 3 %."""
    with (DATA / "reference" / "fleet" / "pollux_sia.csv").open() as file:
        (row,) = [r for r in csv.DictReader(file) if r["policy"].startswith("pollux")]
    jobs = read_pollux(POLLUX / "workloads" / "workload-6.csv", POLLUX / "traces")
    policy = PolluxProgram()
    run = simulate_fleet(jobs, CLUSTER, policy, rounds=Rounds(60), costs=Costs(30.0, 30.0))
    assert len(run.names) == 160
    assert run.mean_completion_s == pytest.approx(float(row["avg_jct_s"]), rel=0.03)


def test_one_type_of_devices() -> None:
    with pytest.raises(
        FleetError, match="Pollux is for devices of one type; cluster '1x4xA\\+1x4xB' has A, B"
    ):
        Pollux().start(parse_cluster("1x4xA+1x4xB"))
