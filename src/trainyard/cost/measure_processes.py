"""Measuring ops in processes of their own.

The processes start together and run the same ops at the same time. They end when they have used their CPU seconds. If one
dies of an op, new ones go on behind that op.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from torch._library.custom_ops import OPDEFS

from trainyard.cost.measurements import over_processes
from trainyard.cost.trace import Trace
from trainyard.processes import ExceededLimit, ProcessLimits, ProcessWatch, wait_for_all
from trainyard.processes.heap import heap_environment
from trainyard.progress import Progress, no_progress

__all__ = ["ProcessResults", "measure_in_processes"]

_CPU_S = 60.0
_GRACE_CPU_S = 60.0  # more, to start, and to finish the op that runs when the others are used
_MAX_STARTS = 4

Group = tuple[Trace, ...]
"""Traces that run one after another."""


@dataclass
class ProcessResults:
    """Measurements of the processes.

    Attributes
    ----------
    seconds : seconds and spread of each op, by signature. The spread is that of `Measurement`.
    buffer_ops : points (elements, seconds) of each op on a flat buffer.
    failed : why an op could not be measured, by signature.
    faults : those of them that fail in training, too.
    not_tried : why all other ops have no seconds, if no process lived to try them; else empty.
    """

    seconds: dict[str, tuple[float, float]] = field(default_factory=dict)
    buffer_ops: dict[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    faults: set[str] = field(default_factory=set)
    not_tried: str = ""


@dataclass(frozen=True)
class _Crash:
    """Why the processes ended before they were done.

    Attributes
    ----------
    why : what happened, for the user.
    group, signature : the op that ran; None and empty as far as that is not known.
    has_exceeded_limit : whether they were ended because one of them passed a limit.
    """

    why: str
    group: int | None
    signature: str
    has_exceeded_limit: bool


def measure_in_processes(
    groups: Sequence[Group],
    buffer_ops: Sequence[str],
    failed: Mapping[str, str],
    num_processes: int,
    num_threads: int,
    budget_s: float,
    progress: Progress = no_progress,
) -> ProcessResults:
    """Measure the ops of traces; if a process dies of an op, go on behind it in new processes.

    Parameters
    ----------
    groups : each is measured by itself.
    buffer_ops : names of the ops on flat buffers to measure.
    failed : why an op is not tried, by signature.
    num_processes, num_threads : processes that run at the same time, and threads of each.
    budget_s : seconds for the repetitions of all groups. Every group runs a few times, even if that takes longer.
    progress : called with the number of the op that is measured.
    """
    found = ProcessResults(failed=dict(failed))
    todo = [(group, text) for group in groups if (text := _pickled(group, found.failed)) is not None]
    left_cpu_s, at_op = _CPU_S, _counted([group for group, _ in todo], progress)
    request = {
        "num_threads": num_threads,
        "num_processes": num_processes,
        "group_limit_s": budget_s / max(1, len(groups)),
        "modules": _modules(groups),
    }
    for start in range(_MAX_STARTS):
        asked = {"groups": [text for _, text in todo], "failed": found.failed, "cpu_s": left_cpu_s}
        results, crash = _run(
            {**request, **asked, "buffer_ops": [] if found.buffer_ops else list(buffer_ops)}, at_op
        )
        left_cpu_s = max(0.0, left_cpu_s - max((result["cpu_s"] for result in results), default=0.0))
        _add_results(results, found)
        if crash is None:
            break
        if crash.signature:
            found.failed[crash.signature] = crash.why
        if crash.has_exceeded_limit:
            break
        if crash.group is None or start == _MAX_STARTS - 1:
            found.not_tried = crash.why
            return found
        if not crash.signature:
            _note_failure([todo[crash.group][0]], crash.why, found)
        todo = todo[crash.group + (not crash.signature) :]
    _note_failure(groups, f"no time was left: all ops together get {_CPU_S:g} CPU seconds", found)
    return found


def _pickled(group: Group, failed: dict[str, str]) -> bytes | None:
    """A group in the form that a process reads; None if it has none, and then the reason is added to ``failed``."""
    try:
        return pickle.dumps(group)
    except Exception as error:
        for trace in group:
            failed |= dict.fromkeys(trace.signatures, f"cannot be sent to another process: {error}"[:200])
        return None


def _modules(groups: Iterable[Group]) -> dict[str, str]:
    """Names and files of the modules that define ops of the user. Ops that the script itself defines have no module."""
    found = {}
    for name in {i.target for group in groups for trace in group for i in trace.instructions}:
        known = OPDEFS.get(name.partition(".")[0]) if isinstance(name, str) else None
        if known is not None:
            module = sys.modules.get(known._init_fn.__module__)
        else:  # a library that loads its ops on import often has the name of their namespace
            module = sys.modules.get(name.partition("::")[0]) if isinstance(name, str) else None
        if module is not None and module.__name__ != "__main__":
            found[module.__name__] = str(getattr(module, "__file__", None) or "")
    return found


def _note_failure(groups: Iterable[Group], why: str, found: ProcessResults) -> None:
    """Add the reason to all ops of some groups that have no seconds."""
    for group in groups:
        for trace in group:
            for signature in trace.signatures - found.seconds.keys():
                found.failed.setdefault(signature, why)


def _add_results(results: Sequence[dict[str, Any]], found: ProcessResults) -> None:
    """Combine the results of the processes, and add them to what was found."""
    for result in results:
        found.failed |= result["failed"]
        found.faults.update(result["faults"])
    for signature in {s for result in results for s in result["seconds"]} - found.failed.keys():
        values = [result["seconds"][signature] for result in results if signature in result["seconds"]]
        found.seconds[signature] = over_processes([s for s, _ in values]), median(s for _, s in values)
    for name in {name for result in results for name in result["buffer_ops"]}:
        curves = [result["buffer_ops"][name] for result in results if name in result["buffer_ops"]]
        found.buffer_ops[name] = tuple(
            (int(points[0][0]), over_processes([float(s) for _, s in points]))
            for points in zip(*curves, strict=True)
        )


def _counted(groups: Sequence[Group], progress: Progress) -> Callable[[str], None]:
    """Return a function that takes the signature of the op that is measured, and reports the furthest op so far."""
    signatures = dict.fromkeys(s for group in groups for trace in group for s in trace.work)
    numbers = {signature: number for number, signature in enumerate(signatures, 1)}
    furthest = 0  # ops are measured several times, in turn
    progress("measuring ops", f"0 of {len(numbers)}")

    def at_op(signature: str) -> None:
        nonlocal furthest
        furthest = max(furthest, numbers.get(signature, 0))
        progress("measuring ops", f"{furthest} of {len(numbers)}")

    return at_op


def _run(request: dict[str, Any], at_op: Callable[[str], None]) -> tuple[list[dict[str, Any]], _Crash | None]:
    """Start the processes and wait for them: their results, and the crash if there was one."""
    ranks = range(request["num_processes"])
    with tempfile.TemporaryDirectory(prefix="trainyard-") as name:
        folder = Path(name)
        (folder / "request.pickle").write_bytes(pickle.dumps(request))
        environment = {**os.environ, **heap_environment(), "OMP_NUM_THREADS": str(request["num_threads"])}
        command = [sys.executable, "-m", "trainyard.cost.measure_worker", name, str(os.getpid())]
        workers = []
        for rank in ranks:
            with (folder / f"errors{rank}").open("wb") as errors:
                workers.append(
                    subprocess.Popen(
                        [*command, str(rank)], env=environment, stdout=subprocess.DEVNULL, stderr=errors
                    )
                )
        limits = ProcessLimits((request["cpu_s"] + _GRACE_CPU_S) * request["num_threads"])
        crash = _wait_for(workers, folder, limits, at_op)
        results = [
            json.loads((folder / f"result{r}.json").read_text())
            for r in ranks
            if (folder / f"result{r}.json").exists()
        ]
        return results, crash


def _wait_for(
    workers: list[subprocess.Popen[bytes]],
    folder: Path,
    limits: ProcessLimits,
    at_op: Callable[[str], None],
) -> _Crash | None:
    """Wait until all processes end. If one dies, or passes the limits, the others are killed."""
    watches = [ProcessWatch(worker.pid, limits) for worker in workers]
    late: list[int] = []

    def look(codes: Sequence[int | None]) -> ExceededLimit | None:
        _, signature = _last_op(folder, 0)
        at_op(signature)
        for rank, code in enumerate(codes):
            if code is None and (exceeded := watches[rank].look()):
                late.append(rank)
                return exceeded
        return None

    codes, exceeded = wait_for_all(workers, look)
    for rank, code in enumerate(codes):
        if code:
            said = (folder / f"errors{rank}").read_text(errors="replace").strip().rpartition("\n")[2][-200:]
            how = f"was killed by signal {-code}" if code < 0 else f"failed: {said}"
            why = f"the process that measured it {how}"
            return _Crash(why, *_last_op(folder, rank), has_exceeded_limit=False)
    if exceeded:
        why = f"the process that measured it {exceeded}"
        return _Crash(why, *_last_op(folder, late[0]), has_exceeded_limit=True)
    return None


def _last_op(folder: Path, rank: int) -> tuple[int | None, str]:
    """The group that a process ran when it ended, and the op, if that ran for the first time."""
    at = folder / f"at{rank}"
    group, _, signature = at.read_text().partition("\n") if at.exists() else ("", "", "")
    return int(group) if group else None, signature
