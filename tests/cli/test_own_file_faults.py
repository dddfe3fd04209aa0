"""Errors that arise in a user's own file: one line says where, and what happened."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from refused_commands import check_refused

from trainyard.cli import main as cli

_POLICY = """
from trainyard.serve.errors import ServeError
import own_look


class Own:
    repeats = "never"

    def __init__(self, what="zero"):
        self.what = what

    def start(self):
        return None

    def decide(self, draft, state):
        getattr(self, self.what)()

    def zero(self):
        return 1 / 0

    def boom(self):
        raise ValueError("boom")

    def beside(self):
        own_look.look({})


def made(width=1):
    return None + width


class Scheduler:
    needs, preempts = frozenset(), False

    def start(self, *setting):
        return None

    def decide(self, *now):
        return [][3]
"""
_MODEL = """
import torch
from torch import nn


class Net(nn.Linear):
    def forward(self, x):
        return super().forward(self.lacks(x))


def model():
    return Net(4, 4), lambda net, batch: net(batch["x"]).mean(), {"x": torch.zeros(4, 4)}
"""
_SERVE = (
    "serve",
    "simulate",
    "--model",
    "gpt-tiny",
    "--cluster",
    "1x1xT4",
    "--rate",
    "5",
    "--num",
    "3",
    "--policy",
)
_FLEET = ("fleet", "simulate", "--cluster", "1x1xT4", "--trace", "jobs.csv", "--policy")
_STUDY = ("fleet", "compare", "--cluster", "1x1xT4", "--jobs", "2", "--seeds", "2", "--policy")
_PLAN = ("plan", "--cluster", "1x1xT4")
FAULTS = {
    "a decision": ((*_SERVE, "own.py:Own"), "own.py, line 19, in zero: ZeroDivisionError: division by zero"),
    "what users may mean": ((*_SERVE, "own.py:Own(what='boom')"), "own.py, line 22, in boom: ValueError: boom"),
    "a file beside": ((*_SERVE, "own.py:Own(what='beside')"), "own_look.py, line 2, in look: KeyError: 'width'"),
    "what makes it": ((*_SERVE, "own.py:made"), "(own.py, line 29, in made: TypeError)"),
    "a decision of a fleet": ((*_FLEET, "own.py:Scheduler"), "own.py, line 39, in decide: IndexError: list index"),
    "in another process": ((*_STUDY, "own.py:Scheduler"), "own.py, line 39, in decide: IndexError: list index"),
    "its import": ((*_SERVE, "lacks.py:Own"), "lacks.py, line 1: ModuleNotFoundError: No module named 'nowhere_at_all'"),
    "its syntax": ((*_SERVE, "torn.py:Own"), "torn.py, line 1: SyntaxError: "),
    "a model's syntax": ((*_PLAN, "torn.py"), "torn.py, line 1: SyntaxError: "),
    "a model": ((*_PLAN, "net.py"), "net.py, line 8, in forward: AttributeError: 'Net' object has no attribute 'lacks'"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files of a user, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRAINYARD_DEBUG", raising=False)
    monkeypatch.delitem(sys.modules, "own_look", raising=False)  # of another folder
    (tmp_path / "own.py").write_text(_POLICY)
    (tmp_path / "own_look.py").write_text('def look(sizes):\n    return sizes["width"]\n')
    (tmp_path / "lacks.py").write_text("import nowhere_at_all\n")
    (tmp_path / "torn.py").write_text("class Own(:\n")
    (tmp_path / "net.py").write_text(_MODEL)
    (tmp_path / "jobs.csv").write_text("name,arrival_s,num_devices,length_s\na,0,1,10\n")
    return tmp_path


@pytest.mark.parametrize("case", FAULTS)
def test_the_place_is_said(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, said = FAULTS[case]
    check_refused(arguments, (said,), capsys)


def test_the_traceback_may_be_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_DEBUG", "1")
    assert cli.main((*_SERVE, "own.py:Own")) == 2
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert "in decide\n    getattr(self, self.what)()" in told
    assert told.splitlines()[-1].startswith("error: own.py, line 19")
