"""The search: probe every sharding, estimate every point, simulate the best as they would run.

Within its space the search is exhaustive by the estimate: every point is estimated, none is sampled. What is
approximate is the estimate, so the best few are lowered and simulated, and so are the published systems that could be
faster; the best of all these is the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from trainyard.job.auto.build import build
from trainyard.job.auto.estimate import Estimate
from trainyard.job.auto.nothing_fits import nothing_fits
from trainyard.job.auto.points import Estimates, estimate_all
from trainyard.job.auto.probes import Probes
from trainyard.job.auto.published import try_published
from trainyard.job.auto.trials import Trial, Trials, failed_text
from trainyard.job.plan import Plan, PlanError
from trainyard.job.setting import RunnerUp, Setting
from trainyard.reading import count_text

# Lowering is the slow part. What is simulated is bounded by ops, not by time, so that a search repeats.
_MAX_SIMULATED_OPS = 24_000
_MAX_SIMULATED = 8
_MIN_SIMULATED = 3


def search(setting: Setting) -> Plan:
    """Find the fastest plan that fits, of the space and of the published systems, and report the next best.

    Raises
    ------
    DoesNotFitError
        If nothing fits: says how much is short and what would make it fit.
    PlanError
        If the batch cannot be divided over the cluster's devices.
    """
    capacity = _capacity_bytes(setting)
    probes = Probes(setting)
    estimates = estimate_all(setting, probes, capacity)
    if not estimates.points:
        raise PlanError(_divides_nowhere(setting, estimates))
    fitting = sorted((e for e in estimates.points if e.memory_bytes <= capacity), key=lambda e: e.step_s)
    trials = Trials(setting)
    _simulate(setting, fitting, trials)
    failures, num_own = tuple(trials.failures), len(trials.found)
    try_published(setting, trials)
    best = trials.best
    if best is None:
        raise nothing_fits(setting, probes, estimates, trials, capacity)
    others = _runners_up(fitting, trials, best)
    unfit = {t.name for t in trials.found if not t.simulation.fits}
    slower = [r for r in others if r.name not in unfit and r.step_s >= best.simulation.step_s]
    reasons = (
        f"Chosen: {best.name}.",
        _searched(estimates, fitting, trials.found[:num_own], trials.found[num_own:]),
        *estimates.left_out,
        *_not_simulated(others, best, capacity / trials.memory_ratio),
        *failed_text(failures),
        *_untried(trials.untried),
        *(f"Next: {r.name}: {r.step_s / best.simulation.step_s - 1:+.1%}." for r in slower[:3]),
    )
    setting.report(others[:10])
    return replace(best.plan, made_by=(), reasons=reasons)


def _capacity_bytes(setting: Setting) -> int:
    return min(device.usable_bytes for device in setting.cluster.devices)


def _simulate(setting: Setting, fitting: Sequence[Estimate], trials: Trials) -> None:
    """Lower and simulate the best by estimate, until none of the others can be expected to be better."""
    capacity = _capacity_bytes(setting)
    for i, candidate in enumerate(fitting):
        best, count = trials.best, len(trials.found)
        if best is not None:
            per_plan = trials.num_ops // count
            if count >= _MAX_SIMULATED or trials.num_ops + per_plan > _MAX_SIMULATED_OPS:
                break
            if count >= _MIN_SIMULATED and candidate.step_s * trials.time_ratio >= best.simulation.step_s:
                break
        elif count >= _MAX_SIMULATED:
            _try(setting, min(fitting[i:], key=lambda e: e.memory_bytes), trials)
            break
        if candidate.memory_bytes * trials.memory_ratio <= capacity:
            setting.progress(
                "simulating the best plans", f"{len(trials.found) + 1} of at most {_MAX_SIMULATED}"
            )
            _try(setting, candidate, trials)


def _try(setting: Setting, candidate: Estimate, trials: Trials) -> None:
    plan = trials.make(str(candidate.point), partial(build, setting, candidate))
    if plan is not None:
        trials.simulate(str(candidate.point), plan, candidate)


def _searched(
    estimates: Estimates, fitting: Sequence[Estimate], own: Sequence[Trial], published: Sequence[Trial]
) -> str:
    names = ", ".join(t.name for t in published)
    return (
        f"Fastest of the simulated plans. Considered: {len(estimates.points)} plans, all of the space of degrees, "
        f"microbatches, schedules, recomputation and ZeRO stages. Of these {len(fitting)} fit, and the best {len(own)} "
        "by estimate were simulated" + (f"; so were the published systems {names}." if published else ".")
    )


def _not_simulated(others: Sequence[RunnerUp], best: Trial, capacity: float) -> tuple[str, ...]:
    """Say that some plans may be faster than the best one, by the estimate.

    Parameters
    ----------
    capacity : bytes that a plan may need on a device by its estimate.
    """
    best_s = best.simulation.step_s
    faster = [r for r in others if not r.is_simulated and r.step_s < best_s and r.memory_bytes <= capacity]
    if not faster:
        return ()
    first = min(faster, key=lambda r: r.step_s)
    return (
        f"Not simulated: {len(faster)} plans that may be faster, by estimate at most {1 - first.step_s / best_s:.1%} "
        f"({first.name}).",
    )


def _untried(systems: Sequence[str]) -> tuple[str, ...]:
    return (f"Not simulated, because the model is so large: {', '.join(systems)}.",) if systems else ()


def _runners_up(fitting: Sequence[Estimate], trials: Trials, best: Trial) -> list[RunnerUp]:
    """The simulated ones that fit, then the next by estimate, scaled by how the estimate was wrong for our best."""
    simulated = sorted(trials.found, key=lambda t: (not t.simulation.fits, t.simulation.step_s))
    others = [
        RunnerUp(t.name, t.simulation.step_s, t.simulation.peak_memory_bytes, True)
        for t in simulated
        if t is not best
    ]
    own = [t for t in simulated if t.estimate is not None]
    scale = own[0].simulation.step_s / own[0].estimate.step_s if own and own[0].estimate is not None else 1.0
    known = {t.estimate.point for t in own if t.estimate is not None}
    others += [
        RunnerUp(str(e.point), e.step_s * scale, e.memory_bytes, False)
        for e in fitting
        if e.point not in known
    ]
    return others


def _divides_nowhere(setting: Setting, estimates: Estimates) -> str:
    num_devices = setting.cluster.num_devices
    return " ".join(
        (
            f"{setting.task.model.name} has no plan on {setting.cluster.name}: a batch of "
            f"{count_text(setting.task.num_rows, 'row')} divides over none of the meshes of {num_devices} devices; use a "
            f"batch that is a multiple of {num_devices}.",
            *estimates.left_out,
        )
    )
