"""Apply a lowered plan to the same model on batches of another length, over the same parameters and their state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trainyard.job.lower.calls import rank_pairs
from trainyard.job.lower.lower import Lowered, lower
from trainyard.job.plan import PlanError
from trainyard.program.program import Program, tensor_of

__all__ = ["lower_at_length"]

_REMEDY = "Leave the size out of lengths, or take strategies that do not cut sequences, such as data_parallel or gpipe"


def lower_at_length(lowered: Lowered, program: Program, size: int) -> Lowered:
    """Apply a plan that was applied to the longest batches, so that one rank can run steps of both lengths in turn.

    Parameters
    ----------
    program : of the same model on batches of a smaller size.

    Raises
    ------
    PlanError
        If the plan cannot be applied, or ranks would keep other parts of the model than for the longest batches.
    """
    plan = replace(lowered.plan, fingerprint=program.fingerprint)
    try:
        found = lower(program, plan, lowered.optimizer)
    except PlanError as error:
        raise PlanError(
            f"the plan of the longest batches cannot be applied at length {size}: {error}. {_REMEDY}"
        ) from error
    for longest, shorter in zip(lowered.variants, found.variants, strict=True):
        own = dict(_state(shorter))
        unlike = [what for what, value in _state(longest) if own[what] != value]
        if unlike:
            raise PlanError(
                f"the plan of the longest batches cannot be applied at length {size}: ranks would keep other "
                f"{unlike[0]}. {_REMEDY}"
            )
    return found


def _state(lowered: Lowered) -> Iterator[tuple[str, Any]]:
    """Yield each thing that steps of all lengths must have in common, after its name for a message."""
    program, plan = lowered.program, lowered.plan
    kept = [entry for entry in program.inputs if entry.kind in ("param", "buffer")]
    slots = [[slot for seg in stage.segments.values() for slot in seg.inputs] for stage in lowered.stages]
    slots += [[] if segment is None else list(segment.inputs) for segment in lowered.totals]
    pairs = [
        (t, pair) for t in lowered.transfers for pair in rank_pairs(plan.schedule, t) if pair[0] != pair[1]
    ]
    yield "parameters", lowered.params
    yield "buckets of parameters", [(stage.buckets, stage.frozen) for stage in lowered.stages]
    yield "types of parameters or buffers", {e.path: tensor_of(program.nodes[e.node]).dtype for e in kept}
    yield "parts of buffers", [{e.path: of[e.path] for e in kept} for of in lowered.inputs]
    yield (
        "parameters or buffers",
        [{(s.kind, s.name) for s in of if s.kind in ("param", "buffer")} for of in slots],
    )
    yield "losses, metrics or changed buffers", sorted(lowered.results)
    yield "pairs of ranks that send", {peers for t, pair in pairs for peers in t.peers(plan, *pair)}
