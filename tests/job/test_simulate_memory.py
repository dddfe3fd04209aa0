"""Values that the simulation has a rank hold after every action, against those that the executor holds."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from made_plan import made_plan
from torch import nn

from trainyard.cost.ops import Roofline
from trainyard.hardware.parse import parse_cluster
from trainyard.job.lower.calls import Call
from trainyard.job.lower.lower import Lowered, lower
from trainyard.job.run.processes.fork_server import run_ranks
from trainyard.job.run.step.executor import Executor
from trainyard.job.run.step.initial import initial_values
from trainyard.job.schedule import Schedule, parse_action
from trainyard.job.schedules import make_schedule
from trainyard.job.simulate import assemble
from trainyard.job.simulation.memory import MEMORY_KINDS
from trainyard.job.task import Task
from trainyard.program.addresses import address
from trainyard.program.model import Model
from trainyard.program.program import Program
from trainyard.zoo import build

ROWS = 8
MICROBATCHES = 4
CASES = {
    # name: schedule, ranks, stages per rank, recompute
    "one rank": ("gpipe", 1, 1, False),
    "split, one rank": ("zb_v", 1, 2, False),
    "split, one rank, recompute": ("zb_v", 1, 2, True),
    "stages of a rank": ("breadth_first", 1, 3, False),
    "pipeline": ("one_f_one_b", 2, 1, False),
    "split": ("zero_bubble_h1", 2, 1, False),
    "split, recompute": ("zero_bubble_h2", 2, 1, True),
    "split, two stages": ("zb_v", 2, 2, False),
}
TOGETHER = [name for name, case in CASES.items() if case[1] > 1]


@cache
def captured() -> Program:
    return Task(build("gpt-tiny", ROWS)).program(ROWS // MICROBATCHES)


def lowered_of(name: str) -> Lowered:
    schedule, ranks, per_rank, recompute = CASES[name]
    program, stages = captured(), ranks * per_rank
    forward = [n for n in program.graph.nodes if n.op == "call_function" and n.meta["phase"] == "forward"]
    starts = tuple(address(forward[len(forward) * i // stages]) for i in range(1, stages))
    again = frozenset({"blocks.**:*"} if recompute else ())
    actions = make_schedule(schedule, ranks, MICROBATCHES, per_rank)
    plan = made_plan(program, ROWS, actions, starts=starts, recompute=again)
    return lower(program, plan)


class Watched(Executor):
    """Notes, after every action, the bytes of the memory that its values lie in."""

    def _run(self, call: Call, *rest: Any) -> None:
        super()._run(call, *rest)
        own = [*self.params.values(), *self.buffers.values()]
        known = {t.untyped_storage().data_ptr() for t in own}
        storages = {
            v.untyped_storage().data_ptr(): v.untyped_storage().nbytes() for v in self.values.values()
        }
        self.held_bytes.append(sum(size for at, size in storages.items() if at not in known))


def held_by_the_executor(rank: int, lowered: Lowered, model: Model) -> list[int]:
    executor = Watched(lowered, rank, initial_values(model, 0), torch.device("cpu"))
    executor.held_bytes = []  # type: ignore[attr-defined]
    executor.forward_backward({f"batch.{k}": v for k, v in model.batch.items()}, 0)
    arrived = {delivery for call in executor.calls for delivery in call.arrived}
    assert arrived.isdisjoint(executor.messages.sending), "what has arrived is held still"
    executor.messages.wait_sends()  # gloo drops a message whose memory is gone before the receiver asks for it
    return executor.held_bytes


def held_by_the_simulation(rank: int, lowered: Lowered) -> list[int]:
    assembly = assemble(lowered, parse_cluster("1x2xA100-80G"), Roofline())
    task, device, kind, start_bytes, end_bytes = assembly.memory.columns()
    held = []
    for action in lowered.plan.schedule.actions[rank]:
        first, last = assembly.first[action], assembly.last[action]
        mine = (device == rank) & (kind == MEMORY_KINDS.index("activations"))
        mine &= (task >= first) & (task <= last)
        held.append(int((start_bytes[mine] + end_bytes[mine]).sum()))
    return np.cumsum(held).tolist()


@pytest.mark.parametrize("name", [name for name in CASES if name not in TOGETHER])
def test_one_rank_holds_what_is_simulated(name):
    held = held_by_the_executor(0, lowered_of(name), build("gpt-tiny", ROWS))
    assert held_by_the_simulation(0, lowered_of(name)) == held
    assert max(held) > 0 == held[-1]


def test_a_value_counts_once_however_many_stages_of_a_rank_hold_it():
    """The result of tanh is needed by its own gradient, and longer by the weight gradient of the next stage."""
    net = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    model = Model("mlp", net, lambda m, batch: m(batch["x"]).square().mean(), {"x": torch.randn(ROWS, 16)})
    program = Task(model).program(ROWS // 2)
    text = "0F0 1F0 2F0 0F1 1F1 2F1 2I0 1I0 0I0 2I1 1I1 0I1 2W0 2W1 1W0 1W1 0W0 0W1"
    schedule = Schedule("late", 3, 2, (tuple(parse_action(word) for word in text.split()),))
    plan = made_plan(program, ROWS, schedule, starts=("1:addmm", "3:addmm"))
    lowered = lower(program, plan)
    assert {"tanh"} == {s.name for s in lowered.stages[1].segments["I"].inputs if s.kind == "value"} & {
        s.name for s in lowered.stages[2].segments["W"].inputs
    }
    held = held_by_the_executor(0, lowered, model)
    assert held_by_the_simulation(0, lowered) == held
    assert max(held) > 0 == held[-1]


def everything(rank: int) -> dict[str, list[int]]:
    model = build("gpt-tiny", ROWS)
    return {name: held_by_the_executor(rank, lowered_of(name), model) for name in TOGETHER}


@pytest.fixture(scope="module")
def held() -> list[dict[str, list[int]]]:
    return run_ranks(2, everything)


@pytest.mark.parametrize("name", TOGETHER)
@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_of_a_pipeline_hold_what_is_simulated(name, rank, held):
    assert held_by_the_simulation(rank, lowered_of(name)) == held[rank][name]
