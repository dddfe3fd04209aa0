"""Mixtures of experts: each part of a batch sorts its own tokens, and the step is that of plain PyTorch."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from mixtures import CONFIGS, mixture
from one_step import check_equal, plain, trained
from test_cases import FOLDER
from test_split import plan_of
from torch import Tensor, nn

from trainyard.job.lower.shard import shard
from trainyard.job.task import Task
from trainyard.program import spmd
from trainyard.program.model import Model
from trainyard.program.placement import PARTIAL, Placement, Shard
from trainyard.program.propagate import Axis
from trainyard.zoo import build
from trainyard.zoo.common import next_token_loss, token_batch
from trainyard.zoo.decoder import Decoder, DecoderConfig
from trainyard.zoo.mixture import MixtureConfig

ROWS, LENGTH, WIDTH, EXPERTS = 8, 4, 8, 3


@cache
def task_of(name: str) -> Task:
    return Task(mixture(name))


@pytest.mark.parametrize("name", CONFIGS)
def test_microbatches_add_up(name: str) -> None:
    task = task_of(name)
    assert task.coupling is None
    wanted = plain(task.model)
    for count in (1, 4):
        check_equal(trained(task, plan_of(task, count)), wanted)


@pytest.mark.parametrize(
    "config",
    [
        MixtureConfig(4, 2, 24),
        MixtureConfig(8, 2, 24, "sigmoid", scale=2.5, groups=4, top_groups=2, choice_bias=True, shared=40),
        MixtureConfig(4, 2, 24, bounded=True),
    ],
    ids=["mixtral", "deepseek", "gpt-oss"],
)
def test_mixtures_of_the_zoo_are_trained(config: MixtureConfig) -> None:
    sizes = DecoderConfig(64, 16, 1, 32, 4, 2, 64, mixture=config)
    torch.manual_seed(0)
    task = Task(Model("mixture", Decoder(sizes), next_token_loss, token_batch(4, 16, 64)))
    assert task.coupling is None
    for count in (1, 4):
        check_equal(trained(task, plan_of(task, count)), plain(task.model))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_as_transformers_writes_it_is_the_model_of_the_zoo(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    config.architectures = [type(task_of(name).model.module).__name__]
    config.save_pretrained(tmp_path)
    ours, theirs = build(str(tmp_path / "config.json"), 4).module, task_of(name).model.module
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    assert Task(build(str(tmp_path / "config.json"), 4)).coupling is None


def test_a_mixture_of_ones_own_has_the_loss_of_plain_pytorch() -> None:
    case = runpy.run_path(str(FOLDER / "experts_by_sort.py"))
    torch.manual_seed(0)
    task = Task(Model("experts", case["module"](), case["loss"], case["data"](1)))
    wanted = plain(task.model)
    assert wanted[0] == pytest.approx(1.541835, abs=1e-6)
    for count in (1, 2, 4, 8):
        check_equal(trained(task, plan_of(task, count)), wanted)


@pytest.mark.parametrize("name", CONFIGS)
def test_data_parallel_ranks_send_no_tokens(name: str) -> None:
    program = task_of(name).program(4)
    wanted: dict[str, Placement] = {i.path: Shard(0) for i in program.inputs if i.kind == "batch"}
    wanted |= {f"grad:{o.path}": PARTIAL for o in program.outputs if o.kind == "grad"}
    local = shard(program, Axis("data", 2), wanted).program
    moved = [n for n in local.graph.nodes if n.target in spmd.COLLECTIVES]
    assert all(n.target is spmd.all_reduce and n.meta["val"].dim() == 0 for n in moved)


@pytest.mark.parametrize("name", ["mixtral", "gpt-oss"])
def test_a_balance_loss_is_refused_by_its_name(name: str) -> None:
    model = mixture(name)
    model.module.config.output_router_logits = True  # type: ignore[union-attr]
    coupling = Task(model).coupling
    assert coupling is not None
    assert coupling.startswith(
        "in load_balancing_loss_func, a part of the loss, a sum over all rows is needed"
    )


class Sorted(nn.Module):
    """Tokens in the order of the expert that each chooses, and what is done with them."""

    def __init__(self, use: Callable[[Sorted, Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / 3)
        self.by_place = nn.Parameter(torch.randn(ROWS * LENGTH, WIDTH))
        self.longer = nn.Parameter(torch.randn(2 * ROWS * LENGTH, WIDTH))
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
