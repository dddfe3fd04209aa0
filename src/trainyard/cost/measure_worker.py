"""One worker of the measurement of ops: ``python -m trainyard.cost.measure_worker FOLDER RANK``.

Started by `trainyard.cost.measured`. All workers run the same traces at the same time, so that each op is
slowed by its neighbours as it is in a step; the first one writes what it found.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

__all__ = ["main"]

Clock = Callable[[], float]

PASS_ELEMENTS = (2**14, 2**22)
_MIN_RUNS = 4


def main(arguments: list[str]) -> None:
    """Measure and write ``result<RANK>.json`` into the folder.

    Parameters
    ----------
    arguments
        Folder, rank.
    """
    import torch

    folder, rank = Path(arguments[0]), int(arguments[1])
    # The file was written by the process that started this one.
    request = pickle.loads((folder / "request.pickle").read_bytes())
    torch.set_num_threads(request["num_threads"])
    torch.manual_seed(0)
    _meet(folder, "start", rank, request["num_processes"])
    # One thread's own time does not run while the system runs something else.
    clock = time.thread_time if request["num_threads"] == 1 else time.perf_counter
    seconds: dict[str, float] = {}
    for index, group in enumerate(request["groups"]):
        _meet(folder, f"group{index}", rank, request["num_processes"])
        seconds |= _measure_group(group, request["group_limit_s"], clock)
    passes = {name: _measure_pass(name, clock) for name in request["passes"]}
    (folder / f"part{rank}").write_text(json.dumps({"seconds": seconds, "passes": passes}))
    (folder / f"part{rank}").rename(folder / f"result{rank}.json")


def _meet(folder: Path, name: str, rank: int, num_processes: int) -> None:
    """Wait until all workers are here."""
    (folder / f"{name}.{rank}").touch()
    while not all((folder / f"{name}.{other}").exists() for other in range(num_processes)):
        time.sleep(0.001)


def _measure_group(traces: Any, limit_s: float, clock: Clock) -> dict[str, float]:
    """Mean over an op's occurrences of the median over the runs, in seconds by signature."""
    import torch

    from trainyard.cost.trace import run_trace

    runs: list[dict[str, list[float]]] = []
    begin = time.perf_counter()
    values: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        while len(runs) <= _MIN_RUNS or (time.perf_counter() - begin < limit_s and len(runs) < 30):
            note: dict[str, list[float]] = {}
            for trace in traces:
                run_trace(trace, values, note, clock)
            runs.append(note)
    kept = runs[1:]  # the first one compiles, and fills caches and the allocator
    found = {}
    for signature, first in kept[0].items():
        each = [median(run[signature][i] for run in kept) for i in range(len(first))]
        found[signature] = sum(each) / len(each)
    return found


def _measure_pass(name: str, clock: Clock) -> list[tuple[int, float]]:
    """Median seconds of a pass over float32 buffers of two sizes."""
    points = []
    for num_elements in PASS_ELEMENTS:
        call = _pass(name, num_elements)
        call()
        laps = []
        for _ in range(5):
            start = clock()
            call()
            laps.append(clock() - start)
        points.append((num_elements, median(laps)))
    return points


def _pass(name: str, num_elements: int) -> Callable[[], object]:
    import torch

    a, b = torch.ones(num_elements), torch.ones(num_elements)
    if name == "copy":
        return lambda: torch._foreach_copy_([a], [b])
    if name == "clone":
        return lambda: a.clone()
    if name == "accumulate":
        return lambda: torch._foreach_add_([a], [b])
    if name == "scale":
        return lambda: torch._foreach_mul_([a], 1.0)
    if name == "norm":
        return lambda: torch.linalg.vector_norm(a)
    kind = torch.optim.AdamW if name == "adamw" else torch.optim.SGD
    a.grad = b
    optimizer = kind([a], 1e-6, fused=True)
    return optimizer.step


if __name__ == "__main__":
    main(sys.argv[1:])
