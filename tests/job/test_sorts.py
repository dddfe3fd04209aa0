"""Sorts: each part of a batch does by itself those that are undone, and the step is that of plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from one_step import check_equal, plain, trained
from sorted_rows import COUPLED, EXPERTS, SEPARATE, Sorted, task_with
from test_split import plan_of
from torch import Tensor

from trainyard.job.task import Task


@pytest.mark.parametrize("use", SEPARATE)
def test_sorts_that_are_undone_are_done_by_each_part(use: Any) -> None:
    task = task_with(use)
    assert task.coupling is None
    for count in (1, 2, 8):
        check_equal(trained(task, plan_of(task, count)), plain(task.model))


@pytest.mark.parametrize("use", COUPLED)
def test_sorts_on_which_something_depends_are_of_the_whole_batch(use: Any) -> None:
    task = task_with(use)
    assert task.coupling is not None
    check_equal(trained(task, plan_of(task, 1)), plain(task.model))


ENDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "histc over one more": lambda e, _: torch.histc(e.float(), bins=EXPERTS, min=0, max=EXPERTS).cumsum(0),
    "one_hot": lambda e, _: F.one_hot(e, EXPERTS).sum(0).cumsum(0),
    "equal": lambda e, _: (e[:, None] == torch.arange(EXPERTS)).sum(0).cumsum(0, dtype=torch.int32),
    "scatter_add": lambda e, _: (
        torch.zeros(EXPERTS, dtype=torch.long).scatter_add(0, e, torch.ones_like(e)).cumsum(0)
    ),
    "index_add": lambda e, _: (
        torch.zeros(EXPERTS, dtype=torch.long).index_add(0, e, torch.ones_like(e)).cumsum(0)
    ),
    "searchsorted in order": lambda e, order: torch.searchsorted(e[order], torch.arange(EXPERTS), right=True),
    "searchsorted from 1": lambda e, _: torch.searchsorted(e.sort().values, torch.arange(1, EXPERTS + 1)),
    "bucketize": lambda e, _: torch.bucketize(torch.arange(EXPERTS), e.sort().values, right=True),
}
"""Where the tokens of each expert end, as mixtures compute it of the expert of each token and the order of a sort."""

WRONG_ENDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a capacity": lambda e, _: (
        torch.histc(e.float(), bins=EXPERTS, min=0, max=EXPERTS - 1).clamp(max=6).cumsum(0)
    ),
    "other bins": lambda e, _: torch.histc(e.float(), bins=EXPERTS, min=0, max=2 * EXPERTS).cumsum(0),
    "backwards": lambda e, _: F.one_hot(e, EXPERTS).flip(1).sum(0).cumsum(0),
    "twos": lambda e, _: (
        torch.zeros(EXPERTS, dtype=torch.long)
        .scatter_add(0, e, torch.full_like(e, 2))
        .cumsum(0)
        .clamp(max=len(e))
    ),
    "equal to others": lambda e, _: (e[:, None] == torch.arange(1, EXPERTS + 1)).sum(0).cumsum(0),
    "from the left": lambda e, _: torch.searchsorted(e.sort().values, torch.arange(EXPERTS)),
    "half of them": lambda e, _: F.one_hot(e[: len(e) // 2], EXPERTS).sum(0).cumsum(0) * 2,
}
"""Ends that are not those of the experts' tokens."""


def with_ends(ends: Callable[[Tensor, Tensor], Tensor]) -> Task:
    def use(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
        order = expert.argsort(stable=True)
        found = F.grouped_mm(tokens[order], m.weight, offs=ends(expert, order).to(torch.int32))
        is_in_a_group = torch.arange(len(order)) < ends(expert, order)[-1]
        found = found.masked_fill(~is_in_a_group[:, None], 0.0) if ends in WRONG_ENDS.values() else found
        return torch.zeros_like(tokens).index_copy(0, order, found) * score[:, None]

    return task_with(use)


@pytest.mark.parametrize("form", ENDS)
def test_products_by_ends_are_split_however_the_ends_are_counted(form: str) -> None:
    task = with_ends(ENDS[form])
    assert task.coupling is None
    for count in (2, 8):
        check_equal(trained(task, plan_of(task, count)), plain(task.model))


@pytest.mark.parametrize("form", WRONG_ENDS)
def test_products_by_other_ends_are_of_the_whole_batch(form: str) -> None:
    task = with_ends(WRONG_ENDS[form])
    assert task.coupling is not None
    check_equal(trained(task, plan_of(task, 1)), plain(task.model))
