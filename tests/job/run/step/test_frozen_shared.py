"""ZeRO-3 shares what is not trained, too: values and losses are those of one device, and bytes are as predicted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.hardware import parse_cluster
from trainyard.job.catalog import parse_strategies
from trainyard.job.lower.lower import Lowered, lower
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Plan
from trainyard.job.planning import make_setting
from trainyard.job.run.processes.fork_server import run_ranks
from trainyard.job.run.step.executor import Executor
from trainyard.job.run.step.initial import initial_values
from trainyard.job.setting import apply
from trainyard.job.simulation.memory import state_bytes
from trainyard.job.task import Task
from trainyard.program import spmd
from trainyard.program.model import Model

ROWS, LENGTH, WIDTH, RANK, LAYERS = 8, 16, 256, 4, 4


class Adapted(nn.Module):
    """A frozen layer with a trained adapter beside it."""

    def __init__(self, inputs: int, outputs: int, rank: int = RANK) -> None:
        super().__init__()
        self.frozen = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down = nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(rank, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH).requires_grad_(False)
        self.wide, self.narrow = Adapted(WIDTH, 4 * WIDTH), Adapted(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(F.gelu(self.wide(self.norm(x))))


def loss(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.mse_loss(module(batch["x"]), batch["y"])


def data(step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {name: torch.randn(ROWS, LENGTH, WIDTH, generator=generator) for name in ("x", "y")}


def adapted() -> Model:
    """40,960 of 2,145,280 numbers train."""
    torch.manual_seed(0)
    return Model("adapted", nn.Sequential(*[Block() for _ in range(LAYERS)]), loss, data(0))


def planned(model: Model, strategies: str, cluster: str, dtype: str = "float32") -> Plan:
    return apply(parse_strategies(strategies), make_setting(Task(model, dtype), parse_cluster(cluster)))


def lowered_of(model: Model, plan: Plan) -> Lowered:
    return lower(Task(model, plan.dtype).program(plan.rows_per_microbatch), plan)


def trained_by(rank: int) -> dict[str, Any]:
    """Two steps of one rank of two; what it holds, and whether frozen weights are still what they were."""
    model = adapted()
    values = initial_values(model, 0)
    lowered = lowered_of(model, planned(model, "zero(stage=3)", "1x2xA100-40G"))
    optimizer = OptimizerConfig(lr=1e-3, warmup_steps=0, clip_norm=0.0)
    executor = Executor(replace(lowered, optimizer=optimizer), rank, values, torch.device("cpu"))
    steps = [executor.step({f"batch.{k}": v for k, v in data(i).items()}, i) for i in range(2)]
    state = executor.state
    whole = state.local_tensors({name: frozen.part for name, frozen in state.frozen.items()})
    moments = executor.optimizer.moments()
    return {
        "losses": [step.losses["loss:loss"] for step in steps],
        "same": all(torch.equal(value, values(path)) for path, value in whole.items()),
        "frozen": len(whole),
        "parameters": sum(f.part.nbytes for f in state.frozen.values())
        + sum(b.master.nbytes for b in state.buckets.values())
        + sum(t.nbytes for t in executor.params.values()),
        "gradients": sum(b.grads.nbytes for b in state.buckets.values()),
        "optimizer": sum(t.nbytes for of in moments.values() for t in of.values()),
    }


@pytest.mark.slow
def test_shared_frozen_weights_give_the_losses_of_one_device_and_take_the_bytes_predicted() -> None:
    model = adapted()
    lowered = lowered_of(model, planned(model, "zero(stage=3)", "1x2xA100-40G"))
    predicted = state_bytes(lowered, list(lowered.stages))
    answers = run_ranks(2, trained_by)
    for found in answers:
        assert found["losses"] == pytest.approx([2.290052, 2.291651], rel=1e-6)
        assert found["same"]
        assert found["frozen"] == 6 * LAYERS
        for kind in ("parameters", "gradients", "optimizer"):
            assert found[kind] == predicted[kind]
    for kind, num_bytes in (("parameters", 8_581_120), ("gradients", 163_840), ("optimizer", 327_680)):
        assert sum(found[kind] for found in answers) == num_bytes


def large(layers: int) -> Model:
    with torch.device("meta"):
        module = nn.Sequential(*[Adapted(8192, 8192, 8) for _ in range(layers)])
    batch = {"x": torch.zeros(8, 64, 8192, device="meta")}
    return Model("large", module, lambda m, b: m(b["x"]).float().square().mean(), batch)


@pytest.mark.parametrize(("stage", "shards"), [(2, 1), (3, 8)])
def test_bytes_of_frozen_weights_and_what_the_plan_says_of_them(stage: int, shards: int) -> None:
    layers = 3
    model = large(layers)
    plan = planned(model, f"zero(stage={stage})", "8xA100-80G", "bfloat16")
    lowered = lowered_of(model, plan)
    trained, frozen = layers * 2 * 8 * 8192, layers * (8192 + 1) * 8192
    # Weights in bfloat16 are kept whole beside their float32 ones, or made of these when they are gathered.
    own = 4 * trained // 8 + (0 if stage == 3 else 2 * trained)
    assert state_bytes(lowered, list(lowered.stages))["parameters"] == own + 2 * frozen // shards
    assert ("divide optimizer state, gradients, parameters" in plan.explain()) == (shards > 1)
    kept = "their weights are shared, too" if shards > 1 else "every rank keeps all of their weights"
    assert (
        f"{frozen:,} parameters are not trained and have neither gradients nor state; {kept}"
        in plan.explain()
    )


def test_a_layer_is_gathered_by_itself() -> None:
    model = large(3)
    (stage,) = lowered_of(model, planned(model, "zero(stage=3)", "8xA100-80G", "bfloat16")).stages
    sizes = {b.name: b.num_elements for b in stage.frozen}
    for kind in ("F", "B"):
        gathered = [n.args[0] for n in stage.segments[kind].graph.nodes if n.target is spmd.gather_params]
        assert len(gathered) == len(set(gathered))
        assert max(sizes[name] for name in gathered if name in sizes) == 8192 * 8192
