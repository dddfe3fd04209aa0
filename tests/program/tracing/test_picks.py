"""Picking places in each row: the same values, in ops that show that rows are apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from trainyard.program.tracing.simplify import simplify

aten = torch.ops.aten
ROWS = torch.arange


def _traced(do: Callable[..., Tensor], *given: Tensor) -> fx.GraphModule:
    graph_module = make_fx(do, tracing_mode="fake")(*given)
    for node in graph_module.graph.nodes:
        node.meta |= {"phase": "forward", "layer": "", "position": 0}
    simplify(graph_module.graph)
    graph_module.recompile()
    return graph_module


PICKS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "one place": lambda x, at: x[ROWS(3), at[:, 0]],
    "several places": lambda x, at: x[ROWS(3)[:, None], at],
    "nothing behind": lambda x, at: x[..., 0][ROWS(3), at[:, 1]],
    "a number put": lambda x, at: aten.index_put(x, [ROWS(3), at[:, 0]], torch.zeros(())),
    "values put": lambda x, at: aten.index_put(x, [ROWS(3)[:, None], at], x[:, :2] * 2),
    "values added": lambda x, at: aten.index_put(x, [ROWS(3), at[:, 0]], x[:, 1], True),
}


@pytest.mark.parametrize("name", PICKS)
def test_picks_are_gathered_and_scattered(name: str) -> None:
    x, at = torch.randn(3, 4, 2), torch.tensor([[0, -1], [3, 2], [-4, 1]])
    graph_module = _traced(PICKS[name], x, at)
    assert not {aten.index.Tensor, aten.index_put.default} & {n.target for n in graph_module.graph.nodes}
    torch.testing.assert_close(graph_module(x, at), PICKS[name](x, at), rtol=0, atol=0)
    with pytest.raises((IndexError, RuntimeError), match=r"out of (bounds|range)"):
        graph_module(x, at + 5)


@pytest.mark.parametrize("rows", [ROWS(3).flip(0), ROWS(3) * 1])
def test_other_rows_stay_looked_up(rows: Tensor) -> None:
    x, at = torch.randn(3, 4), torch.tensor([0, 3, 1])
    graph_module = _traced(lambda x, rows, at: x[rows, at], x, rows, at)
    assert aten.index.Tensor in {n.target for n in graph_module.graph.nodes}


def test_constants_do_not_read_a_tensor() -> None:
    graph_module = _traced(lambda x: x.new_zeros(2) + x.new_full((2,), 3.0) + x.new_ones(2), torch.randn(5))
    assert not next(iter(graph_module.graph.nodes)).users
    assert graph_module(torch.randn(5)).tolist() == [4.0, 4.0]
