"""Functions that capture writes as other ops: they compute what PyTorch's own compute."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trainyard.program.tracing.by_rows import windows
from trainyard.program.tracing.replaced_calls import ReplacedCalls

SIZES = st.integers(1, 5)


@settings(max_examples=300, derandomize=True, database=None)
@given(
    shape=st.lists(SIZES, min_size=1, max_size=3),
    view=st.lists(st.tuples(SIZES, st.sampled_from([0, 1, 2, 3, 5, 10, 25])), max_size=4),
    offset=st.integers(0, 9),
)
def test_a_view_of_ranges_and_windows_has_the_elements_of_its_strides(
    shape: list[int], view: list[tuple[int, int]], offset: int
) -> None:
    x = torch.arange(torch.Size(shape).numel()).view(shape)
    found = windows(x, [n for n, _ in view], [s for _, s in view], offset)
    if found is not None:
        wanted = x.as_strided([n for n, _ in view], [s for _, s in view], offset)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        assert found.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_windows_that_run_over_rows_are_no_view_of_dimensions() -> None:
    x = torch.zeros(4, 60)
    assert windows(x, (4, 10, 12), (60, 5, 1), 0) is not None
    assert windows(x, (4, 10, 20), (60, 5, 1), 0) is None
    assert windows(x, (20, 12), (5, 1), 0) is None
    assert windows(x.T, (60, 4), (1, 60), 0) is None


@pytest.mark.parametrize("options", [{}, {"mode": "sum"}, {"mode": "max"}])
@pytest.mark.parametrize("padding", [None, 1, -2])
def test_bags_are_those_of_pytorch(options: dict[str, str], padding: int | None) -> None:
    index = torch.tensor([[0, 1, 2], [1, 1, 1], [4, 4, 4], [3, 0, 4]])
    weight = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def run() -> tuple[Tensor, Tensor]:
        found = F.embedding_bag(index, weight, padding_idx=padding, **options)
        return found, torch.autograd.grad((found * torch.arange(4)).sum(), weight)[0]

    wanted = run()
    with ReplacedCalls():
        found = run()
    torch.testing.assert_close(found, wanted)


def test_what_pytorch_refuses_of_bags_stays_refused() -> None:
    weight, index = torch.zeros(6, 4), torch.zeros(2, 3, dtype=torch.int64)
    with ReplacedCalls(), pytest.raises(ValueError, match="offsets"):
        F.embedding_bag(index, weight, torch.tensor([0]))
    with ReplacedCalls(), pytest.raises(ValueError, match="mode"):
        F.embedding_bag(index, weight, mode="median")
