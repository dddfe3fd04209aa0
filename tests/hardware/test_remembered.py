"""What cannot be remembered of this machine is gone without, and that is said once."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard import caches
from trainyard.cost.measurements import Measurements
from trainyard.hardware import remembered
from trainyard.hardware.local import remembered_cluster
from trainyard.hardware.remembered import (
    cache_folder,
    forget_measurements,
    measurements_file,
    measuring,
    recall,
    remember,
)


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "_told", set())
    monkeypatch.setattr(remembered, "_unwritten", {})


def no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "file"))


def no_home(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("TRAINYARD_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", fails)


def full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path))
    monkeypatch.setattr(remembered.tempfile, "mkstemp", fails)


@pytest.mark.parametrize("what", [no_folder, no_home, full_disk])
def test_what_cannot_be_written_is_kept_until_the_process_ends(what, tmp_path, monkeypatch, capsys) -> None:
    what(tmp_path, monkeypatch)
    path = measurements_file("machine")
    with measuring():
        for text in ("first", "second"):
            remember(path, text)
            assert recall(path) == text
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "goes on without remembered measurements of this machine" in said
    forget_measurements()
    assert recall(path) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"version": 1, "cpu": ' + b"9" * 5000])
def test_damaged_files_are_measured_anew(content, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path))
    for kind in ("machine", "ops"):
        measurements_file(kind).write_bytes(content)
    assert remembered_cluster(2) is None
    assert Measurements.read().entries == {}
    assert capsys.readouterr().err.count("\n") == 1
    assert cache_folder() == tmp_path
