"""Routing to experts, against a plain loop over tokens."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.zoo.moe import route


def routed_by_hand(logits: torch.Tensor, top: int, capacity: int) -> torch.Tensor:
    """Choice after choice, token after token: take the next slot of the expert if there is one."""
    gates = logits.softmax(-1)
    rows, length, experts = gates.shape
    combine = torch.zeros(rows, length, experts, capacity, dtype=gates.dtype)
    for r in range(rows):
        used = [0] * experts
        order = gates[r].argsort(-1, descending=True)
        for choice in range(top):
            for t in range(length):
                expert = int(order[t, choice])
                total = gates[r, t, order[t, :top]].sum() if top > 1 else 1.0
                if used[expert] < capacity:
                    combine[r, t, expert, used[expert]] = gates[r, t, expert] / total
                used[expert] += 1
    return combine


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 2), st.integers(1, 6), st.integers(2, 5))
def test_routes_as_the_loop(seed, top, capacity, experts):
    logits = torch.randn(2, 7, experts, generator=torch.Generator().manual_seed(seed))
    combine, _ = route(logits, top, capacity)
    assert torch.allclose(combine, routed_by_hand(logits, top, capacity), atol=1e-6)


def test_balance_is_one_when_even_and_the_number_of_experts_when_not():
    even = 50 * torch.eye(4).repeat(2, 1)[None]
    assert route(even, 1, 8)[1].item() == pytest.approx(1.0)
    skewed = torch.zeros(1, 8, 4)
    skewed[..., 2] = 50
    assert route(skewed, 1, 8)[1].item() == pytest.approx(4.0)
