"""Loss and speed of a job over its steps: right, and bounded work however long the job trains."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest

from trainyard.fleet.daemon import curves
from trainyard.fleet.daemon.curves import CurvePoint, curve_of
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.workload.command import Command
from trainyard.fleet.workload.training import Training


def line(step: int, loss: float, seconds: float = 0.5) -> str:
    return json.dumps({"step": step, "losses": {"loss": loss}, "seconds": seconds}) + "\n"


def trained(folder: Path, lines: Iterable[str], older: Iterable[str] = ()) -> JobDirectory:
    """A job that has written lines, and older ones before."""
    directory = JobDirectory(folder / "a")
    directory.set_up(Training("gpt-tiny", 4, 8))
    (directory.logs / "metrics.jsonl").write_text("".join(lines))
    if older:
        (directory.logs / "metrics.1.jsonl").write_text("".join(older))
    return directory


def test_each_of_few_steps_is_a_point(tmp_path: Path) -> None:
    directory = trained(tmp_path, [line(2, 3.0), line(3, 2.5, 0.25), '{"step": 4'], older=[line(1, 4.0)])
    assert curve_of(directory) == [(2, 4.0, 2.0), (3, 3.0, 2.0), (4, 2.5, 4.0)]


def test_points_are_means_of_some_steps(tmp_path: Path) -> None:
    directory = trained(tmp_path, [line(step, float(step)) for step in range(100)])
    points = curve_of(directory)
    assert len(points) == 25
    assert points[-1] == CurvePoint(100, 97.5, 2.0)
    assert points[0] == CurvePoint(4, 1.5, 2.0)


def test_steps_that_are_done_again_count_once(tmp_path: Path) -> None:
    directory = trained(tmp_path, [line(0, 5.0), line(1, 4.0), line(2, 3.0), line(1, 4.5), line(2, 3.5)])
    assert [(point.step, point.loss) for point in curve_of(directory)] == [(1, 5.0), (2, 4.5), (3, 3.5)]


def test_of_a_long_job_parts_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    num_steps, sizes = 100_000, list[int]()
    older, newer = (
        [line(step, 1.0 + step / num_steps) for step in steps]
        for steps in (range(60_000), range(60_000, num_steps))
    )
    directory = trained(tmp_path, newer, older)
    whole = curves._lines

    def seen(file: Path, begin: int, end: int) -> list[bytes]:
        sizes.append(end - begin)
        return whole(file, begin, end)

    monkeypatch.setattr(curves, "_lines", seen)
    points = curve_of(directory)
    assert sum(map(len, older + newer)) > 4_000_000
    assert sum(sizes) <= 34 * 8192
    assert 32 <= len(points) <= 34
    steps = [point.step for point in points]
    assert steps[-1] == num_steps
    assert steps == sorted(steps)
    assert max(b - a for a, b in pairwise(steps)) < 1.5 * num_steps / 32
    assert all(point.loss == pytest.approx(1.0 + point.step / num_steps, abs=0.001) for point in points)


def test_progress_of_a_command(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "b")
    directory.set_up(Command("true", "/", steps=100))
    directory.progress_file.write_text(
        '{"step": 10, "loss": 2.5}\n{"step": 20, "steps_per_s": 4, "loss": NaN}\nwhat?\n{"step": 900, "loss": 1}\n'
    )
    assert curve_of(directory) == [(10, 2.5, None), (20, None, 4.0), (100, 1.0, None)]


def test_a_job_that_says_nothing_has_no_curve(tmp_path: Path) -> None:
    assert curve_of(JobDirectory(tmp_path / "nothing")) == []
    silent = JobDirectory(tmp_path / "silent")
    silent.set_up(Command("true", "/"))
    silent.progress_file.write_text('{"step": 10, "loss": 2.5}\n')
    assert curve_of(silent) == [], "it did not say how many steps it does"
    damaged = trained(tmp_path, [line(0, 5.0)])
    (damaged.path / "training.json").write_text("{")
    assert curve_of(damaged) == []
