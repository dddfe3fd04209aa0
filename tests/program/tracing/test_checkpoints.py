"""``torch.utils.checkpoint`` in a model: the same step, whose plan recomputes what is checkpointed."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_capture import model_of, run_graph
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from trainyard.job.planning import plan
from trainyard.program.capture import capture


class Block(nn.Module):
    """Two layers and dropout; within, they may be checkpointed."""

    def __init__(self, within: bool) -> None:
        super().__init__()
        self.up, self.down, self.within = nn.Linear(6, 8), nn.Linear(8, 6), within

    def forward(self, x: Tensor) -> Tensor:
        return x + (checkpoint(self.inner, x, use_reentrant=False) if self.within else self.inner(x))

    def inner(self, x: Tensor) -> Tensor:
        return F.dropout(self.down(torch.tanh(self.up(x))), 0.3)


class Blocks(nn.Module):
    """Four blocks, run in a way that may checkpoint them."""

    def __init__(self, run: Any = None, within: bool = False) -> None:
        super().__init__()
        self.blocks, self.run = nn.Sequential(*(Block(within) for _ in range(4))), run

    def forward(self, x: Tensor) -> Tensor:
        if self.run is None:
            return self.blocks(x)
        if self.run is checkpoint_sequential:
            return checkpoint_sequential(self.blocks, 2, x, use_reentrant=False)
        for block in self.blocks:
            x = self.run(block, x)
        return x


def nested(block: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(lambda y: checkpoint(block, y, use_reentrant=False) * 1.0, x, use_reentrant=False)


PLAIN = Blocks()
WAYS = {
    "as it is": (Blocks(partial(checkpoint, use_reentrant=False)), 4),
    "reentrant": (Blocks(partial(checkpoint, use_reentrant=True)), 4),
    "nested": (Blocks(nested), 4),
    "within the blocks": (Blocks(within=True), 4),
    "several at once": (Blocks(checkpoint_sequential), 1),
}


@pytest.mark.parametrize("way", WAYS)
def test_checkpointed_functions_are_captured_once_and_recomputed(way: str) -> None:
    module, regions = WAYS[way]
    plain = model_of(PLAIN)
    wanted = run_graph(capture(plain), plain)
    model = model_of(module)
    program = capture(model)
    found = run_graph(program, model)
    assert set(found) == set(wanted)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)

    inside = [n for n in program.graph.nodes if "checkpoint" in n.meta]
    assert len({n.meta["checkpoint"] for n in inside}) == regions
    assert all(n.meta["phase"] == "forward" for n in inside)
    # All products and dropouts but those whose results leave a region.
    again = program.addresses.names(program.recompute)
    leaving = {n.name for n in inside if n.meta["address"] not in again}
    assert len(leaving) == regions
    assert all(any("checkpoint" not in u.meta or u.meta["checkpoint"] != n.meta["checkpoint"] for u in n.users)
               for n in inside if n.name in leaving)  # fmt: skip


def test_the_plan_recomputes_what_the_model_checkpoints() -> None:
    model = model_of(WAYS["as it is"][0])
    planned = plan(model, "1x2xA100-80G", "data_parallel").plan
    assert planned.recomputed >= capture(model).recompute
    assert planned.recomputed
    assert "What the model checkpoints" in planned.explain()
