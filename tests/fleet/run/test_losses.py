"""Losses are read epoch by epoch while a job writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainyard.fleet.run import losses
from trainyard.fleet.run.losses import Losses


def lines(*pairs: tuple[int, float]) -> str:
    return "".join(json.dumps({"step": step, "losses": {"loss": loss}}) + "\n" for step, loss in pairs)


def test_the_mean_of_every_epoch_that_is_over(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    read = Losses(tmp_path, 2)
    assert read.read() == ()
    whole = lines((0, 4.0), (1, 2.0), (2, 2.0))
    file.write_text(whole + '{"step": 3, "lo')
    assert read.read() == ((2.0, 3.0),)
    file.write_text(whole + lines((3, 1.0), (4, 0.5)))
    assert read.read() == ((2.0, 3.0), (4.0, 1.5))


def test_steps_that_are_done_again_count_once(tmp_path: Path) -> None:
    """A job that was killed goes on from its checkpoint; half a line may be left of its last step."""
    file = tmp_path / "metrics.jsonl"
    before = lines((0, 4.0), (1, 2.0), (2, 2.0), (3, 1.0), (4, 0.5))
    file.write_text(before + '{"step": 5, "l\n')
    read = Losses(tmp_path, 2)
    assert read.read() == ((2.0, 3.0), (4.0, 1.5))
    with file.open("a") as more:
        more.write(lines((2, 2.0), (3, 1.0), (4, 0.5), (5, 0.3)))
    assert read.read() == ((2.0, 3.0), (4.0, 1.5), (6.0, 0.4))


def test_no_line_is_read_twice(tmp_path: Path) -> None:
    file, first = tmp_path / "metrics.jsonl", lines((0, 4.0), (1, 2.0))
    file.write_text(first)
    read = Losses(tmp_path, 2)
    assert read.read() == ((2.0, 3.0),)
    file.write_text("x" * len(first) + lines((2, 2.0), (3, 1.0)))
    assert read.read() == ((2.0, 3.0), (4.0, 1.5))


def test_a_long_file_is_read_over_several_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_MOST_BYTES", 1000)
    file = tmp_path / "metrics.jsonl"
    file.write_text(lines(*((step, 1.0) for step in range(200))))
    read = Losses(tmp_path, 10)
    assert 0 < len(read.read()) < 5
    looks = [len(read.read()) for _ in range(20)]
    assert looks == sorted(looks)
    assert looks[-1] == 20


def test_a_loss_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(lines((0, 1.0), (1, float("nan")), (2, 0.5)))
    assert Losses(tmp_path, 1).read() == ((1.0, 1.0), (3.0, 0.5))


def test_a_file_that_is_begun_anew(tmp_path: Path) -> None:
    """As metrics are that have grown too large; nothing of the older file is missed, whoever begins to read when."""
    file = tmp_path / "metrics.jsonl"
    file.write_text(lines((0, 4.0), (1, 2.0)))
    reads = [Losses(tmp_path, 2)]
    assert reads[0].read() == ((2.0, 3.0),)
    with file.open("a") as more:
        more.write(lines((2, 2.0)) + '{"step": 3, "l')
    file.rename(tmp_path / "metrics.1.jsonl")
    file.write_text(lines((3, 1.0)))
    reads.append(Losses(tmp_path, 2))
    for read in reads:
        assert [read.read() for _ in range(3)][-1] == ((2.0, 3.0), (4.0, 1.5))
