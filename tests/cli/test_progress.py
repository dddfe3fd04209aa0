"""Progress: one line for each new stage, then one every ten seconds, on stderr; nothing from silent ranks."""

import io
import os
import time

import pytest
import torch
from rich.console import Console
from torch.fx.experimental.proxy_tensor import make_fx

from trainyard.cli import progress
from trainyard.cli.progress import ProgressLog, showing_progress
from trainyard.cli.screen import Screen
from trainyard.cost.measure_processes import _counted
from trainyard.cost.trace import trace_graph
from trainyard.job.planning import load_model, plan


@pytest.fixture
def at_once(monkeypatch):
    """Progress is shown, and looked at all the time."""
    monkeypatch.delenv("TRAINYARD_PROGRESS")
    monkeypatch.setattr(progress, "_LOOK_EVERY_S", 0.001)


def lines_of(news):
    """What is printed for (seconds, stage, part), each looked at when it is told."""
    said, now = [], [0.0]
    log = ProgressLog("planning", said.append, lambda: now[0])
    for now[0], stage, part in news:
        log.report(stage, part)
        log.look()
    return said


def test_a_new_stage_is_said_at_once_and_its_parts_every_ten_seconds():
    assert lines_of(
        [
            (1.0, "measuring ops", "1 of 80"),
            (2.0, "measuring ops", "2 of 80"),
            (5.0, "simulating", ""),
            (6.0, "measuring ops", "9 of 80"),
            (14.9, "measuring ops", "12 of 80"),
            (15.0, "measuring ops", "12 of 80"),
            (24.0, "measuring ops", "12 of 80"),
            (25.0, "measuring ops", "12 of 80"),
        ]
    ) == [
        "[1 s] measuring ops: 1 of 80",
        "[5 s] simulating",
        "[15 s] measuring ops: 12 of 80",
        "[25 s] measuring ops: 12 of 80",
    ]


def test_work_of_hours_fills_no_log():
    """Lines come every tenth of the time so far; a new stage is said at once."""
    news = [(float(second), "running", "") for second in range(1, 36_001)] + [(36_001.0, "writing", "")]
    lines = lines_of(news)
    assert lines[:4] == ["[1 s] running", "[11 s] running", "[21 s] running", "[31 s] running"]
    assert 60 < len(lines) < 90
    assert lines[-1] == "[36001 s] writing"


def test_a_terminal_shows_the_seconds_so_far(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    timed = progress._Timed("planning")
    assert str(timed.__rich__()) == "[0 s] planning"
    now[0] = 172.4
    timed.report("measuring ops", "3 of 80")
    assert str(timed.__rich__()) == "[72 s] measuring ops: 3 of 80"


def test_work_of_less_than_a_second_prints_nothing(monkeypatch):
    monkeypatch.delenv("TRAINYARD_PROGRESS")
    monkeypatch.setattr(progress, "_LOOK_EVERY_S", 3600.0)
    stream = io.StringIO()
    with showing_progress(Console(file=stream), "planning") as tell:
        tell("simulating", "")
    assert stream.getvalue() == ""


def said_within(console, stream):
    """What is printed until the first line, or for as long as a look takes."""
    with showing_progress(console, "planning [b]x[/b]") as tell:
        tell("planning [b]x[/b]", "\x1b[2J")
        until_s = time.monotonic() + 30.0
        while not stream.getvalue().endswith("\n") and time.monotonic() < until_s:
            time.sleep(0.001)
    return stream.getvalue()


def test_a_log_has_lines_without_markup_and_commands_to_terminals(at_once):
    stream = io.StringIO()
    assert said_within(Console(file=stream), stream) in {
        "[0 s] planning [b]x[/b]\n",
        "[0 s] planning [b]x[/b]: \\x1b[2J\n",
    }


@pytest.mark.parametrize("is_silent", [True, False], ids=["silent rank", "switched off"])
def test_silent_ranks_and_who_switches_it_off_see_nothing(at_once, monkeypatch, capsys, is_silent):
    if not is_silent:
        monkeypatch.setenv("TRAINYARD_PROGRESS", "off")
    with Screen(as_json=False, is_silent=is_silent).waiting("planning"):
        time.sleep(0.05)
    assert capsys.readouterr() == ("", "")


def test_stdout_has_none_of_it(at_once, capsys):
    with Screen(as_json=True).waiting("planning"):
        until_s = time.monotonic() + 30.0
        said = ""
        while not said and time.monotonic() < until_s:
            out, said = capsys.readouterr()
            assert out == ""
    assert said.startswith("[0 s] planning\n")


def test_on_a_terminal_the_line_is_rewritten_and_disappears(at_once):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True)
    with showing_progress(console, "planning") as tell:
        tell("measuring ops", "3 of 80")
    assert "\n[" not in stream.getvalue()
    assert stream.getvalue().endswith("\x1b[2K")


def test_processes_may_be_forked_while_lines_are_printed(at_once):
    """A forked process has no lock that a thread of its parent held."""
    with showing_progress(Console(file=io.StringIO()), "planning"):
        for _ in range(20):
            child = os.fork()
            if child == 0:
                os._exit(0 if progress._saying.acquire(timeout=30.0) else 1)
            assert os.waitpid(child, 0)[1] == 0


def test_planning_tells_its_stages():
    told = []
    plan(load_model("gpt-tiny"), "1x2xA100-80G", "data_parallel", progress=lambda *news: told.append(news))
    assert told == [("capturing the model", ""), ("applying data_parallel", ""), ("simulating the plan", "")]


def test_measuring_counts_the_ops_of_all_traces():
    graph = make_fx(lambda x: (x.relu().exp(),), tracing_mode="fake")(torch.empty(4)).graph
    trace, told = trace_graph(graph, ["x"], ["y"]), []
    at_op = _counted([(trace, trace), (trace,)], lambda *news: told.append(news))
    for signature in (*trace.work, "", "half a sig", *trace.work):  # all are measured several times
        at_op(signature)
    assert list(dict.fromkeys(part for _, part in told)) == ["0 of 2", "1 of 2", "2 of 2"]
    assert told[-1] == ("measuring ops", "2 of 2")
