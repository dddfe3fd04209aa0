"""Compiled code next to the simulator that takes every step in Python: the same run, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from step_by_step import MIXED, by_steps, check_same, crowded

from trainyard.fleet.catalog import parse_policy
from trainyard.fleet.errors import FleetError
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.mechanism.hazards import Hazards
from trainyard.fleet.place.nodes import PLACEMENTS
from trainyard.fleet.policy_wrapper import PolicyWrapper
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.simulation import compiled_events, compiled_run
from trainyard.fleet.simulation.run_progress import ProgressCheck
from trainyard.fleet.traits import Traits, traits_of
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster

# Every policy that decides in compiled code, with options that change what it says. Each of the slow ones is compiled.
POLICIES = (
    "fifo", "fifo(backfill=True)", "las", "tiresias", "tiresias(thresholds=(600.0, 3000.0), promote_knob=2.0)",
    "tiresias(two_dimensional=False, pack_limit=0.05)",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("sjf", "srtf", "srtf(by_device_time=True)", "las(by_device_time=True)")
    ),
)  # fmt: skip


@pytest.fixture
def returns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Moments that were over whenever compiled code gave back."""
    found: list[int] = []
    run = compiled_run.CompiledRun.run

    def noted(self: compiled_run.CompiledRun, clock: compiled_events.Clock) -> int:
        why = run(self, clock)
        found.append(clock.num_moments)
        return why

    monkeypatch.setattr(compiled_run.CompiledRun, "run", noted)
    return found


@pytest.mark.parametrize("place", ["consolidated", "anywhere", "spread"])
@pytest.mark.parametrize("policy", POLICIES)
def test_compiled_code_is_the_same_run(policy: str, place: str, returns: list[int]) -> None:
    """On two types of devices, with starts that take time, under every policy and placement."""
    given = crowded(), MIXED, parse_policy(policy)
    options = {"place": place, "costs": Costs(restart_s=30.0, start_s=10.0)}
    run = simulate_fleet(*given, **options)
    assert returns[-1] > 300  # it went all the way
    check_same(run, by_steps(*given, **options))
    assert len(run.names) == 300
    if parse_policy(policy).preempts:
        assert run.num_preemptions > 0


def drawn(rng: np.random.Generator) -> tuple[list[Job], Cluster]:
    """Jobs that come together, of no work, or on one type only; and a small cluster."""
    kinds = ("V100", "K80")[: rng.integers(1, 3)]
    cluster = Cluster.of_pools(
        [(kind, int(rng.integers(1, 4)), int(rng.choice((1, 2, 8)))) for kind in kinds]
    )
    jobs, now_s = [], 0.0
    for number in range(rng.integers(30, 150)):
        now_s += float(rng.choice((0.0, 0.0, 1.0, rng.exponential(10.0))))
        types = (str(rng.choice(kinds)),) if rng.random() < 0.3 else ()
        most = max(int(cluster.devices_of_type[cluster.device_types.index(kind)]) for kind in types or kinds)
        length_s = float(rng.choice((0.0, 1.0, rng.exponential(50.0), rng.exponential(200.0))))
        model = str(rng.choice(("vgg16", "resnet50")))
        size = int(rng.integers(1, most + 1))
        jobs.append(declared_job(f"job{number}", now_s, size, length_s, device_types=types, model=model))
    return jobs, cluster


