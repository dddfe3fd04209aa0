"""The placement that is chosen by simulation: never worse than any policy, and better than all where none fits."""

from __future__ import annotations

import re
from contextlib import suppress
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trainyard.serve.errors import ServeError
from trainyard.serve.placement import Group, Replica
from trainyard.serve.placing.auto import best_by_simulation
from trainyard.serve.placing.decisions import (
    GroupPlacement,
    PartitionedPlacement,
    PlacementDecision,
    PlacementPart,
    TimeSharedPlacement,
)
from trainyard.serve.placing.forward_pass import ForwardPass
from trainyard.serve.placing.policies import PLACERS, AlpaServe, Auto, Nexus, Replicate
from trainyard.serve.placing.problem import ModelToPlace, PlacingProblem, drawn_arrivals
from trainyard.serve.policies.alpaserve.problem import Layout, ParallelConfig
from trainyard.serve.policies.nexus.profile import BatchingProfile

_SHAPES = tuple(ParallelConfig(*shape) for shape in ((1, 1), (2, 1), (1, 2), (4, 1), (2, 2)))


def model(request_s: float, fixed_s: float, weight_bytes: float = 1e9) -> ForwardPass:
    """Batches take a fixed time and a time for each request; shards are faster by a half, stages by nothing."""
    batches = tuple(range(1, 33))
    one_s = fixed_s + request_s
    return ForwardPass(
        BatchingProfile(batches, tuple(fixed_s + request_s * size for size in batches)),
        weight_bytes,
        {
            shape: (one_s / shape.pipeline_stages / (1.5 if shape.tensor_parallel > 1 else 1.0),)
            * shape.pipeline_stages
            for shape in _SHAPES
        },
    )


def problem_of(
    forwards: list[ForwardPass],
    rates_per_s: list[float],
    objective_s: list[float],
    num_devices: int = 4,
    *,
    num: int = 600,
    cv: float = 2.0,
    seed: int = 0,
) -> PlacingProblem:
    models = tuple(
        ModelToPlace(f"m{i}", *each) for i, each in enumerate(zip(forwards, objective_s, strict=True))
    )
    return PlacingProblem(models, num_devices, 4e9, drawn_arrivals(rates_per_s, num, cv, seed))


def mixed_problem(seed: int = 0) -> PlacingProblem:
    """A model that is too large for a device, beside one that needs batches."""
    forwards = [model(0.02, 0.01, 6e9), model(0.0005, 0.004)]
    return problem_of(forwards, [15.0, 1500.0], [0.2, 0.05], num=3000, seed=seed)


@settings(max_examples=25, deadline=None)
@given(
    kinds=st.lists(
        st.tuples(
            st.floats(0.0005, 0.03),
            st.floats(0.0005, 0.02),
            st.floats(0.1, 7),
            st.floats(1, 400),
            st.floats(0.02, 0.3),
        ),
        min_size=1,
        max_size=5,
    ),
    num_devices=st.integers(1, 6),
    cv=st.sampled_from((1.0, 4.0)),
    seed=st.integers(0, 3),
)
def test_it_is_never_worse_than_a_policy(
    kinds: list[tuple[float, ...]], num_devices: int, cv: float, seed: int
) -> None:
    problem = problem_of(
        [model(request_s, fixed_s, gigabytes * 1e9) for request_s, fixed_s, gigabytes, _, _ in kinds],
        [rate for *_, rate, _ in kinds],
        [objective_s for *_, objective_s in kinds],
        num_devices,
        num=200,
        cv=cv,
        seed=seed,
    )
    others = []
    for placer in (AlpaServe(), Nexus(), Replicate()):
        with suppress(ServeError):
            others.append(placer.decide(problem).serve(problem.arrivals))
    assume(others)
    auto = Auto(num_partitionings=10, num_moves=40, seed=seed)
    placed = auto.decide(problem).serve(problem.arrivals)
    assert all(placed.rank <= other.rank for other in others)
    assert max(device for each in placed.replicas for device in each.devices) < num_devices


def test_models_that_no_policy_can_place_are_refused_with_each_reason() -> None:
    problem = problem_of([model(0.1, 0.1, 1e12)], [1.0], [1.0], 1)
    said = "no model fits on any group of devices; use larger devices; session 'm0': its weights have 1e+12 bytes"
    with pytest.raises(ServeError, match=re.escape(said)):
        Auto().decide(problem)


def test_it_is_better_than_all_where_models_need_different_ways() -> None:
    """Only pipelines have room for the large model, and only batches serve the rate of the other."""
    history, served = mixed_problem(), mixed_problem(1).arrivals
    reached = []
    for placer in (AlpaServe(), Replicate()):
        reached.append(placer.decide(history).serve(served).slo_attainment)
    with pytest.raises(ServeError, match="use larger devices"):
        Nexus().decide(history)
    placed = Auto().decide(history).serve(served)
    assert placed.slo_attainment > max(reached) + 0.1
    assert max(each.batch for each in placed.replicas) > 1
    assert any(len(each.devices) > 1 for each in placed.replicas)


