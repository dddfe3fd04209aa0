"""Uses of a sort: those that each part of a batch does by itself, and those of which the whole batch is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.job.task import Task
from trainyard.program.model import Model

ROWS, LENGTH, WIDTH, EXPERTS = 8, 4, 8, 3


class Sorted(nn.Module):
    """Tokens in the order of the expert that each chooses, and what is done with them."""

    def __init__(self, use: Callable[[Sorted, Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / 3)
        self.by_place = nn.Parameter(torch.randn(ROWS * LENGTH, WIDTH))
        self.longer = nn.Parameter(torch.randn(2 * ROWS * LENGTH, WIDTH))
        self.last = nn.Linear(WIDTH, WIDTH)
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        score, expert = self.router(tokens).softmax(-1).max(-1)
        return self.use(self, tokens, score, expert)

    def compute(self, tokens: Tensor, experts: Tensor) -> Tensor:
        return torch.bmm(tokens[:, None], self.weight[experts])[:, 0].tanh()


def put_back_by_inverse(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    experts, order = expert.sort()
    return m.compute(tokens[order], experts)[order.argsort()] * score[:, None]


def put_back_by_scatter(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    order = expert.argsort(descending=True)
    found = m.compute(tokens[order], expert[order]) * score[order, None]
    return torch.zeros_like(tokens).scatter(0, order[:, None].expand(-1, WIDTH), found)


def put_back_by_gather(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    order = expert.argsort(stable=True)
    chosen = order[:, None].expand(-1, WIDTH)
    found = m.compute(tokens.gather(0, chosen), expert.gather(0, order))
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order))
    return found.gather(0, inverse[:, None].expand(-1, WIDTH)) * score[:, None]


def added_up(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    order = expert.argsort()
    found = m.compute(tokens.index_select(0, order), expert.index_select(0, order))
    return tokens.index_add(0, order, found * score[order][:, None])


def two_places_of_a_token(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    scores, experts = m.router(tokens).softmax(-1).topk(2, -1)
    order = experts.flatten().argsort()
    found = m.compute(tokens[order // 2], experts.flatten()[order])
    return torch.zeros_like(tokens).index_add(0, order // 2, found * scores.flatten()[order, None])


def by_ends(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    experts, order = expert.sort()
    ends = torch.searchsorted(experts, torch.arange(EXPERTS), right=True).to(torch.int32)
    return F.grouped_mm(tokens[order], m.weight, offs=ends)[order.argsort()] * score[:, None]


def by_counts(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    order = expert.argsort()
    counts = torch.histc(expert.float(), bins=EXPERTS, min=0, max=EXPERTS - 1)
    found = F.grouped_mm(tokens[order], m.weight, offs=counts.cumsum(0).to(torch.int32))
    return torch.zeros_like(tokens).index_copy(0, order, found) * score[:, None]


def as_in_torchtitan(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    scores, experts = m.router(tokens).softmax(-1).topk(2, -1)
    counts = torch.histc(experts.view(-1).float(), bins=EXPERTS, min=0, max=EXPERTS)
    order = torch.argsort(experts.view(-1), stable=True)
    scores = scores.view(-1)[order]
    index = (order // 2).reshape(-1, 1).expand(-1, WIDTH)
    routed = torch.gather(tokens, 0, index) * scores[:, None]
    found = F.grouped_mm(routed, m.weight, offs=torch.cumsum(counts, 0, dtype=torch.int32))
    return torch.zeros_like(tokens).scatter_add(0, index, found)


def judged_in_order(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Any:
    """What is computed in order adds to the loss by its mean, whose gradient is alike at all places."""
    order = score.argsort()
    found = m.compute(tokens[order], expert[order])
    return tokens.index_add(0, order, found), found.square().mean()


SEPARATE = (
    judged_in_order,
    as_in_torchtitan,
    by_ends,
    by_counts,
    put_back_by_inverse,
    put_back_by_scatter,
    put_back_by_gather,
    added_up,
    two_places_of_a_token,
)


def place_matters(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    order = expert.argsort()
    found = m.compute(tokens[order], expert[order]) * m.by_place
    return torch.zeros_like(tokens).index_copy(0, order, found)


def beside_rows(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    """Sorted tokens beside those that are not."""
    return tokens * m.compute(tokens[score.argsort()], expert)


def numbers_are_values(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    order = expert.argsort()
    found = m.compute(tokens[order], expert[order]) * order[:, None].float().cos()
    return torch.zeros_like(tokens).index_copy(0, order, found)


def with_a_capacity(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    """Of each expert's tokens of the whole batch the first ones."""
    experts, order = expert.sort(stable=True)
    starts = torch.searchsorted(experts, torch.arange(EXPERTS))
    is_kept = torch.arange(len(order)) - starts[experts] < 6
    found = m.compute(tokens[order], experts) * is_kept[:, None]
    return torch.zeros_like(tokens).index_copy(0, order, found)


