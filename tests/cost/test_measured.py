"""Measuring ops: traces run what graphs run, failures become estimates, and results are remembered."""

from __future__ import annotations

import json
import operator
import os
import re
import signal
import time
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from made_graphs import fake_graph, small_graph, small_trace

from trainyard.cost import measure_processes, measured
from trainyard.cost.measure_worker import _Worker
from trainyard.cost.measured import Conditions, MeasuredOps, OpError, measure_ops
from trainyard.cost.measurements import Entry, Failure, Measurement, Measurements
from trainyard.cost.ops import BUFFER_OPS, Roofline, is_free
from trainyard.cost.signature import op_signature
from trainyard.cost.trace import (
    Instruction,
    OpTimes,
    Trace,
    elapsed,
    read_clocks,
    run_trace,
    trace_graph,
)
from trainyard.cost.trace_memory import traces_within
from trainyard.hardware.presets import device_named
from trainyard.processes import ProcessLimits

FAULTS = {
    "an op that is not there": (lambda x: torch.linalg.qr(x)[0], torch.empty(4, 4, dtype=torch.bfloat16)),
    "types that do not go together": (lambda x: x.float() @ x, torch.empty(4, 4, dtype=torch.bfloat16)),
    "a value that was made up": (lambda x: torch.linalg.cholesky(x - x - torch.eye(4)), torch.empty(4, 4)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_an_op_that_fails_for_its_types_is_an_error_and_not_estimated(name, tmp_path, cache):
    graph = fake_graph(lambda x: (FAULTS[name][0](x),), FAULTS[name][1])
    trace = trace_graph(graph, [n.name for n in graph.find_nodes(op="placeholder")], ["y"])
    result = measured_by_worker(tmp_path, trace, cpu_s=60.0)
    ((signature, why),) = result["failed"].items()
    store = Measurements.read()
    store.of("1x1").add(Entry(failed={signature: Failure(why, 1.0, signature in result["faults"])}))
    store.of("1x1").ops |= {
        s: Measurement(seconds, 0.0, 1.0, 1.0) for s, (seconds, _) in result["seconds"].items()
    }
    store.of("1x1").buffer_ops = dict.fromkeys(BUFFER_OPS, ((1, 0.1), (2, 0.2)))
    store.write()
    ops = measure_ops([[trace]], Conditions(1, 1))
    nodes = [n for n in graph.nodes if n.op == "call_function" and not is_free(n)]
    (failing,) = (n for n in nodes if op_signature(n) == signature)
    if name == "a value that was made up":
        assert ops(failing, device_named("A100-80G")) > 0
        return
    failing.meta["layer"] = "blocks.1"
    with pytest.raises(
        OpError, match=r"aten\.\w+\.default on .*bfloat16 in blocks\.1 cannot run: \w+Error: .*x\.float\(\)"
    ):
        ops(failing, device_named("A100-80G"))


def test_an_lstm_is_measured_in_the_mode_in_which_it_is_trained(tmp_path):
    lstm = torch.nn.LSTM(4, 6)

    def step(x, *weights):
        state = dict(zip(("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"), weights, strict=True))
        out = torch.func.functional_call(lstm, state, x)[0]
        return torch.autograd.grad(out.sum(), weights)

    weights = [torch.empty(p.shape, requires_grad=True) for p in lstm.parameters()]
    graph = fake_graph(step, torch.empty(3, 2, 4), *weights)
    trace = trace_graph(graph, list("xabcd"), list("ABCD"))
    times = measured_by_worker(tmp_path, trace, cpu_s=60.0)
    assert times["failed"] == {}
    assert set(times["seconds"]) == trace.signatures


def measured_by_worker(folder, trace, cpu_s):
    request = {"num_threads": 2, "cpu_s": cpu_s, "group_limit_s": 0.0, "failed": {}, "buffer_ops": []}
    _Worker(folder, 0, request).measure_group(0, [trace])
    return json.loads((folder / "result0.json").read_text())


def test_the_clock_that_shows_least_counts_and_the_last_one_runs_shortest():
    shown = []

    def clock(name, *times):
        readings = iter(times)

        def now():
            shown.append(name)
            return next(readings)

        return now

    clocks = clock("processor", 5.0, 5.5), clock("wall", 100.0, 129.0)
    assert elapsed(clocks, read_clocks(clocks)) == 0.5
    assert shown == ["processor", "wall", "wall", "processor"]
    # One that stands still, or goes back, has not seen the op.
    for stopped in (5.0, 4.0):
        clocks = clock("processor", 5.0, stopped), clock("wall", 100.0, 129.0)
        assert elapsed(clocks, read_clocks(clocks)) == 29.0


def test_time_in_which_an_op_waits_does_not_count(tmp_path):
    waits = Trace((), tuple(step_of(number, time.sleep, 0.1) for number in range(5)), ())
    times = measured_by_worker(tmp_path, waits, cpu_s=1.0)  # all runs together wait for more than two seconds
    assert set(times["seconds"]) == {"sleep()"}
    assert times["cpu_s"] < 1.0


def test_when_the_cpu_seconds_are_used_nothing_more_is_run(tmp_path):
    assert measured_by_worker(tmp_path, small_trace(), cpu_s=-1.0)["seconds"] == {}


@pytest.mark.parametrize(("room", "kept"), [(2**20, 3), (5_000, 1), (3_000, 0)])
def test_ops_that_need_too_much_memory_are_left_out_with_what_follows(room, kept):
    graph = fake_graph(lambda x: ((x.relu().repeat(64, 1) + 1).sum(0),), torch.empty(32, 16))
    trace = trace_graph(graph, ["x"], ["y"])  # 2 KiB, 2 KiB, 128 KiB each
    (within,) = traces_within([trace], room)
    assert len(within.signatures) == (4 if kept == 3 else kept)
    assert within.signatures <= trace.signatures
    times = OpTimes()
    run_trace(within, {}, times)
    assert set(times.seconds) == within.signatures


def test_memory_that_is_freed_is_used_again():
    def deep(x):
        for _ in range(20):
            x = x.t().relu()
        return (x,)

    trace = trace_graph(fake_graph(deep, torch.empty(32, 32)), ["value:x"], ["value:y"])  # 4 KiB each
    twice = [trace, trace_graph(fake_graph(deep, torch.empty(32, 32)), ["value:y"], ["value:z"])]
    assert traces_within(twice, 8_192) == tuple(twice)
    assert not traces_within(twice, 8_191)[0].signatures


def step_of(index, target, *args):
    return Instruction(index, target, args, {}, f"{target.__name__}()", (), 0)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path))
    monkeypatch.setattr(measured, "other_load_now", lambda: 1.0)  # whatever else runs here
    return tmp_path


