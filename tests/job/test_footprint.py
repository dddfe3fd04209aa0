"""What is counted as kept before anything is lowered, against the memory of what the lowering makes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from trainyard.hardware.parse import parse_cluster
from trainyard.job.auto.build import recomputed
from trainyard.job.catalog import parse_strategies
from trainyard.job.footprint import kept_bytes
from trainyard.job.lower.lower import lower
from trainyard.job.simulation.memory import stage_memory
from trainyard.job.task import Setting, Task, apply
from trainyard.zoo import build

TENSOR = "megatron(tensor=2, pipeline=1, data=2, microbatch_rows=2)"


@cache
def task_of(name: str) -> Task:
    return Task(build(name, 8))


@pytest.mark.parametrize("kind", ["none", "selective", "full"])
@pytest.mark.parametrize(
    ("name", "strategies"),
    [
        ("llama-tiny", "data_parallel"),
        ("bert-tiny", TENSOR),
        ("gpt-tiny", f"{TENSOR} + sequence_parallel"),
        ("moe-tiny", "expert_parallel"),
        ("resnet-tiny", "zero(stage=3)"),
    ],
)
def test_kept_bytes_are_what_the_forward_segment_leaves(name, strategies, kind):
    setting = Setting(task_of(name), parse_cluster("1x4xA100-80G"))
    plan = apply(parse_strategies(strategies), setting)
    program = setting.task.program(plan.rows_per_microbatch)
    again = recomputed(program, kind)
    lowered = lower(program, replace(plan, recompute=again))
    left = stage_memory(lowered, lowered.stages[0]).actions["F"].kept
    assert kept_bytes(lowered.program, again) == left > 0
