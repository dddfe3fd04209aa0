"""The processes that measure ops: started together, ended in time, and survived if they die."""

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
from statistics import median
from typing import Any

from torch._library.custom_ops import OPDEFS

from trainyard.cost.measurements import over_processes
from trainyard.cost.trace import Trace
from trainyard.hardware.heap import heap_environment

__all__ = ["ProcessResults", "measure_in_processes"]

_LIMIT_S = 60.0
_GRACE_S = 30.0  # to start, and to end an op that runs when the time is over
_MAX_STARTS = 4

Group = Sequence[Trace]


@dataclass
class ProcessResults:
    """What processes measured.

    Attributes
    ----------
    seconds : seconds and spread by signature.
    passes : points (elements, seconds) of each pass.
    failed : why, by signature.
    rest : why ops that are in none of these are not: no process lived to try them.
    """

    seconds: dict[str, tuple[float, float]] = field(default_factory=dict)
    passes: dict[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    rest: str = ""


@dataclass(frozen=True)
class _Death:
    """How the processes ended before they were done: while one ran an op of a group, as far as is known."""

    why: str
    group: int | None
    signature: str
    is_late: bool


def measure_in_processes(
    groups: Sequence[Group],
    passes: Sequence[str],
    failed: Mapping[str, str],
    num_processes: int,
    num_threads: int,
    budget_s: float,
) -> ProcessResults:
    """Measure traces, and start again after what a process died of.

    Parameters
    ----------
    failed : ops that are not tried, by signature.
    budget_s : time for the repetitions of all groups; every group runs a few times, but not for ever.
    """
    found = ProcessResults(failed=dict(failed))
    todo = [(group, text) for group in groups if (text := _pickled(group, found.failed)) is not None]
    end = time.monotonic() + _LIMIT_S
    request = {
        "num_threads": num_threads,
        "num_processes": num_processes,
        "group_limit_s": budget_s / max(1, len(groups)),
        "modules": _modules(groups),
    }
    for start in range(_MAX_STARTS):
        left_s = max(0.0, end - time.monotonic())
        asked = {"groups": [text for _, text in todo], "failed": found.failed, "limit_s": left_s}
        results, death = _run({**request, **asked, "passes": [] if found.passes else list(passes)}, left_s)
        _take(results, found)
        if death is None:
            break
        if death.signature:
            found.failed[death.signature] = death.why
        if death.is_late:
            break
        if death.group is None or start == _MAX_STARTS - 1:
            found.rest = death.why
            return found
        if not death.signature:
            _fail([todo[death.group][0]], death.why, found)
        todo = todo[death.group + (not death.signature) :]
    _fail(groups, f"no time was left: all ops together get {_LIMIT_S:g} s", found)
    return found


def _pickled(group: Group, failed: dict[str, str]) -> bytes | None:
    """A group as a process can read it; None, with the reasons noted, if none can."""
    try:
        return pickle.dumps(tuple(group))
    except Exception as error:
        for trace in group:
            failed |= dict.fromkeys(trace.signatures, f"cannot be sent to another process: {error}"[:200])
        return None


def _modules(groups: Iterable[Group]) -> dict[str, str]:
    """Names and files of the modules that define ops of the user; what a script itself defines is in none."""
    found = {}
    for name in {i.target for group in groups for trace in group for i in trace.instructions}:
        known = OPDEFS.get(name.partition(".")[0]) if isinstance(name, str) else None
        if known is not None:
            module = sys.modules.get(known._init_fn.__module__)
        else:  # a library that loads its ops when it is imported is often named as their namespace is
            module = sys.modules.get(name.partition("::")[0]) if isinstance(name, str) else None
        if module is not None and module.__name__ != "__main__":
            found[module.__name__] = str(getattr(module, "__file__", None) or "")
    return found


def _fail(groups: Iterable[Group], why: str, found: ProcessResults) -> None:
    """Note why ops of some groups were not measured."""
    for group in groups:
        for trace in group:
            for signature in trace.signatures - found.seconds.keys():
                found.failed.setdefault(signature, why)


def _take(results: Sequence[dict[str, Any]], found: ProcessResults) -> None:
    """Put together what the processes found."""
    for result in results:
        found.failed |= result["failed"]
    for signature in {s for result in results for s in result["seconds"]} - found.failed.keys():
        values = [result["seconds"][signature] for result in results if signature in result["seconds"]]
        found.seconds[signature] = over_processes([s for s, _ in values]), median(s for _, s in values)
    for name in {name for result in results for name in result["passes"]}:
        curves = [result["passes"][name] for result in results if name in result["passes"]]
        found.passes[name] = tuple(
            (int(points[0][0]), over_processes([float(s) for _, s in points]))
            for points in zip(*curves, strict=True)
        )


def _run(request: dict[str, Any], limit_s: float) -> tuple[list[dict[str, Any]], _Death | None]:
    """Results of the processes, and how they ended if not well."""
    ranks = range(request["num_processes"])
    with tempfile.TemporaryDirectory(prefix="trainyard-") as name:
        folder = Path(name)
        (folder / "request.pickle").write_bytes(pickle.dumps(request))
        environment = {**os.environ, **heap_environment(), "OMP_NUM_THREADS": str(request["num_threads"])}
        command = [sys.executable, "-m", "trainyard.cost.measure_worker", name]
        workers = []
        for rank in ranks:
            with (folder / f"errors{rank}").open("wb") as errors:
                workers.append(
                    subprocess.Popen(
                        [*command, str(rank)], env=environment, stdout=subprocess.DEVNULL, stderr=errors
                    )
                )
        death = _wait_for(workers, folder, limit_s)
        results = [
            json.loads((folder / f"result{r}.json").read_text())
            for r in ranks
            if (folder / f"result{r}.json").exists()
        ]
        return results, death


def _wait_for(workers: list[subprocess.Popen[bytes]], folder: Path, limit_s: float) -> _Death | None:
    """Let all of them end; if one dies or they do not end in time, end the others, and say how that was."""
    deadline = time.monotonic() + limit_s + _GRACE_S
    try:
        codes = [worker.poll() for worker in workers]
        while None in codes and not any(codes) and time.monotonic() < deadline:
            time.sleep(0.02)
            codes = [worker.poll() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    for rank, code in enumerate(codes):
        if code:
            said = (folder / f"errors{rank}").read_text(errors="replace").strip().rpartition("\n")[2][-200:]
            how = f"was killed by signal {-code}" if code < 0 else f"failed: {said}"
            return _Death(f"the process that measured it {how}", *_last_op(folder, rank), is_late=False)
    if None in codes:
        return _Death("did not end in time", *_last_op(folder, codes.index(None)), is_late=True)
    return None


def _last_op(folder: Path, rank: int) -> tuple[int | None, str]:
    """The group and the op that a process ran for the first time when it ended."""
    at = folder / f"at{rank}"
    group, _, signature = at.read_text().partition("\n") if at.exists() else ("", "", "")
    return int(group) if group else None, signature
