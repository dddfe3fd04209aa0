"""Every stage of a cut program is a program of its own, sharded over its own mesh; equal stages only once."""

from __future__ import annotations

import re
from functools import cache
from itertools import count

import pytest
import torch
from made_plan import made_plan
from torch import Tensor, nn

from trainyard.job.lower import stages
from trainyard.job.lower.axes import ShardedStage, StageMesh, shard_stage
from trainyard.job.lower.cut import cut, stage_programs
from trainyard.job.lower.lower import lower
from trainyard.job.lower.resolve import resolve
from trainyard.job.lower.verify import verify
from trainyard.job.plan import Mesh, Plan
from trainyard.job.schedules import make_schedule
from trainyard.program import spmd
from trainyard.program.capture import capture
from trainyard.program.model import Model
from trainyard.program.placement import Shard
from trainyard.program.program import Program

NUM_STAGES = 5


class Layers(nn.Module):
    """Equal layers that add noise; the last one takes the result of the first, too, and has the weight of the third."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(NUM_STAGES))
        self.layers[4].weight = self.layers[2].weight

    def forward(self, x: Tensor) -> Tensor:
        results: list[Tensor] = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            x = x + torch.rand_like(x)
            results.append(x)
        return x + results[0]


@cache
def captured() -> Program:
    def loss(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        result: Tensor = module(batch["x"]).square().mean()
        return result

    return capture(Model("layers", Layers(), loss, {"x": torch.ones(8, 8)}))


def planned(data: int = 1, tensor: int = 1) -> Plan:
    program = captured()
    starts = [f"layers.{i}:t" for i in range(1, NUM_STAGES)]
    placed = {"tensor": {f"layers.{i}.weight": Shard(1) for i in range(4)}} if tensor > 1 else {}
    schedule = make_schedule("one_f_one_b", NUM_STAGES, 1)
    return made_plan(program, 8, schedule, data=data, tensor=tensor, starts=starts, placed=placed)


def programs() -> tuple[Program, ...]:
    return stage_programs(
        captured(), cut(captured(), resolve(captured(), planned()).stage_starts), NUM_STAGES
    )


def values(entries: object) -> list[str]:
    return [entry.path for entry in entries if entry.kind == "value"]  # type: ignore[attr-defined]


def test_what_a_stage_takes_another_one_gives() -> None:
    found = programs()
    maker = {name: i for i, program in enumerate(found) for name in values(program.outputs)}
    takers = [sorted({maker[name] for name in values(program.inputs)}) for program in found]
    # Values from before, and gradients from behind. The last takes what the first has made, too; the second adds its
    # gradient to its own.
    assert takers == [[1], [0, 2, 4], [1, 3], [2, 4], [0, 3]]
    ops = [n.name for program in found for n in program.graph.nodes if n.target is torch.ops.aten.mm.default]
    assert sorted(ops) == sorted(
        n.name for n in captured().graph.nodes if n.target is torch.ops.aten.mm.default
    )


@pytest.mark.parametrize(("data", "tensor"), [(1, 1), (2, 1), (1, 2)])
def test_transfers_say_what_stages_take(data: int, tensor: int) -> None:
    lowered = lower(captured(), planned(data, tensor))
    verify(lowered)
    assert sorted((t.source, t.target) for t in lowered.transfers) == sorted(
        [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2), (3, 4), (4, 3), (0, 4), (4, 1)]
    )


def test_every_stage_that_uses_a_parameter_has_its_own_term_of_the_gradient() -> None:
    trained = [{o.path for o in program.outputs if o.kind == "grad"} for program in programs()]
    assert trained == [{f"layers.{i}.{name}" for name in ("weight", "bias")} for i in range(4)] + [
        {"layers.2.weight", "layers.4.bias"}
    ]


def test_equal_stages_are_sharded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    program, plan = captured(), planned(data=2, tensor=2)
    sharded: list[ShardedStage] = []

    def counted(*arguments: object) -> ShardedStage:
        sharded.append(shard_stage(*arguments))  # type: ignore[arg-type]
        return sharded[-1]

    monkeypatch.setattr(stages, "shard_stage", counted)
    once = lower(program, plan)
    verify(once)
    # The third and the fourth are equal.
    assert len(sharded) == 4
    different = count()
    monkeypatch.setattr(stages, "_structure", lambda *_: next(different))
    each = lower(program, plan)
    assert len(sharded) == 4 + NUM_STAGES
    for one, other in zip(once.stages, each.stages, strict=True):
        for kind, segment in one.segments.items():
            assert text(segment.graph) == text(other.segments[kind].graph)
            assert segment.inputs == other.segments[kind].inputs
    assert once.transfers == each.transfers


def text(graph: torch.fx.Graph) -> list[str]:
    """A graph in lines, but for the numbers in the names of offsets."""
    said = [f"{n.format_node()} {n.meta.get('layer')} {n.meta.get('moved_from')}" for n in graph.nodes]
    return [re.sub(r"offset(_\d+)?", "offset", line) for line in said]


def test_random_numbers_are_drawn_for_a_ranks_own_rows_in_every_stage() -> None:
    found = lower(captured(), planned(data=2)).stages
    assert len(found) == NUM_STAGES
    for stage in found:
        (draw,) = (n for n in stage.segments["F"].graph.nodes if n.target is torch.ops.trainyard.draw.default)
        assert draw.meta["val"].shape == (4, 8)


def test_stages_may_have_axes_of_their_own() -> None:
    rows = {i.path: Shard(0) for i in captured().inputs if i.kind == "batch"}
    by_rows = StageMesh(Mesh.of(x=2), 0, {"x": rows}, ("x",))
    by_columns = StageMesh(Mesh.of(y=4), 0, {"y": {"layers.2.weight": Shard(1)}}, ())
    whole = StageMesh(Mesh(), 0, {}, ())
    found = stages.shard_stages(programs(), [by_rows, by_rows, by_columns, whole, whole])
    second = {i.path: found[1].program.nodes[i.node] for i in found[1].program.inputs if i.kind == "value"}
    shapes = {name: tuple(node.meta["val"].shape) for name, node in second.items()}
    # A half of the rows comes from every stage: from the first, which has the same axis, and from those that have not.
    assert shapes == {"add": (4, 8), "mm_2_y": (4, 8), "mul_1": (4, 8)}
    sent = [n for n in found[2].program.graph.nodes if n.target in spmd.COLLECTIVES]
    assert [(n.target, n.args[1]) for n in sent] == [(spmd.all_reduce, "y"), (spmd.all_gather, "y")]
