"""The errors that the guide says to expect are those of the newest comparison with measured steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
(RECORD,) = (ROOT / "benchmarks" / "records").glob("*Z-truth.json")
RESULTS = json.loads(RECORD.read_text())["results"]
GUIDE = (ROOT / "docs" / "guide-job.md").read_text()


def _percent(share: float, sign: str = "") -> str:
    return f"{100 * share:{sign}.0f} %"


def _line(group: str, found: dict[str, float]) -> str:
    sizes = (_percent(found[f"{name}_absolute_error"]) for name in ("mean", "median"))
    signed = (_percent(found[name], "+") for name in ("worst_error", "median_error"))
    return f"| {group} | {found['rows']} | {' | '.join((*sizes, *signed))} |"


@pytest.mark.parametrize("name", ["time", "memory"])
def test_the_guide_has_the_errors_of_the_record(name: str) -> None:
    lines = [_line(group, found) for group, found in RESULTS[f"{name}_errors"].items()]
    (table,) = (part for part in GUIDE.split("\n\n") if part.startswith(f"| {name} of a step, source |"))
    assert sorted(table.splitlines()[2:]) == sorted(lines)


def test_the_guide_says_how_good_the_choice_is() -> None:
    for model, found in RESULTS["choices"].items():
        assert f"| {model} | {found['plans']} | {found['measured_to_best']:.2f} |" in GUIDE


def test_the_guide_says_what_part_of_a_source_is_simulated() -> None:
    parts = [
        why.removesuffix(" is simulated") for why in RESULTS["rows_left_out"] if why.endswith(" is simulated")
    ]
    assert [part for part in parts if part not in GUIDE] == []
