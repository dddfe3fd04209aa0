"""Facts about a plan before it runs: for the terminal, for JSON, and as a contender in a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from trainyard.cost.ops import Sources
from trainyard.job.plan import Plan
from trainyard.job.planning import Infeasible, Planned
from trainyard.job.setting import RunnerUp
from trainyard.job.simulation.result import Simulation
from trainyard.job.sizes import per_second_text
from trainyard.program.patterns import in_words
from trainyard.report.league import Contender
from trainyard.report.tables import make_table
from trainyard.report.units import bytes_text, percent_text, seconds_text

__all__ = [
    "RUNNER_UP_COLUMNS",
    "contender_of",
    "does_not_fit",
    "fullest_rank",
    "mesh_text",
    "planned_document",
    "runner_up_rows",
    "runners_up_table",
    "simulation_document",
    "simulation_facts",
    "source_facts",
]

RUNNER_UP_COLUMNS = ("plan", "step", "to best", "memory per device", "how known")
_SHOWN_RANKS = 8
_SHOWN_OF_EACH = 3
_TOO_LOW_PEAK = "not known: a step does more than the devices' peak as the cluster gives it, which is too low"
_MEASURE_AGAIN = (
    "; it was measured, perhaps while other work had the cores: measure again when the machine is quiet "
    "(trainyard hardware local --measure)"
)


def mesh_text(plan: Plan) -> str:
    """A plan in a few words: its mesh and what is special about it."""
    parts = [plan.mesh_text]
    if plan.pipeline > 1:
        parts.append(plan.schedule.name)
    if plan.num_microbatches > 1:
        parts.append(f"{plan.num_microbatches} microbatches")
    if plan.state.divided:
        parts.append(f"divides {plan.state.divided_text}")
    if plan.recomputed:
        parts.append(f"recomputes {in_words(plan.recomputed, 1)}")
    return ", ".join(parts)


def simulation_facts(simulation: Simulation) -> tuple[tuple[str, str], ...]:
    """Time and memory of a step, by name; memory of one line per pipeline rank and its peers."""
    parts = sorted(((s, name) for name, s in simulation.breakdown.items() if s > 0), reverse=True)
    time = ", ".join(f"{name.replace('_', ' ')} {percent_text(s / simulation.step_s)}" for s, name in parts)
    return (
        ("step time", f"{seconds_text(simulation.step_s)} ({per_second_text(simulation.rows_per_s)} rows/s)"),
        ("of which", time),
        ("MFU", _mfu_text(simulation)),
        *_memory_facts(simulation),
        *source_facts(simulation.sources),
    )


def _mfu_text(simulation: Simulation) -> str:
    if simulation.plausible_mfu is not None:
        return percent_text(simulation.plausible_mfu)
    is_measured = simulation.plan.cluster.partition(":")[0] == "local"
    return _TOO_LOW_PEAK + _MEASURE_AGAIN * is_measured


def _some(texts: Sequence[str], between: str) -> str:
    """The first few of them."""
    return between.join((*texts[:_SHOWN_OF_EACH], *["..."] * (len(texts) > _SHOWN_OF_EACH)))


def source_facts(sources: Sources | None) -> list[tuple[str, str]]:
    """Return facts about the sources of the seconds of ops; nothing if all were measured on a quiet machine."""
    facts = []
    if sources is not None and sources.estimated:
        count = len(sources.estimated)
        reasons: dict[str, dict[str, None]] = {}
        for signature, why in sources.estimated.items():
            reasons.setdefault(why, {})[signature.partition("(")[0]] = None
        shown = [f"{_some(list(names), ', ')}: {why}" for why, names in reasons.items()]
        total = count + sources.num_measured
        facts.append(("estimated", f"{count} of {total} ops instead of measured: {_some(shown, '; ')}"))
    if sources is not None and sources.num_disturbed:
        text = f"{sources.num_disturbed} of {sources.num_measured} ops while other work had the cores; they are measured "
        facts.append(("measured", text + "again when the machine is quiet"))
    return facts


def _memory_facts(simulation: Simulation) -> list[tuple[str, str]]:
    facts = []
    order = sorted(range(len(simulation.memory)), key=lambda rank: -simulation.peak_bytes[rank])
    for rank in sorted(order[:_SHOWN_RANKS]):
        kinds = sorted(((n, kind) for kind, n in simulation.memory[rank].items() if n), reverse=True)
        made_of = ", ".join(f"{kind} {bytes_text(n)}" for n, kind in kinds)
        used = (
            f"{bytes_text(simulation.peak_bytes[rank])} of {bytes_text(simulation.memory_limit_bytes[rank])}"
        )
        where = "per device" if len(order) == 1 else f"on pipeline rank {rank}"
        short = simulation.shortage_bytes[rank]
        missing = f" DOES NOT FIT: {bytes_text(short)} are missing" if short else ""
        facts.append((f"memory {where}", f"{used}: {made_of}{missing}"))
    for share in simulation.shares:
        where = "" if len(order) == 1 else f" on pipeline rank {share.pipeline}"
        used = f"{bytes_text(share.peak_bytes)} of {bytes_text(share.limit_bytes)}"
        facts.append((f"with {share.parts}{where}", used))
    if len(order) > _SHOWN_RANKS:
        facts.append(("", f"and {len(order) - _SHOWN_RANKS} pipeline ranks that use less"))
    return facts


def does_not_fit(plan: Plan, simulation: Simulation) -> str:
    """Say that a plan does not fit, by how much, and what would help; empty if it fits."""
    if simulation.fits:
        return ""
    return f"this plan of {plan.model} does not fit on {plan.cluster}: {simulation.shortage}"


def runners_up_table(candidates: Sequence[RunnerUp], best: Simulation) -> Table:
    """The plans that were considered and are not the best.

    Parameters
    ----------
    candidates
        In the order of the planner.
    best
        Of the chosen plan.
    """
    return make_table("also considered", RUNNER_UP_COLUMNS, runner_up_rows(candidates, best))


def runner_up_rows(candidates: Sequence[RunnerUp], best: Simulation) -> tuple[tuple[str, ...], ...]:
    """Rows of `runners_up_table`."""
    limit_bytes = min(best.memory_limit_bytes)
    return tuple(
        (
            each.name,
            seconds_text(each.step_s),
            f"{each.step_s / best.step_s:.2f}x",
            bytes_text(each.memory_bytes) + ("" if each.memory_bytes <= limit_bytes else ", too much"),
            "simulated" if each.is_simulated else "estimated",
        )
        for each in candidates
    )


def simulation_document(simulation: Simulation) -> dict[str, Any]:
    """A simulation as JSON has it; lists have one entry per pipeline rank."""
    return {
        "step_s": simulation.step_s,
        "rows_per_s": simulation.rows_per_s,
        "mfu": simulation.plausible_mfu,
        "fits": simulation.fits,
        "breakdown_s": simulation.breakdown,
        "exposed_s": simulation.exposed,
        "memory_bytes": simulation.memory,
        "peak_bytes": simulation.peak_bytes,
        "allocated_bytes": simulation.tensor_bytes,
        "reserved_bytes": simulation.reserved_bytes,
        "memory_limit_bytes": simulation.memory_limit_bytes,
        "shares": [share._asdict() for share in simulation.shares],
        "num_bytes": simulation.num_bytes,
        "model_flops": simulation.model_flops,
        "ops": None if simulation.sources is None else asdict(simulation.sources),
    }


def planned_document(planned: Planned) -> dict[str, Any]:
    """A plan with its prediction as JSON has it; ``plan`` is the text that ``--save`` writes."""
    plan = planned.plan
    return {
        "model": plan.model,
        "cluster": plan.cluster,
        "made_by": plan.made_by,
        "pipeline": plan.pipeline,
        "mesh": dict(plan.mesh.sizes),
        "schedule": plan.schedule.name,
        "num_microbatches": plan.num_microbatches,
        "divided": plan.state.divided,
        "dtype": plan.dtype,
        "reasons": plan.reasons,
        "planning_s": planned.seconds,
        "fits": planned.simulation.fits,
        "prediction": simulation_document(planned.simulation),
        "runners_up": [vars(candidate) for candidate in planned.runners_up],
        "plan": plan.to_text(),
    }


def fullest_rank(simulation: Simulation) -> int:
    """The pipeline rank whose memory is used most, relative to what it has."""
    peaks, limits = simulation.peak_bytes, simulation.memory_limit_bytes
    return max(range(len(peaks)), key=lambda rank: peaks[rank] / limits[rank])


def contender_of(name: str, found: Planned | Infeasible) -> Contender:
    """A result of ``compare`` as a row of the league table."""
    if isinstance(found, Infeasible):
        return Contender(name, found.reason)
    simulation = found.simulation
    rank = fullest_rank(simulation)
    memory: Mapping[str, int] = {kind: n for kind, n in simulation.memory[rank].items() if n > 0}
    return Contender(
        name,
        mesh_text(found.plan),
        simulation.step_s,
        {part: s for part, s in simulation.breakdown.items() if s > 0},
        memory,
        simulation.memory_limit_bytes[rank],
        simulation.fits,
        simulation.plausible_mfu,
        simulation.shortage,
    )
