"""The log of a job as its user reads it: as much as was asked for, and never more than can be held."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainyard.fleet.daemon.log import log_text
from trainyard.fleet.run.job_directory import JobDirectory


@pytest.mark.parametrize(("num_ranks", "num_lines", "told"), [(1, 2, 2), (3, 10**9, 2500), (400, 10**9, 24)])
def test_the_last_lines_of_each_process(num_ranks: int, num_lines: int, told: int, tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path)
    directory.logs.mkdir()
    for rank in range(num_ranks):
        (directory.logs / f"rank-{rank}.log").write_text("x\n" * 5000)
    steps = [{"step": step, "losses": {"loss": 1.0}, "seconds": 0.5} for step in range(5000)]
    lines = "".join(json.dumps(step) + "\n" for step in steps)
    (directory.logs / "metrics.jsonl").write_text(lines + '{"step": 5')  # it is being written
    text = log_text(directory, num_lines)
    assert text.count("\nx") == num_ranks * told
    assert text.startswith(f"step {5000 - told + 2}  loss 1.0000  0.500 s\n")
    assert "--- rank-0 printed\nx\n" in text
    assert text.count("\n") <= 10_000 + num_ranks


def test_what_is_printed_need_be_no_text_and_have_no_lines(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path)
    directory.logs.mkdir()
    (directory.logs / "rank-0.log").write_bytes(b"\xff\x00" * 2_000_000)
    assert len(log_text(directory, 10)) < 30_000
