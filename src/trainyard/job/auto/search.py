"""The search: probe every sharding, estimate every point, simulate the best as they would run.

Within its space the search is exhaustive by the estimate: every point is estimated, none is sampled. What is
approximate is the estimate, so the best few are lowered and simulated, and the best of those is the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from trainyard.cost.ops import OpSeconds
from trainyard.engine.simulate import load
from trainyard.job.auto.build import build
from trainyard.job.auto.estimate import Estimate, estimate
from trainyard.job.auto.forked import can_differentiate, map_forked
from trainyard.job.auto.probes import Probes
from trainyard.job.auto.space import RECOMPUTES, SCHEDULES, Point, Sharding, degrees, microbatch_rows
from trainyard.job.lower.lower import Lowered, lower
from trainyard.job.plan import Plan, PlanError
from trainyard.job.simulate import Simulation, simulate_plan
from trainyard.job.task import Setting

Progress = Callable[[str, float], None]
"""Told what is being done and how much of it is done, in [0, 1]."""

Pricing = Callable[[Lowered], OpSeconds]
"""Op times for a lowered plan: measured where that is possible."""

_MAX_ROWS = 8
_MAX_TENSOR = 16
# Lowering is the slow part. What is simulated is bounded by ops, not by time, so that a search repeats.
_MAX_SIMULATED_OPS = 24_000
_MAX_SIMULATED = 8
_MIN_SIMULATED = 3
# The estimate leaves out fragmentation and what the framework itself holds.
_USABLE_MEMORY = 0.92


@dataclass(frozen=True)
class RunnerUp:
    """A point that is not the plan.

    Attributes
    ----------
    step_s, memory_bytes : simulated where ``is_simulated``, else estimated.
    """

    name: str
    step_s: float
    memory_bytes: int
    is_simulated: bool


@dataclass(frozen=True, eq=False)
class Found:
    """What the search found.

    Attributes
    ----------
    num_points : that were estimated; ``num_fitting`` of them have the memory.
    """

    plan: Plan
    simulation: Simulation
    runners_up: tuple[RunnerUp, ...]
    num_points: int
    num_fitting: int


def search(setting: Setting, seconds: OpSeconds, pricing: Pricing, tell: Progress) -> Found:
    """Find the fastest plan of the space that fits.

    Parameters
    ----------
    seconds : of ops, for the probes; ``pricing`` for the candidates that are simulated.

    Raises
    ------
    PlanError
        If nothing fits: says how much is short and what would make it fit.
    """
    estimates = _estimate_all(setting, Probes(setting, seconds), tell)
    capacity = int(setting.cluster.device(0).memory_bytes * _USABLE_MEMORY)
    fitting = sorted((e for e in estimates if e.memory_bytes <= capacity), key=lambda e: e.step_s)
    if not fitting:
        raise PlanError(_what_is_short(setting, estimates, capacity))
    simulated = _simulate(setting, fitting, pricing, tell)
    best = min(simulated, key=lambda c: (not c.simulation.fits, c.simulation.step_s))
    others = _runners_up(fitting, simulated, best)
    reasons = (
        f"Chosen: {best.estimate.point}.",
        f"The fastest of {len(estimates)} plans: all of the space of degrees, microbatches, schedules, recomputation "
        f"and ZeRO stages, of which {len(fitting)} fit; the best {len(simulated)} by estimate were simulated.",
        *(f"Next: {r.name}: {r.step_s / best.simulation.step_s - 1:+.1%}." for r in others[:3]),
    )
    plan, simulation = best.plan, best.simulation
    plan = replace(plan, made_by=("auto",), reasons=reasons)
    return Found(plan, simulation, tuple(others[:10]), len(estimates), len(fitting))


def _grid(setting: Setting, probes: Probes) -> Iterator[tuple[int, int, Sharding]]:
    cluster = setting.cluster
    experts = probes.has_experts
    most = min(_MAX_TENSOR, cluster.num_devices // cluster.num_nodes)
    for pipeline, data, tensor in degrees(cluster.num_devices, most, probes.num_blocks):
        for rows in microbatch_rows(setting.task.num_rows, data, _MAX_ROWS):
            for expert in (False, True) if experts and data > 1 else (False,):
                for sequence in (False, True) if tensor > 1 else (False,):
                    yield pipeline, data, Sharding(tensor, sequence, expert, data if expert else 1, rows)


def _estimate_all(setting: Setting, probes: Probes, tell: Progress) -> list[Estimate]:
    """Estimates of all points, in the order of the grid; processes share the work by what they capture."""
    places: dict[Sharding, list[tuple[int, int, int]]] = {}
    for i, (pipeline, data, sharding) in enumerate(_grid(setting, probes)):
        places.setdefault(sharding, []).append((i, pipeline, data))

    def estimates_of(shardings: list[Sharding]) -> dict[int, list[Estimate]]:
        probes.probe(shardings)
        return {
            i: _estimates(setting, probes, pipeline, data, sharding)
            for sharding in shardings
            for i, pipeline, data in places[sharding]
        }

    found: dict[int, list[Estimate]] = {}
    groups = probes.groups(places)
    tell("probing the blocks of the model", 0.0)
    forks = can_differentiate()
    parts = map_forked(estimates_of, groups, load) if forks else map(estimates_of, groups)
    for done, part in enumerate(parts, 1):
        found |= part
        tell(f"{sum(map(len, found.values()))} plans estimated", 0.6 * done / len(groups))
    return [estimate for i in sorted(found) for estimate in found[i]]


def _estimates(
    setting: Setting, probes: Probes, pipeline: int, data: int, sharding: Sharding
) -> list[Estimate]:
    found = []
    count = setting.task.num_rows // (data * sharding.rows)
    weight_bytes = 4 if setting.task.dtype == "float32" else 2
    for recompute in RECOMPUTES:
        for schedule, per_rank in SCHEDULES if pipeline > 1 else (("gpipe", 1),):
            stages = probes.stages(sharding, recompute, pipeline * per_rank)
            if stages is None or (per_rank > 1 and count % pipeline):
                continue
            for zero_stage in (0, 1, 2, 3) if data > 1 else (0,):
                point = Point(sharding, pipeline, data, count, schedule, per_rank, recompute, zero_stage)
                found.append(estimate(point, stages, setting.cluster, weight_bytes))
    return found


@dataclass(frozen=True, eq=False)
class _Candidate:
    estimate: Estimate
    plan: Plan
    simulation: Simulation


def _simulate(
    setting: Setting, fitting: list[Estimate], pricing: Pricing, tell: Progress
) -> list[_Candidate]:
    """Lower and simulate the best by estimate, until none of the others can be expected to be better."""
    found: list[_Candidate] = []
    num_ops = 0
    for i, candidate in enumerate(fitting):
        tell(f"simulating {candidate.point}", 0.6 + 0.4 * i / _MAX_SIMULATED)
        plan = build(setting, candidate)
        program = setting.task.program(plan.rows_per_microbatch)
        lowered = lower(program, plan)
        found.append(_Candidate(candidate, plan, simulate_plan(lowered, setting.cluster, pricing(lowered))))
        num_ops += len(program.nodes)
        if not any(c.simulation.fits for c in found):
            continue
        if len(found) == _MAX_SIMULATED or num_ops + len(program.nodes) > _MAX_SIMULATED_OPS:
            break
        if len(found) >= _MIN_SIMULATED and _none_better(found, fitting[len(found) :]):
            break
    return found


def _none_better(found: list[_Candidate], rest: list[Estimate]) -> bool:
    """Whether the others are slower even if the estimate is as wrong for them as it was for any so far."""
    least = min(c.simulation.step_s / c.estimate.step_s for c in found)
    best_s = min(c.simulation.step_s for c in found if c.simulation.fits)
    return not rest or rest[0].step_s * least >= best_s


def _runners_up(fitting: list[Estimate], simulated: list[_Candidate], best: _Candidate) -> list[RunnerUp]:
    """The simulated ones, then the next by estimate, scaled by how the estimate was wrong for the best."""
    scale = best.simulation.step_s / best.estimate.step_s
    others = [
        RunnerUp(str(c.estimate.point), c.simulation.step_s, c.simulation.peak_memory_bytes, True)
        for c in sorted(simulated, key=lambda c: c.simulation.step_s)
        if c is not best
    ]
    others += [
        RunnerUp(str(e.point), e.step_s * scale, e.memory_bytes, False) for e in fitting[len(simulated) :]
    ]
    return others


def _what_is_short(setting: Setting, estimates: list[Estimate], capacity: int) -> str:
    name, cluster = setting.task.model.name, setting.cluster
    if not estimates:
        return (
            f"{name} has no plan on {cluster.name}: a batch of {setting.task.num_rows} rows divides over none of the "
            f"meshes of {cluster.num_devices} devices; use a batch that is a multiple of {cluster.num_devices}"
        )
    least = min(estimates, key=lambda e: e.memory_bytes)
    times = least.memory_bytes / capacity
    return (
        f"{name} does not fit on {cluster.name}: the plan with the least memory ({least.point}) needs "
        f"{least.memory_bytes / 2**30:.1f} GiB on a device, of which {capacity / 2**30:.1f} GiB can be used. Use about "
        f"{times:.1f} times as many devices, devices with more memory, or fewer rows"
    )
