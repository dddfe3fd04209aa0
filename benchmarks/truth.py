"""Measured steps of training beside their simulations: errors of time and memory by source.

Run `python benchmarks/truth.py SHARED [TEXT] [EVERY]`. SHARED is a folder with the published tables (`data/perf` and
`cases/numbers`). TEXT restricts the run to sources that have it in their name; of the others the record keeps what it
has. EVERY=N takes only every N-th row of vTrain, the largest source (1 by default).

Every row is simulated with its own plan on the usual cluster of its devices, and all with the same parameters: nothing is
fitted to what is compared here. Memory is compared with the bytes of tensors, which PyTorch counts as allocated. A full
run takes some ten minutes.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from published.steps import Step, steps
from record import RECORDS, finish, not_here, parser

from trainyard.cost.ops import Roofline
from trainyard.errors import TrainyardError
from trainyard.hardware.parse import parse_cluster
from trainyard.job.planning import make_setting
from trainyard.job.reproduce.simulated import simulated
from trainyard.job.task import Task

_GIB = 2**30
_SMALLEST = 3  # steps, those with the fewest layers and rows


@dataclass(frozen=True)
class ComparedStep:
    """A step that was measured and simulated: seconds and GiB of both; None where they were not measured.

    Attributes
    ----------
    source, run, kind, model : as in `Step`.
    """

    source: str
    run: str
    kind: str
    model: str
    measured_s: float | None
    predicted_s: float
    measured_gib: float | None
    predicted_gib: float

    @property
    def time_error(self) -> float | None:
        """Relative error of the time, above 0 if too much is predicted; None if it was not measured."""
        return self.predicted_s / self.measured_s - 1 if self.measured_s else None

    @property
    def memory_error(self) -> float | None:
        """Relative error of the memory, above 0 if too much is predicted; None if it was not measured."""
        return self.predicted_gib / self.measured_gib - 1 if self.measured_gib else None


@lru_cache(maxsize=2)
def _task(build: Any, sizes: Any, rows: int, dtype: str) -> Task:
    """A model, which is captured once for all plans that follow each other."""
    with torch.device("meta"):
        return Task(build("model", sizes, rows), dtype)


def compare(step: Step) -> ComparedStep:
    """Simulate a step that was measured.

    Raises
    ------
    TrainyardError
        If there is no such plan.
    """
    setting = make_setting(_task(step.build, step.sizes, step.rows, step.dtype), parse_cluster(step.cluster))
    found = simulated(setting, step.strategies, op_seconds=Roofline(tf32=step.tf32))
    return ComparedStep(
        *(step.source, step.run, step.kind, step.model),
        *(step.seconds, found.step_s, step.gib, max(found.tensor_bytes) / _GIB),
    )


def errors(found: Sequence[float]) -> dict[str, float]:
    """Summarize relative errors; ``short`` counts the rows of which too little is predicted."""
    sizes = np.abs(found)
    return {
        "rows": len(found),
        "mean_absolute_error": float(sizes.mean()),
        "median_absolute_error": float(np.median(sizes)),
        "worst_error": float(found[int(sizes.argmax())]),
        "median_error": float(np.median(found)),
        "short": int((np.array(found) < 0).sum()),
    }


def tables(compared: Iterable[ComparedStep]) -> dict[str, dict[str, dict[str, float]]]:
    """Errors of time and memory by source, and by kind of model."""
    found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in ("time", "memory")}
    for each in compared:
        for name, error in (("time", each.time_error), ("memory", each.memory_error)):
            if error is not None:
                for group in (each.source, f"all of {each.kind}", "all"):
                    found[name][group].append(error)
    return {name: {group: errors(own) for group, own in groups.items()} for name, groups in found.items()}


def choices(compared: Iterable[ComparedStep]) -> dict[str, dict[str, float]]:
    """Of each model with several measured plans: how much longer the step of the plan that is predicted to be the best
    took than that of the best."""
    plans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for each in compared:
        if each.model and each.measured_s:
            plans[each.model].append((each.predicted_s, each.measured_s))
    return {
        model: {"plans": len(own), "measured_to_best": min(own)[1] / min(measured for _, measured in own)}
        for model, own in plans.items()
        if len(own) > 1
    }


def of_newest_record(records: Path, only: str) -> tuple[list[ComparedStep], dict[str, int]]:
    """Read the sources that are not simulated now from the newest record: steps, and rows left out by reason."""
    paths = sorted(records.glob("*Z-truth.json"))
    if not paths:
        return [], {}
    results = json.loads(paths[-1].read_text())["results"]
    rows = [ComparedStep(**row) for row in results["rows"]]
    left_out = {
        why: num for why, num in results["rows_left_out"].items() if only not in why.partition(":")[0]
    }
    return [each for each in rows if only not in each.source], left_out


def main() -> None:
    options = parser(__doc__)
    options.add_argument("shared", type=Path, metavar="SHARED")
    options.add_argument("only", nargs="?", default="", metavar="TEXT")
    options.add_argument("every", type=int, nargs="?", default=1, metavar="EVERY")
    given = options.parse_args()
    if not given.shared.is_dir():
        not_here(f"{given.shared} is no folder; give the one of the published tables")
    begin_s = time.process_time()
    left_out = Counter[str]()
    wanted = [step for step in steps(given.shared, given.every, left_out) if given.only in step.source]
    if given.smallest:
        small = [step for step in wanted if step.rows and hasattr(step.sizes, "layers")]
        wanted = sorted(small, key=lambda step: step.sizes.layers * step.rows)[:_SMALLEST]
    # Plans of one model after each other, so that it is captured once.
    wanted.sort(key=lambda step: (step.source, step.dtype, repr(step.sizes), step.rows))
    compared: list[ComparedStep] = []
    for number, step in enumerate(wanted, 1):
        try:
            compared.append(compare(step))
            _say(number, len(wanted), compared[-1], time.process_time() - begin_s)
        except TrainyardError as error:
            left_out[f"{step.source}: {_reason(error)}"] += 1
    left_out = Counter({why: num for why, num in left_out.items() if given.only in why.partition(":")[0]})
    if not given.smallest:
        known, reasons = of_newest_record(RECORDS, given.only)
        compared = [*known, *compared]
        left_out.update(reasons)
    results = {
        **{f"{name}_errors": groups for name, groups in tables(compared).items()},
        "choices": choices(compared),
        "rows_left_out": dict(sorted(left_out.items())),
        "rows": [vars(each) for each in compared],
        "seconds": time.process_time() - begin_s,
    }
    _show(results)
    finish("truth", results, given.smallest)


def _show(results: Mapping[str, Any]) -> None:
    for name in ("time", "memory"):
        for group, own in results[f"{name}_errors"].items():
            print(
                f"{name:6} {group:26} {own['rows']:4} rows  mean {own['mean_absolute_error']:6.1%}  "
                f"median {own['median_absolute_error']:6.1%}  worst {own['worst_error']:+7.1%}  "
                f"signed median {own['median_error']:+7.1%}  short {own['short']}"
            )
    for model, each in results["choices"].items():
        print(
            f"of {each['plans']} plans of {model} the one predicted best took {each['measured_to_best']:.3f} times the "
            "best"
        )
    for reason, num in results["rows_left_out"].items():
        print(f"left out of {reason}: {num} rows")


def _say(number: int, num: int, compared: ComparedStep, cpu_s: float) -> None:
    parts = [
        f"{what} {error:+.1%}"
        for what, error in (("time", compared.time_error), ("memory", compared.memory_error))
        if error is not None
    ]
    said = f"{number}/{num} {cpu_s:5.0f} s {compared.source}: {compared.run}: {', '.join(parts)}"
    print(said, file=sys.stderr, flush=True)


def _reason(error: TrainyardError) -> str:
    """An error without numbers, which would tell rows apart that are left out for the same reason."""
    return re.sub(r"\d[\d,.]*", "N", str(error))[:110]


if __name__ == "__main__":
    main()
