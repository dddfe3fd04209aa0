"""What ops are said to hold, by the library that moves their messages."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from exactness import Cell, _plan_of, task_of
from torch import fx

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


@pytest.mark.parametrize(
    ("shape", "dim", "blocks", "expected"),
    [((4, 6), 0, 1, True), ((4, 6), 1, 1, False), ((1, 4, 6), 1, 1, True), ((1, 6), 1, 3, False)],
)
def test_parts_that_lie_one_after_the_other_are_not_copied(
    shape: tuple[int, ...], dim: int, blocks: int, expected: bool
) -> None:
    """As the executor finds it: what is cut along a dimension and put first is the memory that was there, or a copy."""
    graph = fx.Graph()
    source = graph.placeholder("x")
    source.meta["val"] = x = torch.arange(24 if 4 in shape else 6).view(shape)
    start = graph.call_function(spmd.start_reduce_scatter, (source, "data", dim, blocks))
    assert spmd.is_in_place(start) is expected
    cut = x.unflatten(dim, (blocks, 2, shape[dim] // (blocks * 2))).movedim(dim + 1, 0).contiguous()
    assert (cut.data_ptr() == x.data_ptr()) is expected
