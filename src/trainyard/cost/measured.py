"""Seconds of ops measured on this machine, remembered between processes."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import fx

from trainyard.cost.ops import PASSES, OpSeconds, Pass, Roofline, is_free
from trainyard.cost.signature import op_signature
from trainyard.cost.trace import Trace
from trainyard.hardware.devices import DeviceSpec
from trainyard.hardware.errors import HardwareError
from trainyard.hardware.heap import heap_environment
from trainyard.hardware.remembered import measurements_file, measuring, write_whole

__all__ = ["Conditions", "MeasuredOps", "measure_ops"]

_VERSION = 3
_LIMIT_S = 600.0

Points = tuple[tuple[int, float], ...]
_Group = tuple[Trace, ...]


@dataclass(frozen=True)
class Conditions:
    """Under which ops are measured.

    Attributes
    ----------
    num_processes : that run at the same time. More than there are cores take turns and find their caches taken:
        an op's seconds are those that it runs, and waiting for its turn is for the simulation to add.
    num_threads : of each.
    """

    num_processes: int
    num_threads: int

    @classmethod
    def of(cls, num_processes: int, num_cores: int) -> Conditions:
        """As the runtime starts processes on this machine."""
        return cls(num_processes, max(1, num_cores // num_processes))

    @property
    def key(self) -> str:
        return f"{self.num_processes}x{self.num_threads}"


class MeasuredOps(OpSeconds):
    """Measured seconds; ops that were not measured have the roofline's.

    Parameters
    ----------
    seconds : by `op_signature`.
    passes : seconds of each pass over float32 buffers, as points (elements, seconds).

    Attributes
    ----------
    unknown : signatures that were asked for and not known.
    """

    def __init__(self, seconds: Mapping[str, float], passes: Mapping[str, Points]) -> None:
        self.seconds, self.passes = dict(seconds), dict(passes)
        self.unknown: set[str] = set()
        self._roofline = Roofline()

    def __call__(self, node: fx.Node, device: DeviceSpec) -> float:
        if is_free(node):
            return 0.0
        signature = op_signature(node)
        known = self.seconds.get(signature)
        if known is not None:
            return known
        self.unknown.add(signature)
        return self._roofline(node, device)

    def pass_s(self, what: Pass, num_elements: int, element_bytes: int, device: DeviceSpec) -> float:
        if what not in self.passes:
            return super().pass_s(what, num_elements, element_bytes, device)
        (small, small_s), (large, large_s) = self.passes[what]
        words = num_elements * element_bytes / 4
        slope = max(0.0, large_s - small_s) / (large - small)
        return max(0.0, small_s + slope * (words - small)) if words else 0.0


@dataclass
class _Cache:
    """Measurements on disk, one file per machine."""

    path: Path
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls) -> _Cache:
        path = measurements_file("ops")
        try:
            plain = json.loads(path.read_text())
            entries = plain["conditions"] if plain["version"] == _VERSION else {}
            for entry in entries.values():
                entry["seconds"] = {str(k): float(v) for k, v in entry["seconds"].items()}
                entry["passes"] = {
                    k: tuple((int(n), float(s)) for n, s in v) for k, v in entry["passes"].items()
                }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            entries = {}  # absent, of another version, or not ours: measured again
        return cls(path, entries)

    def of(self, conditions: Conditions) -> dict[str, Any]:
        return self.entries.setdefault(conditions.key, {"seconds": {}, "passes": {}})

    def write(self) -> None:
        write_whole(self.path, json.dumps({"version": _VERSION, "conditions": self.entries}))


def measure_ops(
    groups: Iterable[Sequence[Trace]], conditions: Conditions, budget_s: float = 15.0, again: bool = False
) -> MeasuredOps:
    """Seconds of the ops of some traces, measured where the cache does not have them.

    Parameters
    ----------
    groups : traces that run one after another, each group by itself. A group is measured if one of its ops is
        not known.
    conditions : see `Conditions`.
    budget_s : time for the repetitions; every group runs a few times however long that takes.
    again : measure all of them, whatever the cache has.

    Raises
    ------
    HardwareError
        If a worker fails.
    """
    asked = [tuple(group) for group in groups]
    entry = _Cache.read().of(conditions)
    if again or any(_missing(asked, entry)):
        with measuring():
            entry = _measured(asked, conditions, budget_s, again)
    return MeasuredOps(entry["seconds"], entry["passes"])


def _missing(groups: Iterable[_Group], entry: Mapping[str, Any]) -> tuple[list[_Group], list[str]]:
    """Groups with an op that is not known, and passes that are not."""
    known = set(entry["seconds"])
    missing = []
    for group in groups:
        wanted = frozenset().union(*(t.signatures for t in group))
        if not wanted <= known:
            missing.append(group)
            known |= wanted
    return missing, [] if entry["passes"] else list(PASSES)


def _measured(groups: list[_Group], conditions: Conditions, budget_s: float, again: bool) -> dict[str, Any]:
    """What the cache has, with what another process has put there since it was read, and what it lacks."""
    cache = _Cache.read()
    entry = cache.of(conditions)
    missing, passes = _missing(groups, {"seconds": {}, "passes": {}} if again else entry)
    if missing or passes:
        found = _run_workers(missing, passes, conditions, budget_s)
        entry["seconds"] |= found["seconds"]
        entry["passes"] |= {k: tuple((int(n), float(s)) for n, s in v) for k, v in found["passes"].items()}
        cache.write()
    return entry


def _run_workers(
    groups: list[_Group], passes: list[str], conditions: Conditions, budget_s: float
) -> dict[str, Any]:
    request = {
        "groups": groups,
        "passes": passes,
        "num_threads": conditions.num_threads,
        "num_processes": conditions.num_processes,
        "group_limit_s": budget_s / max(1, len(groups)),
    }
    with tempfile.TemporaryDirectory(prefix="trainyard-") as name:
        folder = Path(name)
        (folder / "request.pickle").write_bytes(pickle.dumps(request))
        environment = {**os.environ, **heap_environment(), "OMP_NUM_THREADS": str(conditions.num_threads)}
        command = [sys.executable, "-m", "trainyard.cost.measure_worker", name]
        workers = []
        for rank in range(conditions.num_processes):
            with (folder / f"errors{rank}").open("wb") as errors:
                workers.append(
                    subprocess.Popen(
                        [*command, str(rank)], env=environment, stdout=subprocess.DEVNULL, stderr=errors
                    )
                )
        _wait_for(workers, folder)
        results = [
            json.loads((folder / f"result{rank}.json").read_text())
            for rank in range(conditions.num_processes)
        ]
    return {
        what: {key: _mean([r[what][key] for r in results]) for key in results[0][what]}
        for what in ("seconds", "passes")
    }


def _mean(values: list[Any]) -> Any:
    """Over the processes, of seconds or of points."""
    if isinstance(values[0], int | float):
        return sum(values) / len(values)
    return [(points[0][0], _mean([s for _, s in points])) for points in zip(*values, strict=True)]


def _wait_for(workers: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """Let all of them end; if one fails or none ends in time, end the others and say why."""
    deadline = time.monotonic() + _LIMIT_S
    try:
        while any(worker.poll() is None for worker in workers):
            if any(worker.poll() not in (None, 0) for worker in workers):
                break
            if time.monotonic() > deadline:
                raise HardwareError(
                    f"measuring ops took more than {_LIMIT_S:g} s; give fewer or smaller graphs"
                )
            time.sleep(0.02)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    for rank, worker in enumerate(workers):
        if worker.returncode > 0:
            said = (folder / f"errors{rank}").read_text(errors="replace")[-600:]
            raise HardwareError(f"process {rank} of those that measure ops failed; it said: {said}")
    if any(worker.returncode for worker in workers):
        raise HardwareError(
            "a process that measures ops was killed; is there enough memory for these graphs?"
        )