def test_what_is_measured_and_what_kills_the_process_is_remembered(cache, monkeypatch):
    graph, alone = small_graph(), Conditions(1, 1)
    fails = Trace((), (step_of(0, operator.truediv, 1, 0), step_of(1, operator.add, 1, 1)), ())
    kills = Trace((), (step_of(0, operator.mul, 2, 2), step_of(1, os.abort)), ())
    unknown = Trace((), (Instruction(0, "nobody::knows.default", (), {}, "knows()", (), 0),), ())
    groups = [[fails], [kills], [unknown], [trace_graph(graph, ["x", "w"], ["y"])]]
    first = measure_ops(groups, alone, budget_s=0.1)
    assert {"add()", "mul()"} < set(first.seconds)
    assert "ZeroDivisionError" in first.reasons["truediv()"]
    assert "signal 6" in first.reasons["abort()"]
    assert "nobody" in first.reasons["knows()"]
    device = device_named("A100-80G")
    assert all(first(n, device) > 0 for n in graph.nodes if not is_free(n) and n.op == "call_function")
    assert first.sources().num_measured == 2
    assert first.sources().estimated == {}

    monkeypatch.setattr("subprocess.Popen", _refuse)
    second = measure_ops(groups, alone)
    assert (second.seconds, second.reasons) == (first.seconds, first.reasons)
    with pytest.raises(_RefusedError, match="no process is started here"):
        measure_ops(groups, Conditions(2, 1))  # other conditions are measured by themselves
    (path,) = cache.glob("ops-*.json")
    path.write_text(path.read_text()[:100])
    with pytest.raises(_RefusedError, match="no process is started here"):
        measure_ops(groups, alone)


