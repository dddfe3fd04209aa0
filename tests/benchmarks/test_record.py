"""Benchmark records say where and on what code something was measured."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

_PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "record.py"


@pytest.fixture
def record() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_record", _PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_record_holds_results_and_circumstances(record: ModuleType, tmp_path: Path) -> None:
    path = record.write_record("things", {"things_per_s": 3.5}, tmp_path / "new")
    assert path.parent == tmp_path / "new"
    assert path.name.endswith("Z-things.json")
    written = json.loads(path.read_text())
    assert written["results"] == {"things_per_s": 3.5}
    assert written["machine"]["cores"] >= 1
    assert written["machine"]["cpu"]
    assert written["versions"]["numba"]
    assert written["measured_at"].endswith("+00:00")


def test_there_is_no_commit_outside_a_repository(
    record: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "_HERE", tmp_path)
    assert record.commit() is None
