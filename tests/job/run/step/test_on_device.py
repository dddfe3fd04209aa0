"""Kernels that run in place of those that were captured."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from trainyard.job.run.step.on_device import _is_flash, on_device
from trainyard.program.spmd import embed_part_backward

NUM_LOOKUPS = 2048  # a sum of ones in bfloat16 stands still at 256


def test_the_gradient_of_an_embedding_is_added_in_float32_on_the_cpu() -> None:
    class Backward(torch.nn.Module):
        def forward(self, grad: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
            return torch.ops.aten.embedding_dense_backward.default(grad, indices, 3, -1, False)

    traced = fx.symbolic_trace(Backward())
    grad, indices = (
        torch.ones(NUM_LOOKUPS, 2, dtype=torch.bfloat16),
        torch.ones(NUM_LOOKUPS, dtype=torch.int64),
    )
    found = on_device(traced, torch.device("cpu"))(grad, indices)
    assert found.dtype == torch.bfloat16
    assert found[:, 0].tolist() == [0.0, NUM_LOOKUPS, 0.0]


def test_so_are_those_of_the_weights_of_a_norm() -> None:
    class Backward(torch.nn.Module):
        def forward(self, grad: torch.Tensor, statistics: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            found = torch.ops.aten.native_layer_norm_backward.default(
                grad, grad, [2], statistics, statistics, weight, weight, [True] * 3
            )
            return found[2]

    grad = torch.ones(NUM_LOOKUPS, 2, dtype=torch.bfloat16)
    found = on_device(fx.symbolic_trace(Backward()), torch.device("cpu"))(
        grad, torch.ones(NUM_LOOKUPS, 1), torch.ones(2)
    )
    assert found.tolist() == [NUM_LOOKUPS] * 2


def test_so_is_that_of_a_part_of_the_table() -> None:
    indices = torch.full((NUM_LOOKUPS,), 5)
    found = embed_part_backward(torch.ones(NUM_LOOKUPS, 2, dtype=torch.bfloat16), indices, 4, 3, -1)
    assert found.dtype == torch.bfloat16
    assert found[:, 0].tolist() == [0.0, NUM_LOOKUPS, 0.0]


@pytest.mark.parametrize(
    ("dtype", "num_queries", "is_masked", "is_causal", "is_flash"),
    [
        (torch.bfloat16, 8, False, True, True),
        (torch.bfloat16, 4, False, False, True),
        (torch.bfloat16, 4, False, True, False),  # flash lets query i see key i + 4
        (torch.bfloat16, 8, True, False, False),
        (torch.float32, 8, False, True, False),
    ],
)
def test_flash_attention_is_taken_where_it_is_the_same(
    dtype: torch.dtype, num_queries: int, is_masked: bool, is_causal: bool, is_flash: bool
) -> None:
    q, k = (torch.zeros(1, 1, length, 16, dtype=dtype) for length in (num_queries, 8))
    assert _is_flash(q, k, torch.zeros(1, 1, 1, 8) if is_masked else None, is_causal) == is_flash


@pytest.mark.parametrize(
    ("width", "is_flash"), [(8, True), (256, True), (4, False), (20, False), (264, False)]
)
def test_flash_attention_takes_heads_of_whole_units(width: int, is_flash: bool) -> None:
    q = torch.zeros(1, 1, 8, width, dtype=torch.bfloat16)
    assert _is_flash(q, q, None, True) == is_flash
