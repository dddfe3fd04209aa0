"""The real step beside the predicted one: medians over steps, means over ranks, and how both are shown."""

import json

import pytest

from trainyard.hardware.parse import parse_cluster
from trainyard.job.lower.lower import lower
from trainyard.job.plan import Plan
from trainyard.job.run.step.recorder import Recorded
from trainyard.job.schedules import make_schedule
from trainyard.job.simulate import simulate_plan
from trainyard.job.simulation.op_prices import PredictedOp
from trainyard.job.task import Task
from trainyard.report.step_profile import profile_page, profile_trace, step_profile
from trainyard.zoo.registry import build

PREDICTED = {
    (0, "0F"): {"mm": PredictedOp("up:mm", 0.010), "add": PredictedOp("up:add", 0.001)},
    (0, "parameters"): {"update": PredictedOp("update parameters", 0.004)},
}


def _step(*seconds):
    """Two microbatches, a wait, and an update; one after the other."""
    names = [
        ("0F0", "0F", "mm"), ("0F0", "0F", "add"), ("0F1", "0F", "mm"), ("0F1", "0F", "add"),
        ("update", "gradients", "wait_losses"), ("update", "parameters", "update"),
    ]  # fmt: skip
    found, now_s = [], 100.0
    for name, each_s in zip(names, seconds, strict=True):
        found.append(Recorded(*name, now_s, now_s + each_s))
        now_s += each_s
    return found


@pytest.fixture(scope="module")
def simulated():
    task = Task(build("gpt-tiny", 2))
    program = task.program(1)
    plan = Plan("gpt-tiny", program.fingerprint, "local", 2, make_schedule("one_f_one_b", 1, 2))
    return plan, simulate_plan(lower(program, plan), parse_cluster("1x1xA100-80G"))


RECORDED = [[
    _step(0.010, 0.002, 0.012, 0.002, 0.5, 0.005),
    _step(0.020, 0.002, 0.022, 0.002, 0.9, 0.003),
    _step(0.090, 0.002, 0.092, 0.002, 0.7, 0.004),
]]  # fmt: skip


def test_ops_are_medians_of_steps_with_the_largest_difference_first(simulated):
    found = step_profile(*simulated, PREDICTED, RECORDED)
    assert [(op.title, op.calls) for op in found.ops] == [
        ("up:mm", 2),
        ("up:add", 2),
        ("update parameters", 1),
    ]
    mm, add, update = found.ops
    assert (mm.predicted_s, mm.measured_s) == pytest.approx((0.020, 0.042))
    assert (add.predicted_s, add.measured_s) == pytest.approx((0.002, 0.004))
    assert update.difference_s == pytest.approx(0.0)
    (rank,) = found.ranks
    assert rank.measured_s == pytest.approx(0.050)
    assert rank.predicted_s == pytest.approx(0.026)
    assert rank.measured_rest_s == pytest.approx(0.890 - 0.050)  # the median step, less its ops
    assert rank.predicted_rest_s == pytest.approx(simulated[1].step_s - 0.026)


def test_both_steps_are_shown(simulated):
    plan, simulation = simulated
    found = step_profile(plan, simulation, PREDICTED, RECORDED)
    page = profile_page(plan, simulation, found)
    assert page.index("Predicted step") < page.index("Measured step") < page.index("Ops, the largest")
    assert found.op_rows()[0] == ("0", "0F", "up:mm", "2", "20.0 ms", "42.0 ms", "+22.0 ms")
    assert found.op_rows(1) == found.op_rows()[:1]
    assert found.as_dict()["ops"][0]["difference_s"] == pytest.approx(0.022)
    events = json.loads(json.dumps(profile_trace(simulation, found)))["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    (measured,) = (pid for pid, name in processes.items() if name == "rank 0, measured")
    drawn = [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == measured]
    assert [name for name, _, _ in drawn] == [
        "0F0 up:mm", "0F0 up:add", "0F1 up:mm", "0F1 up:add", "update wait losses", "update update parameters",
    ]  # fmt: skip
    assert drawn[0][1:] == pytest.approx((0.0, 90_000))
    assert drawn[4][1:] == pytest.approx((186_000, 700_000))
    predicted = [e for e in events if e["ph"] == "X" and e["pid"] != measured]
    assert sum(e["dur"] for e in predicted) > 0
