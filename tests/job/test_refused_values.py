"""A value that cannot be is refused where it is given, with what it is and what may be said in its place."""

from __future__ import annotations

import pytest
import torch
from small_models import wide

from trainyard.engine.builder import TaskGraphBuilder
from trainyard.hardware.devices import Efficiency
from trainyard.hardware.errors import HardwareError
from trainyard.hardware.interconnects import network_of_gbit
from trainyard.hardware.nodes import cube_mesh_node
from trainyard.hardware.parse import parse_cluster
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import PlanError
from trainyard.job.plan.read import parse_plan
from trainyard.job.planning import make_setting
from trainyard.job.run.config import TrainConfig
from trainyard.job.run.step.data import DataError, check_batch
from trainyard.job.schedule import Schedule, ScheduleError
from trainyard.job.schedules import check, dry_run, make_schedule
from trainyard.job.setting import apply
from trainyard.job.simulation.traces import measured_ops
from trainyard.job.strategies.memory.sublinear import sublinear
from trainyard.job.strategies.parallel.sequence_parallel import selective_recompute
from trainyard.job.task import Task
from trainyard.program.algebra.notation import parse
from trainyard.program.placement import parse_placement
from trainyard.reading.errors import ReadingError
from trainyard.reading.json_text import unique_keys
from trainyard.reading.section import Section
from trainyard.zoo.user import load_model_file

PAIR = make_schedule("one_f_one_b", 2, 2, 1)


def named_twice() -> TaskGraphBuilder:
    builder = TaskGraphBuilder()
    stream = builder.add_resource("stream", builder.add_device("gpu"))
    builder.add_task(1.0, resources=[stream, stream])
    return builder


def apply_alone(strategy) -> None:
    setting = make_setting(Task(wide(1, 2, 1)), parse_cluster("1x1xT4"))
    apply((("alone", strategy),), setting)


