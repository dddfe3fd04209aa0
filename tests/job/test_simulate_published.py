"""Simulated plans against published measurements; nothing is fitted to them."""

from __future__ import annotations

import pytest
import torch

from trainyard.hardware.parse import parse_cluster
from trainyard.job.catalog import parse_strategies
from trainyard.job.lower.lower import lower
from trainyard.job.simulate import simulate_plan
from trainyard.job.task import Setting, Task, apply
from trainyard.program.flops import program_flops
from trainyard.zoo import build


@pytest.mark.slow
def test_gpt3_on_64_a100_is_near_what_korthikanti_et_al_measured():
    """arXiv 2205.05198, table 5: 13.75 s and 51.4 % of the peak; figure 1 gives the activations."""
    with torch.device("meta"):
        model = build("megatron-175b", 64)
    cluster = parse_cluster("8x8xA100-80G")
    setting = Setting(Task(model, "bfloat16"), cluster)
    strategies = (
        "megatron(tensor=8, pipeline=8, data=1, microbatch_rows=1, stages_per_rank=3) + sequence_parallel "
        "+ selective_recompute"
    )
    plan = apply(parse_strategies(strategies), setting)
    program = setting.task.program(plan.rows_per_microbatch)
    found = simulate_plan(lower(program, plan), cluster, flops_per_microbatch=program_flops(program))
    assert found.fits
    assert found.mfu == pytest.approx(0.514, rel=0.15)
    assert found.step_s == pytest.approx(13.75, rel=0.15)
    assert found.memory[0]["activations"] / 2**30 == pytest.approx(12.35, rel=0.1)
