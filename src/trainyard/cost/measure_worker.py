"""One process that measures ops: ``python -m trainyard.cost.measure_worker FOLDER PARENT RANK``.

`trainyard.cost.measure_processes` starts several. All run the same traces at the same time, so that each op is slowed by
its neighbours as in a step. A process writes its results after every group of traces. Before an op runs for the first
time, it writes which one that is. So a process that dies leaves its results, and the op that it died of.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainyard.processes import die_with_parent

__all__ = ["main"]

BUFFER_ELEMENTS = (2**14, 2**22)
_MIN_RUNS = 4

_MAX_RUNS = 30
_BUFFER_OP_RUNS = 5


class _OutOfTimeError(Exception):
    """The CPU seconds for measuring are used."""


def main(arguments: list[str]) -> None:
    """Measure, and write ``result<RANK>.json`` into the folder.

    Parameters
    ----------
    arguments
        The folder, the process that waits for the measurements, with which this one ends, and the rank.
    """
    folder, parent, rank = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    die_with_parent(parent)
    import torch

    # The file was written by the process that started this one.
    request = pickle.loads((folder / "request.pickle").read_bytes())
    torch.set_num_threads(request["num_threads"])
    torch.manual_seed(0)
    _define_ops(request["modules"])
    _meet(folder, "start", rank, request["num_processes"])
    worker = _Worker(folder, rank, request)
    worker.measure_buffer_ops()
    for index, group in enumerate(request["groups"]):
        _meet(folder, f"group{index}", rank, request["num_processes"])
        worker.measure_group(index, pickle.loads(group))


def _define_ops(modules: dict[str, str]) -> None:
    """Import the modules that define the user's ops. If one cannot be imported, its file is run.

    If that fails, too, its ops stay unknown; measuring them then fails with that reason.
    """
    from trainyard.user_file import user_module

    for name, file in modules.items():
        try:
            importlib.import_module(name)
        except Exception:
            with suppress(Exception, SystemExit), user_module(file, ""):
                pass


def _meet(folder: Path, name: str, rank: int, num_processes: int) -> None:
    """Wait until all workers have come to this point."""
    (folder / f"{name}.{rank}").touch()
    while not all((folder / f"{name}.{other}").exists() for other in range(num_processes)):
        time.sleep(0.001)


class _Worker:
    """Measures in this process, and keeps the results so far."""

    def __init__(self, folder: Path, rank: int, request: dict[str, Any]) -> None:
        self.folder, self.rank, self.request = folder, rank, request
        self.began_cpu_s = time.thread_time()
        # The clock of a thread or process stands still while the system runs something else. With several threads the
        # process's clock runs faster than the wall's; the lesser of both is then taken.
        one = request["num_threads"] == 1
        self.clocks = (time.thread_time,) if one else (time.process_time, time.perf_counter)
        self.seconds: dict[str, tuple[float, float]] = {}
        self.failed: dict[str, str] = dict(request["failed"])
        self.faults: set[str] = set()
        self.buffer_ops: dict[str, list[tuple[int, float]]] = {}
        self.at = os.open(folder / f"at{rank}", os.O_CREAT | os.O_WRONLY)

    def measure_buffer_ops(self) -> None:
        """Measure the ops on flat buffers."""
        for name in self.request["buffer_ops"]:
            self.buffer_ops[name] = _measure_buffer_op(name, self.clocks)
        self._write()

    def measure_group(self, index: int, traces: Any) -> None:
        """Measure all ops of a group of traces."""
        from trainyard.cost.measurements import over_repeats
        from trainyard.cost.trace import OpTimes, run_trace

        runs: list[dict[str, list[float]]] = []
        begin = time.monotonic()
        values: dict[str, Any] = {}
        self._say(index, "")

        def before(signature: str) -> None:
            if time.thread_time() - self.began_cpu_s > self.request["cpu_s"]:
                raise _OutOfTimeError
            if not runs:
                self._say(index, signature)

        with suppress(_OutOfTimeError):
            while len(runs) <= _MIN_RUNS or (
                time.monotonic() - begin < self.request["group_limit_s"] and len(runs) < _MAX_RUNS
            ):
                times = OpTimes({}, self.failed, self.faults, before, self.clocks)
                if not runs:
                    partial = times
                for trace in traces:
                    run_trace(trace, values, times)
                runs.append(times.seconds)
                self._say(index, "")
        # The first run compiles, and fills caches and the allocator. It counts only if there is no other.
        kept = runs[1:] or [partial.seconds]
        for signature in kept[0]:
            if signature not in self.failed:
                self.seconds[signature] = over_repeats([run[signature] for run in kept if signature in run])
        self._write()

    def _say(self, index: int, signature: str) -> None:
        text = f"{index}\n{signature}".encode()
        os.pwrite(self.at, text, 0)
        os.ftruncate(self.at, len(text))

    def _write(self) -> None:
        found: dict[str, Any] = {
            "seconds": self.seconds,
            "buffer_ops": self.buffer_ops,
            "failed": self.failed,
            "faults": sorted(self.faults),
        }
        found["cpu_s"] = time.thread_time() - self.began_cpu_s
        part = self.folder / f"part{self.rank}"
        part.write_text(json.dumps(found))
        part.rename(self.folder / f"result{self.rank}.json")


def _measure_buffer_op(name: str, clocks: tuple[Callable[[], float], ...]) -> list[tuple[int, float]]:
    """Least seconds of an op on float32 buffers, as points (elements, seconds) for two sizes."""
    from trainyard.cost.trace import elapsed, read_clocks

    points = []
    for num_elements in BUFFER_ELEMENTS:
        call = _buffer_op(name, num_elements)
        call()
        laps = []
        for _ in range(_BUFFER_OP_RUNS):
            start = read_clocks(clocks)
            call()
            laps.append(elapsed(clocks, start))
        points.append((num_elements, min(laps)))
    return points


def _buffer_op(name: str, num_elements: int) -> Callable[[], object]:
    import torch

    a, b = torch.ones(num_elements), torch.ones(num_elements)
    if name == "copy":
        return lambda: torch._foreach_copy_([a], [b])
    if name == "clone":
        return lambda: a.clone()
    if name == "accumulate":
        return lambda: torch._foreach_add_([a], [b])
    if name == "norm":
        return lambda: torch.linalg.vector_norm(a)
    a.grad = b
    if name == "adamw":
        return torch.optim.AdamW([a], 1e-6, fused=True).step
    return torch.optim.SGD([a], 1e-6, momentum=0.9 if name == "sgd_momentum" else 0.0, fused=True).step


if __name__ == "__main__":
    main(sys.argv[1:])