@pytest.mark.slow
def test_an_op_that_never_ends_is_ended(cache, monkeypatch):
    monkeypatch.setattr(measure_processes, "_CPU_S", 3.0)
    monkeypatch.setattr(measure_processes, "_GRACE_CPU_S", 2.0)
    endless = Trace((), (step_of(0, sum, range(10**15)),), ())
    reasons = measure_ops([[endless]], Conditions(1, 1)).reasons
    used = re.fullmatch(r"the process that measured it used (\S+) CPU seconds", reasons["sum()"])
    assert used is not None
    assert float(used[1]) >= 5.0


def test_a_process_that_uses_no_cpu_is_ended(cache, monkeypatch):
    monkeypatch.setattr(measure_processes, "ProcessLimits", partial(ProcessLimits, idle_s=2.0))
    stops = Trace((), (step_of(0, signal.raise_signal, signal.SIGSTOP),), ())
    reasons = measure_ops([[stops]], Conditions(2, 1)).reasons
    assert reasons["raise_signal()"].startswith("the process that measured it used no CPU for ")


class _RefusedError(Exception):
    pass


def _refuse(*_, **__):
    raise _RefusedError("no process is started here")


def test_what_no_process_can_read_is_estimated(cache, monkeypatch):
    monkeypatch.setattr(measure_processes, "_run", lambda request, at_op: ([], None))
    local = Trace((), (Instruction(0, lambda: 0, (), {}, "lambda()", (), 0),), ())
    assert "cannot be sent" in measure_ops([[local]], Conditions(1, 1)).reasons["lambda()"]


def test_no_time_and_processes_that_do_not_live_leave_estimates(cache, monkeypatch):
    groups = [[small_trace()]]
    crash = measure_processes._Crash("was killed by signal 9", None, "", False)
    monkeypatch.setattr(measure_processes, "_run", lambda request, at_op: ([], crash))
    ops = measure_ops(groups, Conditions(2, 1))
    assert {ops.reasons[s] for s in groups[0][0].signatures} == {crash.why}
    assert Measurements.read().of("2x1").failed == {}  # they are tried when processes live again
    monkeypatch.setattr(measure_processes, "_run", lambda request, at_op: ([], None))
    measure_ops(groups, Conditions(2, 1))
    assert set(Measurements.read().of("2x1").failed) == groups[0][0].signatures


def test_no_more_memory_than_allowed_is_asked_for(cache, monkeypatch):
    monkeypatch.setattr(measured, "free_memory_bytes", lambda: 1024)
    monkeypatch.setattr(measure_processes, "_run", lambda request, at_op: ([], None))
    trace = small_trace()
    reasons = measure_ops([[trace]], Conditions(1, 1)).reasons
    assert trace.signatures
    assert all("GiB that measuring may use" in reasons[s] for s in trace.signatures)