def test_small_changes_alone_gain() -> None:
    """Nexus uses the fewest devices; in bursts it loses requests that free devices would serve."""
    problem = problem_of([model(0.002, 0.004), model(0.004, 0.004)], [150.0, 60.0], [0.06, 0.06], cv=4.0)
    start = Nexus().decide(problem).serve(problem.arrivals)
    found = best_by_simulation(problem, (Nexus(),), (Nexus(),), 0, 200, 0).serve(problem.arrivals)
    assert found.slo_attainment > start.slo_attainment + 0.02


def test_a_model_is_taken_off_a_device_where_others_wait_for_it() -> None:
    """There is memory for both on both, which is where the search starts; requests of the short one are then late."""
    problem = problem_of([model(0.3, 0.1, 1e9), model(0.001, 0.001, 1e9)], [2.0, 40.0], [4.0, 0.02], 2)
    start = Replicate().decide(problem).serve(problem.arrivals)
    assert len(start.replicas) == 4
    found = best_by_simulation(problem, (Replicate(),), (Replicate(),), 0, 100, 0).serve(problem.arrivals)
    assert found.slo_attainment > start.slo_attainment + 0.1
    assert len({each.replica.model for each in found.replicas}) == 2


def test_it_decides_the_same_for_the_same_seed() -> None:
    problem = mixed_problem()
    one, other = (Auto(20, 50, seed=3).decide(problem).serve(problem.arrivals) for _ in range(2))
    assert one == other


def test_parts_are_served_each_by_itself() -> None:
    problem = mixed_problem()
    large, small = (
        PlacingProblem((each,), 2, 4e9, drawn_arrivals((rate,), 500))
        for each, rate in zip(problem.models, problem.rates_per_s, strict=True)
    )
    pair = GroupPlacement(large, Layout((ParallelConfig(2),), ((0,),)))
    packed = Nexus().decide(small)
    partitioned = PartitionedPlacement(2, (PlacementPart((0,), 0, pair), PlacementPart((1,), 2, packed)))
    placed = partitioned.serve(problem.arrivals)
    assert {(each.replica.model, each.devices) for each in placed.replicas} >= {("m0", (0, 1)), ("m1", (2,))}
    groups = placed.placement.groups
    assert groups[0] == Group((0, 1), (Replica("m0", pipeline_stages=2),))
    assert Group((2,), (Replica("m1"),)) in groups
    counts = np.bincount(problem.arrivals.model)
    assert placed.num_asked == tuple(counts.tolist())
    parts = []
    for partition in partitioned.partitions:
        kept = problem.arrivals.model == partition.models[0]
        alone = type(problem.arrivals)(problem.arrivals.arrival_s[kept], np.zeros(kept.sum(), np.int64))
        parts.append(partition.decision.serve(alone))
    assert placed.num_good == (parts[0].num_good[0], parts[1].num_good[0])
    total_s = sum(each.total_latency_s for each in parts)
    assert placed.mean_latency_s == pytest.approx(total_s / sum(placed.num_good))


@pytest.mark.parametrize("seed", range(3))
def test_changes_stay_within_devices_and_memory(seed: int) -> None:
    problem = problem_of([model(0.003, 0.004, 1.5e9)] * 4, [60.0, 30.0, 30.0, 10.0], [0.1] * 4)
    random, rates = Random(seed), dict[str, float]()
    for start in (AlpaServe(num_moves=10), Nexus()):
        decision: PlacementDecision = start.decide(problem)
        seen = set()
        for _ in range(150):
            decision = decision.near(random)
            placed = decision.serve(problem.arrivals)
            seen.add(placed)
            weights = np.zeros(problem.num_devices)
            for group in placed.placement.groups:
                weights[list(group.devices)] += 1.5e9 * len(group.replicas) / len(group.devices)
            assert (weights <= problem.device_bytes).all()
        assert len(seen) > 15
    assert isinstance(decision, TimeSharedPlacement)
    for device in decision.devices:
        assert device.occupancy <= 1 + 1e-9
        for session in device.sessions:
            rates[session.name] = rates.get(session.name, 0.0) + session.rate_per_s
    # However sessions spread over devices, their requests remain as many.
    assert [rates[each.name] for each in problem.models] == pytest.approx(problem.rates_per_s)


def test_what_cannot_be_placed_at_all_says_why() -> None:
    problem = problem_of([model(0.01, 0.01, 90e9)], [10.0], [0.2])
    with pytest.raises(ServeError, match="use larger devices") as error:
        Auto().decide(problem)
    assert "no model fits on any group" in str(error.value)
    with pytest.raises(ServeError, match="num_moves -1; allowed is 0 or more"):
        Auto(num_moves=-1)


def test_a_search_of_groups_is_checked_before_it_begins() -> None:
    with pytest.raises(ServeError, match="num_shapes -1, num_moves 2000; allowed is 0 or more"):
        AlpaServe(num_shapes=-1)


def test_every_other_policy_is_a_start() -> None:
    """With nothing tried beyond them, the best of all that have a name is chosen."""
    problem = problem_of([model(0.005, 0.004)] * 3, [40.0] * 3, [0.08] * 3)
    ranks = [
        entry.factory().decide(problem).serve(problem.arrivals).rank
        for entry in PLACERS
        if entry.factory is not Auto
    ]
    assert len(ranks) == len(PLACERS) - 1
    assert Auto(num_partitionings=0, num_moves=0).decide(problem).serve(problem.arrivals).rank <= min(ranks)