VALUES = {
    "optimizer": (
        lambda: OptimizerConfig(name="lion"), ValueError, r"unknown optimizer 'lion'; known: adamw, sgd;"),
    "weight decay": (
        lambda: OptimizerConfig(weight_decay=-0.5), ValueError, r"weight_decay cannot be negative, got -0\.5"),
    "betas": (
        lambda: OptimizerConfig(betas=(0.9, 1.0)), ValueError, r"betas are two numbers .* below 1, got \(0\.9, 1\.0\)$"),
    "momentum": (
        lambda: OptimizerConfig("sgd", momentum=2.0), ValueError, r"momentum is from 0 to 1, got 2"),
    "momentum of adamw": (
        lambda: OptimizerConfig(momentum=0.5), ValueError, r"momentum 0\.5 is of sgd, not of adamw"),
    "two kinds of clipping": (
        lambda: OptimizerConfig(clip_norm=1.0, clip_value=0.5), ValueError,
        r"clip_norm 1 and clip_value 0\.5 both cut"),
    "one pattern without a tuple": (
        lambda: OptimizerConfig(no_decay="1d"), TypeError, r"no_decay is a tuple of patterns, got '1d'; give \('1d',\)"),
    "a factor of a rate": (
        lambda: OptimizerConfig(lr_scale=(("head.*", -1.0),)), ValueError,
        r"a factor from 0, .* got \('head\.\*', -1\.0\)"),
    "schedule of the rate": (
        lambda: OptimizerConfig(lr_schedule="step"), ValueError,
        r"unknown lr_schedule 'step'; known: constant, linear, cosine, wsd, or a function of the step"),
    "least rate": (
        lambda: OptimizerConfig(lr_schedule="linear", min_lr_factor=2.0), ValueError,
        "min_lr_factor is from 0 to 1, got 2"),
    "least rate of a constant one": (
        lambda: OptimizerConfig(min_lr_factor=0.1), ValueError, r"min_lr_factor 0\.1 is of a rate that falls \(linear, "),
    "decay of an average": (
        lambda: OptimizerConfig(ema_decay=1.0), ValueError, "ema_decay is from 0 to below 1, got 1"),
    "decay of a cosine": (
        lambda: OptimizerConfig(lr_schedule="cosine", decay_steps=3), ValueError, r"decay_steps 3 are of wsd"),
    "more warm-up than steps": (
        lambda: OptimizerConfig(lr_schedule="wsd", lr_steps=9, warmup_steps=5, decay_steps=5), ValueError,
        r"has 9 steps \(lr_steps\), and 5 of warm-up and 5 of decay are more"),
    "steps": (
        lambda: TrainConfig(-1), ValueError, "steps cannot be negative, got -1"),
    "restarts": (
        lambda: TrainConfig(1, max_restarts=-2), ValueError, "max_restarts cannot be negative, got -2"),
    "stall": (
        lambda: TrainConfig(1, stall_s=0.0), ValueError, r"stall_s is more than 0, got 0\.0"),
    "part of a core": (
        lambda: TrainConfig(1, core_part=1.5), ValueError, r"core_part is more than 0 and at most 1, got 1\.5"),
    "checkpoints that are kept": (
        lambda: TrainConfig(1, keep=0), ValueError, "at least one checkpoint must be kept, got keep=0"),
    "device of a run": (
        lambda: TrainConfig(1, device="tpu"), ValueError, "unknown device 'tpu'; known: cpu, cuda"),
    "what is not finite": (
        lambda: TrainConfig(1, on_nonfinite="wait"), ValueError, "unknown on_nonfinite 'wait'; known: stop, skip"),
    "name of a schedule": (
        lambda: Schedule("my own", 2, 2, PAIR.actions), ValueError, "a schedule's name is one word, got 'my own'"),
    "a pass that is missing": (
        lambda: check(Schedule("own", 2, 2, (PAIR.actions[0][1:], PAIR.actions[1]))),
        ScheduleError, "0F0: missing; every stage runs every microbatch forward"),
    "seconds of a kind": (
        lambda: dry_run(PAIR, {"F": 1.0}), ValueError, r"B0 has kind 'B', but seconds are given only for \['F'\]"),
    "two budgets": (
        lambda: sublinear(segments=2, budget_bytes=1), PlanError, "either segments or budget_bytes, not both"),
    "no segments": (
        lambda: sublinear(segments=0), PlanError, "segments count from 1 and a budget from 0, got 0 and None"),
    "plan": (
        lambda: parse_plan("[1, 2]", "FILE"), PlanError, r"^FILE is not a plan: expected a mapping, got \[1, 2\]"),
    "rule": (
        lambda: parse("m k, k n"), ValueError, "'m k, k n' is no rule; write operands -> results"),
    "placement": (
        lambda: parse_placement("S0/0"), ValueError, "'?S0/0'? is no placement; write R"),
    "input": (
        lambda: Task(wide(1, 2, 1)).program(1).input_of("nobody"), KeyError, "wide has no input 'nobody'; it has "),
    "a batch without its rows": (
        lambda: check_batch({"batch.y": torch.zeros(1)}, Task(wide(1, 2, 1)).program(1), 1),
        DataError, "the data has no batch.x; it has batch.y"),
    "a batch of other rows": (
        lambda: check_batch({"batch.x": torch.zeros(3, 2)}, Task(wide(1, 2, 1)).program(1), 1),
        DataError, r"batch.x is torch.float32 \(3, 2\); the model was captured with"),
    "attention where there is none": (
        lambda: apply_alone(selective_recompute()), PlanError, "wide has no attention that selective_recompute"),
    "machine": (
        lambda: measured_ops([], parse_cluster("1x2xT4")), HardwareError, "is not this machine; .* on local:N only"),
    "share of a peak": (
        lambda: Efficiency(1.5, 0.0, 1.0, 0.0), HardwareError, r"max_matmul_fraction is 1\.5; allowed: a fraction in"),
    "half of a peak": (
        lambda: Efficiency(1.0, 0.0, 1.0, -3.0), HardwareError, r"half_memory_bytes is -3\.0; allowed: zero or more"),
    "a cube of nine": (
        lambda: cube_mesh_node(9, 1, network_of_gbit(100.0)), HardwareError,
        "a hybrid cube mesh of 9 GPUs; allowed: 1 to 8; use switched_node"),
    "rate of a network": (
        lambda: network_of_gbit(-1.0), HardwareError, r"network rate is -1\.0 Gb/s; allowed: more than zero"),
    "two networks": (
        lambda: parse_cluster("2x4xT4@100Gb,200Gb"), HardwareError, "says something twice; keep one of each"),
    "a key that stands twice": (
        lambda: unique_keys([("a", 1), ("b", 1), ("a", 2)]), ReadingError, "key 'a' stands twice; keep one"),
    "no mapping": (
        lambda: Section.of([1], "FILE"), ReadingError, r"FILE: expected a mapping, got \[1\]"),
    "a stream that stands twice": (
        lambda: named_twice().build(), ValueError, "task 0 names resource 'stream' twice; name it once"),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_is_refused(name):
    give, error, said = VALUES[name]
    with pytest.raises(error, match=said):
        give()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "has no function `model`"),
        ("def model(): return 3", "returned int"),
        ("def model(): return 1, 'two', {}", r"returned \(int, str, dict\)"),
    ],
)
def test_a_file_without_a_model_is_refused(text, said, tmp_path):
    path = tmp_path / "own.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"own\.py` ?{said}|own\.py {said}"):
        load_model_file(path)
