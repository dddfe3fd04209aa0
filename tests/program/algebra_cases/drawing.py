"""Drawing arguments at random, and the register of what to draw for which op."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from trainyard.program.algebra.indexing import COUNTERS


class Draw:
    """Sizes, choices and random tensors of one example."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000), "seed"))

    def pick(self, *options: Any) -> Any:
        return self.data.draw(st.sampled_from(options))

    def size(self) -> int:
        return int(self.pick(1, 2, 3, 4, 6, 8))

    def shape(self, low: int = 1, high: int = 4) -> list[int]:
        return [self.size() for _ in range(self.data.draw(st.integers(low, high), "rank"))]

    def dim(self, rank: int) -> int:
        return self.data.draw(st.integers(-rank, rank - 1), "dim")

    def real(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def with_dim(self) -> tuple[Tensor, int]:
        """A tensor and one of its dimensions."""
        x = self.real(*self.shape())
        return x, self.dim(x.dim())

    def index(self, below: int, *shape: int) -> Tensor:
        return torch.randint(0, below, shape, generator=self.generator)


Case = Callable[[Draw], tuple[Any, ...]]
"""Draws the arguments of one op; a dictionary at the end holds keyword arguments."""

CASES: dict[Any, Case] = {}
NOT_DRAWN = {
    operator.getitem: "takes a tuple apart; propagation handles it itself",
    torch.ops.aten.empty_like.default: "its values mean nothing; the rule is that of zeros_like",
    **dict.fromkeys(COUNTERS, "whole, unless it counts the places of a sort (tests of mixtures)"),
}


def case(*targets: Any) -> Callable[[Case], Case]:
    """Register what draws arguments for some ops."""

    def register(function: Case) -> Case:
        for target in targets:
            CASES[target] = function
        return function

    return register
