"""Plans for the tiny GPT on a few ranks, and what a test trains it with."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from made_plan import made_plan

from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Plan
from trainyard.job.run.config import TrainConfig
from trainyard.job.run.step.data import TextData
from trainyard.job.schedules import make_schedule
from trainyard.job.task import Task
from trainyard.program.addresses import address
from trainyard.program.placement import parse_placement
from trainyard.program.program import Program
from trainyard.zoo.registry import build

ROWS = 8
MODEL = partial(build, "gpt-tiny", ROWS)
DATA_SOURCE = TextData(ROWS, 16, 128)
# One update must not depend on the rounding of a gradient that is zero but for it, as AdamW's would without this.
OPTIMIZER = OptimizerConfig(lr=1e-2, eps=1e-4)

_MEGATRON = {"qkv": "S0/3", "up": "S0", "out.weight": "S1", "down.weight": "S1"}


@cache
def program(microbatches: int, dtype: str) -> Program:
    return Task(MODEL(), dtype).program(ROWS // microbatches)


def plan(
    data: int = 1,
    tensor: int = 1,
    pipeline: int = 1,
    microbatches: int = 2,
    per_rank: int = 1,
    schedule: str = "one_f_one_b",
    zero: int = 0,
    recompute: bool = False,
    dtype: str = "float32",
) -> Plan:
    """A plan by its sizes; the tensor axis cuts as Megatron-LM does."""
    captured = program(microbatches, dtype)
    forward = [n for n in captured.graph.nodes if n.op == "call_function" and n.meta["phase"] == "forward"]
    stages = pipeline * per_rank
    paths = [i.path for i in captured.params]
    cut = {path: parse_placement(text) for path in paths for part, text in _MEGATRON.items() if part in path}
    again = {address(n) for n in forward if n.target is torch.ops.aten.gelu.default} if recompute else ()
    return made_plan(
        captured,
        ROWS,
        make_schedule(schedule, pipeline, microbatches, per_rank),
        data=data,
        tensor=tensor,
        starts=[address(forward[len(forward) * i // stages]) for i in range(1, stages)],
        placed={"tensor": cut} if tensor > 1 else {},
        recompute=again,
        zero=zero,
        bucket_bytes=40_000,
        dtype=dtype,
    )


def config(steps: int, checkpoint: Path | None = None, **options: Any) -> TrainConfig:
    """A run of some steps with the tests' optimizer."""
    return TrainConfig(steps, **{"optimizer": OPTIMIZER, "checkpoint": checkpoint, **options})
