"""What is counted as kept before anything is lowered, against the memory of what the lowering makes."""

from __future__ import annotations

import pytest
from captured import task_of, tiny

from trainyard.hardware.parse import parse_cluster
from trainyard.job.auto.build import recomputed
from trainyard.job.catalog import parse_strategies
from trainyard.job.lower.axes import shard_whole
from trainyard.job.lower.lower import lower
from trainyard.job.lower.resolve import resolve
from trainyard.job.lower.signatures import rank_context
from trainyard.job.planning import make_setting
from trainyard.job.setting import apply
from trainyard.job.simulation.memory import stage_memory
from trainyard.job.tabulate import layer_table

TENSOR = "megatron(tensor=2, pipeline=1, data=2, microbatch_rows=2)"


@pytest.mark.parametrize("kind", ["none", "selective", "full"])
@pytest.mark.parametrize(
    ("name", "strategies"),
    [
        ("llama", "data_parallel"),
        ("bert", TENSOR),
        ("gpt", f"{TENSOR} + sequence_parallel"),
        ("moe", "expert_parallel"),
        ("resnet", "zero(stage=3)"),
    ],
)
def test_kept_bytes_are_what_the_forward_segment_leaves(name, strategies, kind):
    setting = make_setting(task_of(tiny(name, 8)), parse_cluster("1x4xA100-80G"))
    plan = apply(parse_strategies(strategies), setting)
    program = setting.task.program(plan.rows_per_microbatch)
    again = recomputed(program, kind)
    lowered = lower(program, plan.with_recomputed(again))
    left = stage_memory(lowered, lowered.stages[0], rank_context(lowered, 0)).actions["F"].kept
    named = resolve(program, lowered.plan)
    layers = layer_table(shard_whole(program, named), lambda node: 0.0, named.recomputed)
    assert layers.kept_bytes.sum() == left > 0
