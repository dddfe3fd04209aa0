"""Measuring ops: traces run what graphs run, results are remembered, and a broken cache is replaced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from trainyard.cost.measured import Conditions, MeasuredOps, measure_ops
from trainyard.cost.ops import Roofline, is_free
from trainyard.cost.trace import run_trace, trace_graph
from trainyard.hardware.presets import device_named
from trainyard.program.capture import capture
from trainyard.zoo import build


def small_graph():
    return make_fx(lambda x, w: (torch.relu(x @ w.t()),), tracing_mode="fake")(
        torch.empty(64, 32), torch.empty(16, 32)
    ).graph


def test_a_trace_computes_what_the_graph_computes():
    module = make_fx(lambda x, w: (torch.relu(x @ w.t()),), tracing_mode="fake")(
        torch.empty(64, 32), torch.empty(16, 32)
    )
    trace = trace_graph(module.graph, ["x", "w"], ["y"])
    values = {"x": torch.randn(64, 32), "w": torch.randn(16, 32)}
    note: dict[str, list[float]] = {}
    run_trace(trace, values, note)
    torch.testing.assert_close(values["y"], torch.relu(values["x"] @ values["w"].t()))
    assert set(note) == trace.signatures
    assert len(note) == 2  # the transpose is a view


@pytest.mark.parametrize("name", ["gpt-tiny", "moe-tiny", "dlrm-tiny", "resnet-tiny"])
def test_a_training_step_runs_on_made_up_inputs(name):
    program = capture(build(name))
    inputs = [i.path for i in program.inputs]
    trace = trace_graph(program.graph, inputs, [f"{o.kind}:{o.path}" for o in program.outputs])
    note: dict[str, list[float]] = {}
    with torch.no_grad():
        run_trace(trace, {}, note)
    priced = [n for n in program.graph.nodes if n.op == "call_function" and not is_free(n)]
    assert sum(map(len, note.values())) == len(priced)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path))
    return tmp_path


def test_what_was_measured_is_remembered_and_a_corrupt_cache_is_measured_again(cache, monkeypatch):
    graph, alone = small_graph(), Conditions(1, 1)
    groups = [[trace_graph(graph, ["x", "w"], ["y"])]]
    first = measure_ops(groups, alone, budget_s=0.1)
    device = device_named("A100-80G")
    assert all(first(n, device) > 0 for n in graph.nodes if not is_free(n) and n.op == "call_function")
    assert not first.unknown
    (path,) = cache.glob("ops-*.json")
    monkeypatch.setattr("subprocess.Popen", _refuse)
    assert measure_ops(groups, alone).seconds == first.seconds
    path.write_text(path.read_text()[:100])
    with pytest.raises(_RefusedError):
        measure_ops(groups, alone)


class _RefusedError(Exception):
    pass


def _refuse(*_, **__):
    raise _RefusedError


def test_other_conditions_are_measured_by_themselves(cache, monkeypatch):
    groups = [[trace_graph(small_graph(), ["x", "w"], ["y"])]]
    measure_ops(groups, Conditions(1, 1), budget_s=0.1)
    monkeypatch.setattr("subprocess.Popen", _refuse)
    with pytest.raises(_RefusedError):
        measure_ops(groups, Conditions(2, 1))


def test_what_two_processes_measure_at_once_is_all_remembered(cache):
    code = (
        "import sys; from test_measured import small_graph; from trainyard.cost.measured import *;"
        "from trainyard.cost.trace import trace_graph; trace = trace_graph(small_graph(), ['x', 'w'], ['y']);"
        "measure_ops([[trace]], Conditions(1, int(sys.argv[1])), budget_s=0.1)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    both = [subprocess.Popen([sys.executable, "-c", code, num], env=environment) for num in ("1", "2")]
    assert [one.wait() for one in both] == [0, 0]
    (path,) = cache.glob("ops-*.json")
    assert set(json.loads(path.read_text())["conditions"]) == {"1x1", "1x2"}


def test_processes_beyond_the_cores_take_turns():
    assert Conditions.of(8, 2) == Conditions(8, 1)
    assert Conditions.of(2, 16) == Conditions(2, 8)


def test_an_op_that_was_not_measured_has_the_rooflines_seconds():
    device, ops = device_named("A100-80G"), MeasuredOps({}, {})
    node = next(n for n in small_graph().nodes if "mm" in n.name)
    assert ops(node, device) == Roofline()(node, device)
    assert len(ops.unknown) == 1