def test_disturbed_measurements_are_repeated_once_it_is_quiet(cache, monkeypatch):
    trace, runs = small_trace(), []

    def run(request, at_op):
        runs.append(len(request["groups"]))
        found = {
            "seconds": dict.fromkeys(trace.signatures, (1.0 / len(runs), 0.1)),
            "failed": {},
            "faults": [],
        }
        return [
            {**found, "cpu_s": 0.0, "buffer_ops": {key: [[1, 0.1], [2, 0.2]] for key in BUFFER_OPS}}
        ], None

    monkeypatch.setattr(measure_processes, "_run", run)
    monkeypatch.setattr(measured.OtherLoad, "share", lambda self: 0.6 if len(runs) == 1 else 0.0)
    node = next(n for n in small_graph().nodes if "mm" in n.name)
    for quiet, seconds, disturbed in ((False, 1.0, 1), (False, 1.0, 1), (True, 0.5, 0), (True, 0.5, 0)):
        monkeypatch.setattr(measured, "other_load_now", lambda quiet=quiet: 0.0 if quiet else 1.0)
        ops = measure_ops([[trace]], Conditions(1, 1))
        assert ops(node, device_named("A100-80G")) == seconds
        assert ops.sources().num_disturbed == disturbed
    assert runs == [1, 1]


def test_what_is_implausible_is_measured_once_more(cache, monkeypatch):
    trace, runs = small_trace(), []
    relu = next(s for s in trace.signatures if "relu" in s)
    store = Measurements.read()
    store.of("1x1").ops["aten.relu.default(float32[640, 16])"] = Measurement(1e-6, 0.0, 1e9, 1.0)
    store.write()

    def run(request, at_op):
        runs.append(len(request["groups"]))
        found = {
            "seconds": dict.fromkeys(trace.signatures, (30e-3 if len(runs) == 1 else 1e-6, 0.1)),
            "failed": {},
            "faults": [],
        }
        return [
            {**found, "cpu_s": 0.0, "buffer_ops": {key: [[1, 0.1], [2, 0.2]] for key in BUFFER_OPS}}
        ], None

    monkeypatch.setattr(measure_processes, "_run", run)
    assert measure_ops([[trace]], Conditions(1, 1)).seconds[relu] == 1e-6
    measure_ops([[trace]], Conditions(1, 1))
    assert runs == [1, 1]


def test_what_is_implausible_and_was_disturbed_is_not_believed(cache):
    small, large = "aten.relu.default(float32[8])", "aten.relu.default(float32[64])"
    store = Measurements.read()
    for key, other_load in (("1x1", 0.5), ("1x2", 0.0)):
        store.of(key).ops[small] = Measurement(30e-3, 0.1, 64.0, 1.0, other_load, num_measured=2)
        store.of(key).ops[large] = Measurement(1e-6, 0.1, 512.0, 1.0, other_load, num_measured=2)
        store.of(key).buffer_ops = dict.fromkeys(BUFFER_OPS, ((1, 0.1), (2, 0.2)))
    store.write()
    disturbed, quiet = (measure_ops([], Conditions(1, n)) for n in (1, 2))
    assert set(disturbed.seconds) == {large}
    assert "other work" in disturbed.reasons[small]
    assert set(quiet.seconds) == {small, large}


def test_what_another_process_measures_meanwhile_is_kept(cache, monkeypatch):
    monkeypatch.setattr(measure_processes, "_run", lambda request, at_op: ([], None))

    @contextmanager
    def waiting(*news):
        store = Measurements.read()
        store.of("1x2").ops["other"] = store.of("1x1").ops["here"] = Measurement(1.0, 0.0, 1.0, 1.0)
        store.write()
        yield

    monkeypatch.setattr(measured, "measuring", waiting)
    assert measure_ops([[small_trace()]], Conditions(1, 1)).seconds == {"here": 1.0}
    assert Measurements.read().of("1x2").ops.keys() == {"other"}


def test_processes_beyond_the_cores_take_turns():
    assert Conditions.of(8, 2) == Conditions(8, 1)
    assert Conditions.of(2, 16) == Conditions(2, 8)


def test_an_op_that_was_not_measured_has_the_rooflines_seconds():
    device, ops = device_named("A100-80G"), MeasuredOps({}, {})
    node = next(n for n in small_graph().nodes if "mm" in n.name)
    assert ops(node, device) == Roofline()(node, device)
    assert list(ops.sources().estimated.values()) == ["not among the ops that were measured"]
