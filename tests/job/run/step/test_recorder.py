"""A recorder notes every op of a step, and changes nothing of what is computed."""

from itertools import pairwise

import plans
import pytest
import torch
from torch import fx

from trainyard.cost.ops import Roofline
from trainyard.hardware.parse import parse_cluster
from trainyard.job.lower.lower import lower
from trainyard.job.run.processes.logs import profile_file
from trainyard.job.run.step.executor import Executor
from trainyard.job.run.step.initial import initial_values
from trainyard.job.run.step.recorder import StepRecorder, read_recorded
from trainyard.job.run.train import train
from trainyard.job.simulate import predicted_ops, simulate_plan
from trainyard.report.step_profile import step_profile
from trainyard.zoo.registry import build

CLUSTER = parse_cluster("1x4xA100-80G")


def _lowered(plan):
    return lower(plans.program(plan.num_microbatches, plan.dtype), plan)


def _steps(lowered, recorder, num):
    torch.manual_seed(0)
    values = initial_values(build("gpt-tiny", plans.ROWS), 0)
    executor = Executor(lowered, 0, values, torch.device("cpu"), 0, recorder)
    return [executor.step(plans.DATA_SOURCE.batch(step), step) for step in range(num)]


def test_ops_are_recorded_in_their_order_and_compute_the_same():
    lowered = _lowered(plans.plan())
    recorder = StepRecorder(torch.device("cpu"))
    plain, watched = (_steps(lowered, each, 7) for each in (None, recorder))
    assert [(r.losses, r.grad_norm) for r in watched] == [(r.losses, r.grad_norm) for r in plain]
    assert len(recorder.steps) == 5  # the last ones
    for step in recorder.steps:
        assert all(before.end_s <= op.start_s for before, op in pairwise(step))
        assert all(op.start_s < op.end_s for op in step)
        assert list(dict.fromkeys(op.action for op in step)) == [
            "totals",
            "0F0",
            "0B0",
            "0F1",
            "0B1",
            "update",
        ]
        for action, (routine, segment) in {
            f"0{kind}{microbatch}": (f"0{kind}", segment)
            for kind, segment in lowered.stages[0].segments.items()
            for microbatch in range(2)
        }.items():
            ops = [op.op for op in step if op.action == action]
            assert ops == [n.name for n in segment.graph.nodes if n.op == "call_function"]
            assert {op.routine for op in step if op.action == action} == {routine}


def test_predicted_ops_are_those_of_the_simulation():
    lowered = _lowered(plans.plan(microbatches=1))
    found = predicted_ops(lowered, CLUSTER, Roofline())
    total_s = sum(op.seconds for ops in found.values() for op in ops.values())
    assert total_s == pytest.approx(simulate_plan(lowered, CLUSTER).step_s, rel=1e-9)
    assert found[0, "0F"]["embedding"].title == "tokens:embedding"


def test_processes_write_what_they_recorded_and_it_is_compared_with_the_prediction(tmp_path):
    plan = plans.plan(data=2, zero=1)
    train(plans.MODEL, plan, plans.DATA_SOURCE, plans.config(3, log=tmp_path, profile=True))
    recorded = read_recorded(profile_file(tmp_path, rank) for rank in range(2))
    assert [len(steps) for steps in recorded] == [3, 3]
    lowered = _lowered(plan)
    found = step_profile(
        plan, simulate_plan(lowered, CLUSTER), predicted_ops(lowered, CLUSTER, Roofline()), recorded
    )
    assert {op.calls for op in found.ops if op.routine == "0F"} == {2}
    assert {op.title for op in found.ops} >= {"tokens:embedding", "update parameters"}
    waits = {op.op for op in recorded[0][0]} - {op.op for op in recorded[0][0] if op.routine == ""}
    assert any(name.startswith("wait_reduction") for name in waits)
    assert not any(op.title.startswith("wait") for op in found.ops)  # what they take is no cost of theirs


def test_recording_needs_a_folder():
    with pytest.raises(ValueError, match="profile needs a folder for what is recorded: give log"):
        plans.config(1, profile=True)


_ORDER = []


def _compute(name):
    _ORDER.append(name)


class _Noting(StepRecorder):
    def tick(self, routine, op):
        _ORDER.append((routine, op))


def test_an_op_is_noted_when_it_has_ended():
    graph = fx.Graph()
    for name in ("first", "second"):
        graph.create_node("call_function", _compute, (name,), name=name)
    graph.output(None)
    watched = fx.GraphModule(torch.nn.Module(), graph)
    _Noting(torch.device("cpu")).watch(watched, "0F")
    watched.recompile()
    _ORDER.clear()
    watched()
    assert _ORDER == ["first", ("0F", "first"), "second", ("0F", "second")]