def summed_up_to_a_place(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    order = expert.argsort(stable=True)
    found = m.compute(tokens[order], expert[order]).cumsum(0)
    return torch.zeros_like(tokens).index_copy(0, order, found)


def first_half(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    order = score.argsort()[: ROWS * LENGTH // 2]
    return tokens.index_add(0, order, m.compute(tokens[order], expert[order]))


def never_put_back(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    order = score.argsort()
    return m.compute(tokens[order], expert[order])


def the_next_place(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    order = score.argsort()
    found = m.compute(tokens[order], expert[order]).roll(1, 0)
    return torch.zeros_like(tokens).index_copy(0, order, found)


def put_at_the_place(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    """Rows go to their places, and places are taken for rows."""
    order = score.argsort()
    return tokens.index_copy(0, order, m.compute(tokens, expert))[order]


def two_sorts(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    order, other = expert.argsort(), score.argsort()
    found = m.compute(tokens[order], expert[order]) + tokens[other]
    return torch.zeros_like(tokens).index_copy(0, order, found)


def sorted_after_the_product(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    counts = torch.histc(expert.float(), bins=EXPERTS, min=0, max=EXPERTS - 1)
    found = F.grouped_mm(tokens, m.weight, offs=counts.cumsum(0).to(torch.int32))
    order = expert.argsort()
    return found + tokens.index_add(0, order, m.compute(tokens[order], expert[order]))


def some_in_no_group(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    experts, order = torch.where(score > 0.4, expert, -1).sort()
    ends = torch.searchsorted(experts, torch.arange(EXPERTS), right=True).to(torch.int32)
    found = F.grouped_mm(tokens[order], m.weight, offs=ends) * (experts >= 0)[:, None]
    return found[order.argsort()] * score[:, None]


def by_ends_of_others(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    """Each expert computes as many rows as it has tokens in the first half."""
    experts = expert[: len(expert) // 2].sort().values
    ends = torch.searchsorted(experts, torch.arange(EXPERTS), right=True).to(torch.int32)
    ends = torch.cat([ends[:-1], ends.new_full((1,), len(tokens))])
    return F.grouped_mm(tokens, m.weight, offs=ends) * score[:, None]


def in_order_of_the_order(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    order = score.argsort()
    found = m.compute(tokens[order], expert[order])[order]
    return torch.zeros_like(tokens).index_copy(0, order, found)


def rows_at_places(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    return m.compute(tokens, expert) * tokens[score.argsort().argsort()]


def rows_written_at_numbers(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    return torch.zeros_like(tokens).index_copy(0, score.argsort(), m.compute(tokens, expert))


def looked_up_in_a_longer_table(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    order = expert.argsort()
    found = m.compute(tokens[order], expert[order]) * m.longer[order]
    return torch.zeros_like(tokens).index_copy(0, order, found)


def a_third_of_the_numbers(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    order = expert.argsort()
    found = m.compute(tokens[order], expert[order]) * (order % 3 == 0)[:, None]
    return torch.zeros_like(tokens).index_copy(0, order, found)


def numbers_within_the_batch(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    order = expert.argsort()
    found = m.compute(tokens[order], expert[order]) * (order % len(order))[:, None]
    return torch.zeros_like(tokens).index_copy(0, order, found)


def the_inverse_backwards(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    experts, order = expert.sort()
    return m.compute(tokens[order], experts)[order.argsort(descending=True)] * score[:, None]


def places_added_to_a_table(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    experts, order = expert.sort()
    places = torch.full_like(order, -1).index_add(0, order, torch.arange(len(order)))
    return m.compute(tokens[order], experts)[places] * score[:, None]


def numbers_as_truths(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    experts, order = expert.sort()
    return m.compute(tokens[order], experts)[order.bool().argsort(stable=True)] * score[:, None]


def places_through_a_view(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    """Right in parts, too; the numbers that count are not followed through a view."""
    experts, order = expert.sort()
    counted = torch.arange(len(order)).view(ROWS, LENGTH).flatten()
    return m.compute(tokens[order], experts)[torch.empty_like(order).scatter(0, order, counted)]


def sorted_in_two_dimensions(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    experts, order = expert.sort()
    inverse = order[:, None].expand(-1, WIDTH).argsort(0)
    return m.compute(tokens[order], experts).gather(0, inverse) * score[:, None]


def put_at_numbers_after_a_mask(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    """Rules of one op for a mask and for numbers, on equal shapes."""
    masked, put = tokens.clone(), tokens.clone()
    masked[expert > 1] = 0
    put[expert] = 0
    return masked + put + m.compute(tokens, expert)


def one_place_of_a_token(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
    """Of the two places of a token the last one in order counts."""
    order = m.router(tokens).topk(2, -1).indices.flatten().argsort(stable=True)
    found = m.compute(tokens, expert)[order // 2] * (order % 2)[:, None]
    return torch.zeros_like(tokens).index_copy(0, order // 2, found)


COUPLED = (
    in_order_of_the_order,
    rows_at_places,
    one_place_of_a_token,
    the_inverse_backwards,
    places_added_to_a_table,
    numbers_as_truths,
    places_through_a_view,
    sorted_in_two_dimensions,
    put_at_numbers_after_a_mask,
    rows_written_at_numbers,
    looked_up_in_a_longer_table,
    a_third_of_the_numbers,
    numbers_within_the_batch,
    by_ends_of_others,
    sorted_after_the_product,
    some_in_no_group,
    place_matters,
    beside_rows,
    numbers_are_values,
    with_a_capacity,
    summed_up_to_a_place,
    first_half,
    never_put_back,
    the_next_place,
    put_at_the_place,
    two_sorts,
)


def task_with(use: Callable[[Sorted, Tensor, Tensor, Tensor], Tensor]) -> Task:
    generator = torch.Generator().manual_seed(1)
    batch = {name: torch.randn(ROWS, LENGTH, WIDTH, generator=generator) for name in "xy"}

    def loss(module: nn.Module, batch: Any) -> Tensor:
        found = module(batch["x"])
        found, more = found if isinstance(found, tuple) else (found, 0.0)
        return F.mse_loss(found, batch["y"].flatten(0, 1)) + more

    return Task(Model(use.__name__, Sorted(use), loss, batch))
