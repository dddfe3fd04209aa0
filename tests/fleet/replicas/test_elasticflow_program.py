"""ElasticFlow as its authors' program has it: plans from the deadline backwards, and ends where the plan says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest

from trainyard.fleet.errors import FleetError
from trainyard.fleet.periods import Rounds
from trainyard.fleet.policies.queues import srtf
from trainyard.fleet.records import FleetRun
from trainyard.fleet.replicas.backwards import Plan, Planner, Steps, Wish, reserve
from trainyard.fleet.replicas.elasticflow import ElasticFlowProgram, most_devices
from trainyard.fleet.replicas.planned_ends import PlannedEnds
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import Job
from trainyard.fleet.workload.readers.elasticflow import ElasticFlowProfile
from trainyard.hardware.cluster import Cluster

LINEAR = {1: 1.0, 2: 2.0, 4: 4.0}
NODE = Cluster.uniform(1, 4, "T4")
INF = math.inf


@pytest.mark.parametrize(
    ("left", "deadline_s", "free", "uses", "until_s", "done_s"),
    [
        pytest.param(100, 1000, {0: 4}, {0: 1}, 120, 100, id="one device will do"),
        pytest.param(100, 90, {0: 4}, {0: 2}, 60, 50, id="the deadline lies within a slot"),
        pytest.param(300, 900, {0: 2, 600: 4}, {0: 0, 600: 1}, 900, 900, id="as late as it can"),
        pytest.param(301, 900, {0: 2, 600: 4}, {0: 1, 600: 0}, 360, 301, id="and no later"),
        pytest.param(1000, 900, {0: 1, 600: 4}, {0: 1, 600: 2}, 840, 800, id="less before, more after"),
        pytest.param(1100, 900, {0: 4, 600: 1}, {0: 2, 600: 0}, 600, 550, id="as far as devices are free"),
        pytest.param(100, 10, {0: 4}, {0: 4, 60: 4}, 120, 75, id="late"),
        pytest.param(100, -90, {0: 1, 60: 4}, {0: 1, 60: 4}, 120, 70, id="late long since"),
        pytest.param(50, INF, {0: 2, 600: 4}, {0: 0, 600: 1}, 660, 650, id="without deadline"),
    ],
)
def test_plan(
    left: float, deadline_s: float, free: Steps, uses: Steps, until_s: float, done_s: float
) -> None:
    plan = Planner(4, 60.0).plan(Wish(left, deadline_s, LINEAR), free)
    assert plan == Plan(uses, until_s, done_s)


def test_plan_with_more_devices_now() -> None:
    """Four until the others' end at 60 s, then what is needed from there on."""
    planner, wish = Planner(4, 60.0), Wish(500, 900, LINEAR)
    assert planner.plan(wish, {0: 4, 60: 3}, first=4) == Plan({0: 4, 60: 1}, 360, 320)
    assert planner.plan(wish._replace(left=200), {0: 4, 60: 3}, first=4) == Plan({0: 4}, 60, 50)


@pytest.mark.parametrize("seed", range(20))
def test_a_job_is_done_by_its_plan_and_reservations_can_be_taken_back(seed: int) -> None:
    draws = np.random.default_rng(seed)
    planner, free = Planner(8, 60.0), {0.0: 8}
    steps: Steps = free
    for _ in range(12):
        wish = Wish(float(draws.integers(1, 4000)), float(draws.integers(60, 2000)), LINEAR)
        plan = planner.plan(wish, steps)
        edges = [*[at_s for at_s in plan.uses if at_s < plan.done_s], plan.done_s]
        work = sum(
            plan.uses[start_s] * (min(end_s, wish.deadline_s) - start_s if start_s < wish.deadline_s else 0)
            + plan.uses[start_s] * max(0.0, end_s - max(start_s, wish.deadline_s))
            for start_s, end_s in pairwise(edges)
        )
        assert work >= wish.left - 1e-6
        after = reserve(steps, plan)
        assert min(after.values()) >= 0
        assert reserve(after, plan, -1) == steps
        steps = after


def job(
    name: str, arrival_s: float, work: float, deadline_s: float, speeds: Mapping[int, float] = LINEAR
) -> Job:
    profile = ElasticFlowProfile({"T4": {8: speeds}}, 8)
    most = max(speeds)
    return Job(
        name,
        arrival_s,
        1,
        work,
        profile,
        min_devices=1,
        max_devices=most,
        deadline_s=deadline_s,
        batch_size=8,
    )


def simulated(*jobs: Job) -> FleetRun:
    return simulate_fleet(jobs, NODE, ElasticFlowProgram(), keep_spans=True)


def test_the_end_that_counts_is_that_on_the_share_alone() -> None:
    """On one device it takes 100 s. It has four until its slot ends, 8 s later for the start, and is done by then."""
    run = simulated(job("a", 0, 100, 1000))
    assert run.finish_s.tolist() == [100.0]
    assert run.series.time_s.tolist() == [0.0, 68.0]
    assert run.device_s.tolist() == [4 * 68.0]
    assert [(span.start_s, span.end_s) for span in run.spans] == [(0.0, 68.0)]


def test_what_is_lost_since_the_last_plan_makes_nobody_late() -> None:
    """Starting takes 8 s, for which the plan has no time; the job ends with work left."""
    run = simulated(job("a", 0, 240, 60))
    assert (run.finish_s.tolist(), run.num_missed) == ([60.0], 0)


def test_all_that_come_together_are_admitted_or_none() -> None:
    """Each could be done, but not both; who comes in the same slot comes at its end."""
    run = simulated(job("first", 0, 10, 1000), job("a", 5, 400, 200), job("b", 10, 400, 200))
    assert {name for name, _ in run.refused} == {"a", "b"}
    run = simulated(job("first", 0, 10, 1000), job("a", 5, 400, 200), job("b", 200, 400, 400))
    assert not run.refused


@pytest.mark.parametrize(
    ("num_devices", "cluster_size", "known", "renews", "pause_s"),
    [(1, 64, False, False, 4), (4, 64, False, False, 8), (4, 64, True, True, 2), (4, 64, False, True, 35),
     (4, 256, False, True, 60), (4, 256, True, False, 7)],
)  # fmt: skip
def test_pauses(num_devices: int, cluster_size: int, known: bool, renews: bool, pause_s: float) -> None:
    assert PlannedEnds().pause_s(num_devices, cluster_size, known, renews) == pause_s


@pytest.mark.parametrize(
    ("model", "batch_size", "device_type", "most"),
    [("bert", 384, "T4", 16), ("deepspeech2", 320, "T4", 32), ("deepspeech2", 640, "T4", 64), ("bert", 64, "A100", 8),
     ("bert", 128, "A100", 16), ("deepspeech2", 32, "A100", 32), ("resnet50", 256, "A100", 64), ("", 0, "A100", 64)],
)  # fmt: skip
def test_most_devices(model: str, batch_size: int, device_type: str, most: int) -> None:
    assert most_devices(model, batch_size, device_type) == most


def test_other_clocks_are_refused() -> None:
    with pytest.raises(FleetError, match="jobs can end as planned only under a policy that plans"):
        simulate_fleet([job("a", 0, 1, 100)], NODE, srtf(), rounds=PlannedEnds())
    assert ElasticFlowProgram().rounds(None) == PlannedEnds(60.0)
    assert ElasticFlowProgram().rounds(PlannedEnds(30.0)) == PlannedEnds(30.0)
    with pytest.raises(FleetError, match="give it no rounds"):
        ElasticFlowProgram().rounds(Rounds(60.0))
