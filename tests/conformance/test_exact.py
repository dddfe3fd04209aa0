"""One representative of every entry trains as eager PyTorch does, on real processes."""

import pytest
import torch
from cases import ROWS, plan_of
from exactness import _trained, _whole, run_eager, train_rank, worst
from torch.utils import _pytree as pytree

from trainyard.job.catalog import CATALOG
from trainyard.job.lower.lower import lower
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.run.processes.fork_server import run_ranks

RELATIVE = 1e-5
OPTIMIZER = OptimizerConfig("sgd", lr=0.05, momentum=0.9, weight_decay=0.1)

# One per entry, on two processes; with what the paper combines it with.
FAST = {
    "data_parallel": ("gpt-tiny", "data_parallel(bucket_bytes=20000)"),
    "zero": ("gpt-tiny", "zero(stage=3)"),
    "gpipe": ("vgg-tiny", "gpipe(stages=2, microbatches=4)"),
    "megatron": ("gpt-tiny", "megatron(tensor=2, pipeline=1, microbatch_rows=4)"),
    "sequence_parallel": (
        "gpt-tiny",
        "megatron(tensor=2, pipeline=1, microbatch_rows=8) + sequence_parallel",
    ),
    "selective_recompute": (
        "gpt-tiny",
        "megatron(tensor=1, pipeline=2, microbatch_rows=4) + selective_recompute",
    ),
    "expert_parallel": ("moe-tiny", "expert_parallel"),
    "sublinear": ("resnet-tiny", "sublinear(segments=3)"),
    "auto": ("vgg-tiny", "auto + sublinear"),
}
SLOW = [
    ("gpt-tiny", 4, "megatron(tensor=2, pipeline=2) + sequence_parallel + selective_recompute"),
    ("bert-tiny", 2, "megatron(tensor=2, pipeline=1) + sequence_parallel"),
    ("gpt-tiny", 2, "megatron(tensor=1, pipeline=1, stages_per_rank=2) + sublinear(budget_bytes=0)"),
    ("dlrm-tiny", 4, "data_parallel(degree=2) + gpipe(stages=2) + zero(stage=2)"),
    ("resnet-tiny", 4, "data_parallel(degree=2) + gpipe(stages=2)"),
]
LONG = [
    ("llama-tiny", 4, "megatron(tensor=2, pipeline=1, data=2) + sequence_parallel + zero(stage=1)"),
    ("moe-tiny", 4, "megatron(tensor=2, pipeline=1, data=2) + expert_parallel"),
    ("moe-tiny", 4, "expert_parallel(degree=2) + gpipe(stages=2, microbatches=2)"),
]


def test_every_entry_that_runs_is_run() -> None:
    assert set(FAST) == {entry.name for entry in CATALOG if entry.runs}
    for name, (_, strategies) in FAST.items():
        assert name in strategies


@pytest.mark.parametrize("name", FAST)
def test_trains_as_eager(name: str) -> None:
    model, strategies = FAST[name]
    _compare(model, strategies, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "num_devices", "strategies"),
    [*SLOW, *(pytest.param(*case, marks=pytest.mark.long) for case in LONG)],
)
def test_combination_trains_as_eager(model: str, num_devices: int, strategies: str) -> None:
    _compare(model, strategies, num_devices)


def _compare(model: str, strategies: str, num_devices: int) -> None:
    setting, plan = plan_of(strategies, model, f"1x{num_devices}xA100-80G")
    program = setting.task.program(plan.rows_per_microbatch)
    answers = run_ranks(plan.num_ranks, train_rank, plan.to_text(), OPTIMIZER)
    lowered = lower(program, plan)
    parts = {plan.rank_at(where): pytree.tree_map(torch.from_numpy, found) for where, found, _ in answers}
    wanted = run_eager(model, ROWS, 1, OPTIMIZER)
    for which, expected in ((0, wanted.grads), (1, wanted.params)):
        found = {path: _whole(lowered, parts, which, path) for path in _trained(program)}
        difference, where = worst(found, expected)
        assert difference < RELATIVE, f"{('gradient', 'parameter')[which]} {where} is off by {difference:.1e}"
    for result, losses in zip(answers[0][2], wanted.losses, strict=True):
        assert result.losses["loss:loss"] == pytest.approx(losses["loss:loss"], rel=RELATIVE)
