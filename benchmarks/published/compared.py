"""What was measured beside what is predicted, and tables of errors."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainyard.serve.results import Served

Errors = dict[str, float]


@dataclass(frozen=True)
class Compared:
    """One number of one run.

    Attributes
    ----------
    run : the source of what was measured.
    what : TTFT, TPOT (ms) or throughput (tokens/s).
    by : who predicts.
    measured, predicted : mean of the run, or that of a configuration.
    groups : others that it is counted in, beside its run.
    """

    run: str
    what: str
    by: str
    measured: float
    predicted: float
    groups: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        """Relative; above 0 where too much was predicted."""
        return self.predicted / self.measured - 1


def rows_of(path: Path, **wanted: str) -> list[dict[str, str]]:
    """Rows of a table with these values."""
    with path.open() as lines:
        return [
            row for row in csv.DictReader(lines) if all(row[key] == value for key, value in wanted.items())
        ]


def compare(
    run: str, by: str, results: Sequence[Served], measured: dict[str, float], groups: tuple[str, ...] = ()
) -> Iterator[Compared]:
    """Means of a run."""
    span_s = max(each.finished_s for each in results) - min(each.arrival_s for each in results)
    ours: dict[str, float] = {
        "TTFT ms": 1e3 * float(np.mean([each.ttft_s for each in results])),
        "TPOT ms": 1e3 * float(np.mean([each.tpot_s for each in results if each.output_tokens > 1])),
        "tokens/s": sum(each.output_tokens for each in results) / span_s,
    }
    for what, value in measured.items():
        yield Compared(run, what, by, value, ours[what], groups)


def summary(compared: Sequence[Compared]) -> dict[str, Errors]:
    """Errors by run or group, by quantity and by who predicts it."""
    groups: dict[str, list[float]] = {}
    for each in compared:
        for run in (each.run, *each.groups):
            groups.setdefault(f"{run}: {each.what}, {each.by}", []).append(each.error)

    def ratio(errors: list[float], share: float) -> float:
        """Of what was measured to what was predicted: so many of the configurations are below."""
        return float(np.quantile(1 / (1 + np.array(errors)), share))

    return {
        key: {
            "num": len(errors),
            "measured_to_predicted_p10": ratio(errors, 0.1),
            "measured_to_predicted_p90": ratio(errors, 0.9),
            "mean_error": float(np.mean(errors)),
            "median_error": float(np.median(errors)),
            "mean_absolute_error": float(np.mean(np.abs(errors))),
            "median_absolute_error": float(np.median(np.abs(errors))),
        }
        for key, errors in sorted(groups.items())
    }
