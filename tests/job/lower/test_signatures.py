"""What ops are said to hold, by the library that moves their messages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from exactness import Cell, _plan_of, task_of

from trainyard.job.lower.lower import lower
from trainyard.job.lower.signatures import rank_context, signature
from trainyard.program import spmd


@pytest.mark.parametrize("style", ["sequence", "columns"])
def test_gloo_copies_what_it_gathers_and_what_it_reduces_and_scatters(style: str) -> None:
    plan = _plan_of(cell := Cell("gpt-tiny", tensor=2, tensor_style=style))
    lowered = lower(task_of(cell.model, cell.rows, cell.dtype).program(cell.rows), plan)
    gloo = rank_context(lowered, 0, "gloo")
    nodes = [n for s in lowered.stages[0].segments.values() for n in s.graph.nodes]
    starts = [n for n in nodes if n.target in spmd.STARTS.values()]
    copied = {n: signature(n, gloo).working_bytes for n in starts}
    for node, there in ((n, signature(n, replace(gloo, library="nccl"))) for n in starts):
        message = there.message
        assert message is not None
        staged = message.num_bytes if message.kind in ("all_gather", "reduce_scatter") else 0
        assert copied[node] - there.working_bytes == staged
    assert {signature(n, gloo).message.kind for n in starts} >= {"all_gather", "reduce_scatter"}