@pytest.mark.parametrize("seed", range(40))
def test_drawn_workloads_are_the_same_run(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(
        ProgressCheck, "look_every", 1000
    )  # small clusters may be busy with starts for a while
    given = *drawn(rng), parse_policy(str(rng.choice([each for each in POLICIES if isinstance(each, str)])))
    costs = Costs(restart_s=float(rng.choice((0.0, 3.0))), start_s=float(rng.choice((0.0, 2.0))))
    options = {"place": str(rng.choice(list(PLACEMENTS))), "costs": costs}
    check_same(simulate_fleet(*given, **options), by_steps(*given, **options))


@pytest.mark.parametrize("policy", ["fifo", "las", "tiresias"])
def test_it_gives_back_where_a_job_needs_python(policy: str, returns: list[int]) -> None:
    """Also one that comes together with others, of which some came by the compiled_run."""
    cluster = parse_cluster("4x8")
    for special in (160, 161, 162):
        jobs = crowded()
        jobs = [replace(job, device_types=()) for job in jobs]
        jobs[special] = replace(jobs[special], num_devices=1, gang=(1,))
        returns.clear()
        run = simulate_fleet(jobs, cluster, parse_policy(policy))
        assert 20 < returns[-1] < run.num_decisions
        check_same(run, by_steps(jobs, cluster, parse_policy(policy)))


@pytest.mark.parametrize("policy", ["fifo", "las", "tiresias"])
def test_processors_and_memory_are_counted_on_the_way(policy: str, returns: list[int]) -> None:
    cluster, jobs = parse_cluster("4x8@32cpu,64GB"), [replace(job, device_types=()) for job in crowded()]
    jobs = [replace(job, cpus=5.0 * job.num_devices) if i % 3 == 0 else job for i, job in enumerate(jobs)]
    run = simulate_fleet(jobs, cluster, parse_policy(policy))
    assert returns[-1] >= run.num_decisions  # moments, of which some need no decision
    check_same(run, by_steps(jobs, cluster, parse_policy(policy)))


@pytest.mark.parametrize("policy", ["fifo", "srtf", "tiresias"])
def test_partitions_are_heeded_on_the_way(policy: str, returns: list[int]) -> None:
    nodes = (("a", frozenset({0, 1})), ("b", frozenset({1, 2, 3})))
    cluster = replace(parse_cluster("4x8"), partitions=nodes)
    jobs = [
        replace(job, device_types=(), virtual_cluster=("a", "b", "")[i % 3])
        for i, job in enumerate(crowded())
    ]
    run = simulate_fleet(jobs, cluster, parse_policy(policy))
    assert returns[-1] >= run.num_decisions
    check_same(run, by_steps(jobs, cluster, parse_policy(policy)))


def test_a_policy_that_decides_in_python_decides_nowhere_else(returns: list[int]) -> None:
    for policy in (
        "srtf(steady=True)",
        "tiresias(samples=(100.0, 900.0))",
        "gandiva",
    ):
        simulate_fleet(crowded(60), MIXED, parse_policy(policy))
        assert not returns


def test_charts_and_failures_need_decisions_in_python(returns: list[int]) -> None:
    simulate_fleet(crowded(60), MIXED, parse_policy("las"), keep_spans=True)
    hazards = Hazards(failure_every_s=1e9)
    simulate_fleet(crowded(60), MIXED, parse_policy("las"), hazards=hazards)
    assert not returns


@dataclass
class Changed(PolicyWrapper):
    """A policy that decides otherwise in compiled code."""

    changes: dict[str, Any]

    @property
    def traits(self) -> Traits:
        traits = traits_of(self.policy)
        assert traits.compiled is not None
        return replace(traits, compiled=traits.compiled._replace(**self.changes))


def test_policies_that_go_wrong_are_refused_there_too() -> None:
    las = parse_policy("las")
    _, key = traits_of(las).compiled.options
    with pytest.raises(FleetError, match="give a later time"):
        simulate_fleet(crowded(), MIXED, Changed(las, {"options": (0.0, key)}))
    with pytest.raises(FleetError, match="times in a row and did no work"):
        simulate_fleet(crowded(), MIXED, parse_policy("las"), costs=Costs(restart_s=60.0))
    late = crowded()
    late[200] = replace(late[200], arrival_s=0.0)
    with pytest.raises(FleetError, match="in the order of their arrival"):
        simulate_fleet(late, MIXED, las)
