"""What commands write: never over a file that they read, nor into a folder that they read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from refused_commands import check_refused

_OWN = "class Own:\n    pass\n"
_SERVED = ("--requests", "t.csv", "--cluster", "1x1xT4")
_SIMULATE = ("serve", "simulate", "--model", "gpt-tiny", *_SERVED)
_FLEET = ("fleet", "simulate", "--cluster", "1x1xT4", "--trace", "t.csv")
OVERWRITING = {
    "a trace by a table": (_SIMULATE, "--csv", "t.csv", "--requests"),
    "a trace by a page": (_SIMULATE, "--html", "./t.csv", "--requests"),
    "a trace through a link": (_SIMULATE, "--html", "link.csv", "--requests"),
    "a trace by its other name": (_SIMULATE, "--html", "twin.csv", "--requests"),
    "a policy in a list": ((*_SIMULATE, "--policy", "vllm,sarathi + own.py:Own"), "--csv", "own.py", "--policy"),
    "a trace of jobs": (_FLEET, "--csv", "t.csv", "--trace"),
    "a trace of jobs by a page": (("fleet", "compare", *_FLEET[2:]), "--html", "t.csv", "--trace"),
    "jobs that run": (("fleet", "run", "--folder", "f", *_FLEET[2:]), "--html", "t.csv", "--trace"),
    "a plan": (("simulate", "t.csv"), "--perfetto", "t.csv", "PLAN"),
    "a cluster": (("plan", "gpt-tiny", "--cluster", "t.csv"), "--save", "t.csv", "--cluster"),
    "a model": (("compare", "own.py", "--cluster", "1x1xT4", "--strategies", "zero"), "--html", "own.py", "MODEL"),
    "a profile of a model": (("serve", "place", "t.csv:1/s:1s", "--cluster", "1x1xT4"), "--html", "t.csv", "MODELS"),
    "requests to plan for": (("serve", "plan", "gpt-tiny", *_SERVED), "--html", "t.csv", "--requests"),
    "requests to send": (("serve", "bench", "--url", "http://a", *_SERVED[:2]), "--csv", "t.csv", "--requests"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files that commands read, which is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("kept")
    (tmp_path / "own.py").write_text(_OWN)
    (tmp_path / "link.csv").symlink_to("t.csv")
    os.link("t.csv", "twin.csv")
    (tmp_path / "read" / "below").mkdir(parents=True)
    (tmp_path / "read" / "config.json").write_text("{}")
    (tmp_path / "other").symlink_to("read")
    return tmp_path


@pytest.mark.parametrize("case", OVERWRITING)
def test_no_input_is_overwritten(case: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, option, path, reader = OVERWRITING[case]
    said = f"{option} {Path(path)} would overwrite what {reader} reads; give another file"
    check_refused((*arguments, option, path), (said,), capsys)
    assert (folder / "t.csv").read_text() == "kept"
    assert (folder / "own.py").read_text() == _OWN


INSIDE = {
    "kernels": ((*_SIMULATE, "--kernels", "read"), "--csv", "read/below/r.csv", "read", "--kernels"),
    "kernels of a model": ((*_SIMULATE, "--kernels", "read:llama3-8b"), "--html", "read/p.html", "read", "--kernels"),
    "one of two folders": ((*_SIMULATE, "--kernels", "nowhere,read:vllm"), "--html", "read/p.html", "read", "--kernels"),
    "through a link": ((*_SIMULATE, "--kernels", "read"), "--csv", "other/r.csv", "read", "--kernels"),
    "kernels to plan with": (
        ("serve", "plan", "gpt-tiny", *_SERVED, "--kernels", "read"), "--html", "read/p.html", "read", "--kernels"
    ),
    "a model to simulate": (
        ("serve", "simulate", "--model", "read", *_SERVED), "--html", "read/p.html", "read", "--model"
    ),
    "a model to serve": (("serve", "compare", "./read", *_SERVED[:2]), "--html", "read/p.html", "read", "MODEL"),
    "a model to train": (
        ("compare", "read", "--cluster", "1x1xT4", "--strategies", "zero"), "--html", "read/p.html", "read", "MODEL"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", INSIDE)
def test_nothing_is_written_into_a_folder_that_is_read(
    case: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, option, path, read, reader = INSIDE[case]
    said = f"{option} {path} lies in the folder {read}, which {reader} reads; give another file"
    check_refused((*arguments, option, path), (said,), capsys)
    assert sorted(each.name for each in (folder / "read").rglob("*")) == ["below", "config.json"]


def test_a_folder_with_the_name_of_a_policy_is_not_read(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "vllm").mkdir()
    check_refused((*_SIMULATE, "--policy", "vllm", "--csv", "vllm/r.csv"), ("t.csv",), capsys)
