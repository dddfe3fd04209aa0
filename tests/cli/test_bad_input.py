"""Input that cannot be used: exit code 2 and one line that says what was given, what is allowed, what to do."""

from __future__ import annotations

import pytest

from trainyard.cli import main as cli

TINY = ("gpt-tiny", "--cluster", "1x2xA100-80G")
USER_FILE = """
import torch
from torch import nn


def loss(module, batch):
    return module(batch["x"]).mean()


def model():
    return nn.Linear(4, %d), loss, {"x": torch.zeros(4, 4)}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with good and bad files, which is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "garbage.yaml").write_text("model: [unclosed")
    (tmp_path / "list.yaml").write_text("- a\n- b\n")
    (tmp_path / "half.yaml").write_text("model: gpt-tiny\nmesh: {data: 1, tensor: 1}\n")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01")
    (tmp_path / "cluster.yaml").write_text("nodes: 3\n")
    (tmp_path / "no_model.py").write_text("x = 1\n")
    (tmp_path / "good.py").write_text(USER_FILE % 4)
    return tmp_path


# What is typed, and what the line must say: what was given, what is allowed, what to do.
CASES = {
    "unknown model": (("plan", "gpt-tny", "--cluster", "1x2xT4"), ("gpt-tny", "gpt-tiny")),
    "unknown device": (("plan", "gpt-tiny", "--cluster", "1x2xA100-81G"), ("A100-81G", "A100-80G", "YAML")),
    "cluster that does not parse": (("plan", "gpt-tiny", "--cluster", "2 x 4"), ("2 x 4", "16x8xA100-80G")),
    "missing cluster file": (("hardware", "nowhere.yaml"), ("nowhere.yaml", "give")),
    "bad cluster file": (("hardware", "cluster.yaml"), ("nodes",)),
    "no cluster": (("plan", "gpt-tiny"), ("--cluster",)),
    "misspelt flag": (("plan", *TINY, "--strategy", "zero"), ("--strategy", "--strategies")),
    "not a number": (("plan", *TINY, "--rows", "many"), ("--rows", "many")),
    "no rows": (("plan", *TINY, "--rows", "0"), ("rows",)),
    "unknown dtype": (("plan", *TINY, "--dtype", "float8"), ("float8", "bfloat16")),
    "unknown strategy": (("plan", *TINY, "--strategies", "megatrn"), ("megatrn", "megatron")),
    "unknown option": (("plan", *TINY, "--strategies", "zero(level=3)"), ("level", "stage")),
    "strategies that do not parse": (("plan", *TINY, "--strategies", "zero+"), ("zero+", "joined by +")),
    "unknown strategy to compare": (("compare", *TINY, "--strategies", "zero,gpip"), ("gpip", "gpipe")),
    "nothing to compare": (("compare", *TINY, "--strategies", ","), ("--strategies",)),
    "batch not divisible": (
        ("plan", "gpt-tiny", "--cluster", "1x8xT4", "--rows", "6", "--strategies", "data_parallel"),
        ("6", "multiple"),
    ),
    "missing model file": (("plan", "nowhere.py", "--cluster", "1x2xT4"), ("nowhere.py", "def model()")),
    "file without model": (("plan", "no_model.py", "--cluster", "1x2xT4"), ("no_model.py", "def model()")),
    "rows for a file": (("plan", "good.py", "--cluster", "1x2xT4", "--rows", "8"), ("good.py", "8")),
    "missing plan": (("simulate", "nowhere.yaml"), ("nowhere.yaml", "trainyard plan")),
    "plan that is no YAML": (("simulate", "garbage.yaml"), ("garbage.yaml", "YAML")),
    "plan that is a list": (("simulate", "list.yaml"), ("list.yaml", "mapping")),
    "half a plan": (("run", "half.yaml"), ("half.yaml", "schedule")),
    "binary plan": (("simulate", "binary.yaml"), ("binary.yaml", "not text")),
    "unknown paper": (("papers", "zer0"), ("zer0", "zero")),
    "nothing to reproduce": (("reproduce", "zer0"), ("zer0", "zero")),
    "negative time to start": (
        ("fleet", "simulate", "--trace", "jobs.csv", "--cluster", "2x4", "--start-s", "-1"),
        ("start_s", "at least 0 seconds", "-1"),
    ),
    "time to restart that is no number": (
        ("fleet", "simulate", "--trace", "jobs.csv", "--cluster", "2x4", "--restart-s", "nan"),
        ("restart_s", "at least 0 seconds", "nan"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input(case, folder, capsys):
    arguments, said = CASES[case]
    check(arguments, said, capsys)


def check(arguments, said, capsys):
    code = cli.main(arguments)
    out, err = capsys.readouterr()
    assert code == 2, err
    assert out == ""
    assert "Traceback" not in err
    assert err.startswith("error: ")
    assert len(err.strip().splitlines()) == 1
    for word in said:
        assert word in err


def test_model_that_cannot_fit(folder, capsys):
    arguments = ("plan", "gpt2", "--cluster", "1x1xT4", "--rows", "512", "--strategies", "data_parallel")
    code = cli.main(arguments)
    out, _ = capsys.readouterr()
    # A plan that was asked for by name is shown, with what is short.
    assert code == 0
    assert "DOES NOT FIT" in out
    assert "are missing" in out


def test_nothing_that_fits(folder, capsys):
    said = ("megatron-22b", "GiB", "devices with more memory")
    check(("plan", "megatron-22b", "--cluster", "1x2xT4", "--rows", "2"), said, capsys)


def test_plan_of_another_model(folder, capsys):
    (folder / "other.py").write_text(USER_FILE % 8)
    assert (
        cli.main(("plan", "good.py", "--cluster", "1x1xT4", "--strategies", "data_parallel", "--save", "p"))
        == 0
    )
    capsys.readouterr()
    check(("simulate", "p", "--model", "other.py"), ("fingerprint", "Plan again"), capsys)


def test_cluster_that_is_too_small(folder, capsys):
    assert cli.main(("plan", *TINY, "--strategies", "data_parallel", "--save", "p.yaml")) == 0
    capsys.readouterr()
    check(("simulate", "p.yaml", "--cluster", "1x1xT4"), ("2 devices", "has 1"), capsys)
