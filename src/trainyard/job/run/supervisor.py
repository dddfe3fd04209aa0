"""Supervisor: starts the ranks of a run on this machine, watches them, and starts them again when one dies."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from trainyard.job.run.checkpoint import complete_steps
from trainyard.job.run.config import RankStep, Restart, StepMetrics, Work, combine
from trainyard.job.run.processes import WorkerError, context
from trainyard.job.run.worker import Ready, join_group, set_up_device, train_rank

_TAIL_LINES = 20
# After the first sign of a failure: how long to wait for the one that caused it.
_SETTLE_S = 0.3


@dataclass(frozen=True)
class _Failed:
    rank: int
    trace: str


@dataclass(frozen=True)
class _Done:
    rank: int


class _Failure(Exception):
    """A rank failed: ``reason`` in a sentence, and the last lines that it printed."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(reason)
        self.rank, self.reason = rank, reason


@dataclass(frozen=True)
class Watcher:
    """What is told about a run while it goes on.

    Attributes
    ----------
    on_step : after every step.
    on_ready : when all ranks are about to train, with the step and notes.
    on_restart : after a failure, when all ranks are ready again.
    """

    on_step: Callable[[StepMetrics], None]
    on_ready: Callable[[int, tuple[str, ...]], None]
    on_restart: Callable[[Restart], None]


def supervise(work: Work, watcher: Watcher, logs: Path) -> None:
    """Train with one process per rank.

    Parameters
    ----------
    logs : folder of ``rank-<n>.log``, which are emptied first.

    Raises
    ------
    WorkerError
        If a process failed and no restart is left; the others are stopped.
    """
    logs.mkdir(parents=True, exist_ok=True)
    for rank in range(work.plan.num_ranks):
        _log(logs, rank).write_bytes(b"")
    with tempfile.TemporaryDirectory(prefix="trainyard-") as name:
        folder = Path(name)
        (folder / "work").write_bytes(_pickled(work))
        resume = work.config.resume
        failed: tuple[str, float] | None = None
        for attempt in range(work.config.max_restarts + 1):
            run = _Attempt(work, folder, logs, attempt, resume, watcher, failed)
            try:
                run.watch()
                return
            except _Failure as failure:
                failed = (failure.reason, time.monotonic())
                if attempt == work.config.max_restarts:
                    raise WorkerError(_message(work, failure, logs, attempt)) from None
            finally:
                run.stop()
            resume = work.config.checkpoint is not None


def _pickled(work: Work) -> bytes:
    try:
        return pickle.dumps(work)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"the model or its data cannot be sent to worker processes ({error}). Give functions defined at the "
            "top level of a module instead of lambdas or inner functions; the model may also be given as such a "
            "function that builds it"
        ) from error


def _log(logs: Path, rank: int) -> Path:
    return logs / f"rank-{rank}.log"


def _message(work: Work, failure: _Failure, logs: Path, restarts: int) -> str:
    after = f" after {restarts} restarts" if restarts else ""
    folder = work.config.checkpoint
    steps = complete_steps(folder) if folder is not None else []
    if steps:
        advice = f"--resume continues from step {steps[0]} ({folder})"
    elif folder is not None:
        advice = f"there is no complete checkpoint in {folder} yet: --resume starts from step 0"
    else:
        advice = "there is no checkpoint to resume from: give a checkpoint folder"
    log = _log(logs, failure.rank)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
    said = f"It last printed:\n{tail}\n" if tail else "It printed nothing.\n"
    return f"rank {failure.rank} {failure.reason}{after}. {said}{advice[0].upper()}{advice[1:]}."


class _Attempt:
    """One set of processes, from start to end."""

    def __init__(
        self,
        work: Work,
        folder: Path,
        logs: Path,
        attempt: int,
        resume: bool,
        watcher: Watcher,
        failed: tuple[str, float] | None,
    ) -> None:
        self.work, self.watcher, self.failed = work, watcher, failed
        self.ready: dict[int, Ready] = {}
        self.done: set[int] = set()
        self.steps: dict[int, dict[int, RankStep]] = {}
        self.pipes: dict[Connection, int] = {}
        self.processes: list[Any] = []
        spawn = context()
        # A rendezvous of its own: addresses of an earlier attempt's processes would be waited for in vain.
        store = folder / f"store-{attempt}"
        for rank in range(work.plan.num_ranks):
            ours, theirs = spawn.Pipe()
            arguments = (theirs, folder / "work", store, _log(logs, rank), rank, work.plan.num_ranks, resume)
            process = spawn.Process(target=worker_main, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes[ours] = rank

    def watch(self) -> None:
        """Until all ranks are done.

        Raises
        ------
        _Failure
            When one has failed.
        """
        while len(self.done) < len(self.processes):
            running = {p.sentinel: r for r, p in enumerate(self.processes) if r not in self.done}
            signs = wait([*self.pipes, *running], timeout=self.work.config.stall_s)
            if not signs:
                slow = sorted(running.values())
                raise _Failure(
                    slow[0],
                    f"and {len(slow) - 1} others showed no sign of life for {self.work.config.stall_s:g} s",
                )
            failures = self._take([s for s in signs if isinstance(s, Connection)])
            gone = [r for s, r in running.items() if s in signs and r not in self.done]
            if failures or gone:
                raise self._cause(failures)

    def _take(self, pipes: list[Connection]) -> list[_Failed]:
        """Read what ranks sent."""
        failures = []
        for pipe in pipes:
            try:
                while pipe.poll():
                    message = pipe.recv()
                    if isinstance(message, _Failed):
                        failures.append(message)
                    else:
                        self._on_message(message)
            except (EOFError, OSError):
                del self.pipes[pipe]
                pipe.close()
        return failures

    def _on_message(self, message: Any) -> None:
        if isinstance(message, _Done):
            self.done.add(message.rank)
        elif isinstance(message, Ready):
            self.ready[message.rank] = message
            if len(self.ready) == len(self.processes):
                self._all_ready(message)
        elif isinstance(message, RankStep):
            reports = self.steps.setdefault(message.step, {})
            reports[message.rank] = message
            if len(reports) == len(self.processes):
                del self.steps[message.step]
                in_order = [reports[r] for r in sorted(reports)]
                self.watcher.on_step(combine(in_order, self.work.plan.num_rows))

    def _all_ready(self, message: Ready) -> None:
        notes = tuple(dict.fromkeys(n for r in self.ready.values() for n in r.notes))
        if self.failed is not None:
            reason, since = self.failed
            self.watcher.on_restart(Restart(reason, message.step, time.monotonic() - since))
        self.watcher.on_ready(message.step, notes)

    def _cause(self, failures: list[_Failed]) -> _Failure:
        """The rank that failed by itself: the others only lost their connection to it."""
        deadline = time.monotonic() + _SETTLE_S
        while (left := deadline - time.monotonic()) > 0:
            if any(p.exitcode is not None and p.exitcode < 0 for p in self.processes):
                break
            signs = wait(
                [*self.pipes, *(p.sentinel for p in self.processes if p.exitcode is None)], timeout=left
            )
            failures += self._take([s for s in signs if isinstance(s, Connection)])
        for rank, process in enumerate(self.processes):
            if process.exitcode is not None and process.exitcode < 0:
                return _Failure(rank, f"was ended by {signal.Signals(-process.exitcode).name}")
        lost = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "DistBackendError")
        own = [f for f in failures if not any(text in f.trace for text in lost)] or failures
        if own:
            last = own[0].trace.strip().splitlines()[-1]
            return _Failure(own[0].rank, f"failed: {last}")
        rank = next(r for r, p in enumerate(self.processes) if p.exitcode is not None and r not in self.done)
        return _Failure(rank, f"ended with exit code {self.processes[rank].exitcode}")

    def stop(self) -> None:
        """End all processes at once, whatever they wait for."""
        for process in self.processes:
            if process.exitcode is None and len(self.done) == len(self.processes):
                process.join(5.0)
            process.kill()
        for process in self.processes:
            process.join()
            process.close()
        for pipe in self.pipes:
            pipe.close()


def worker_main(
    pipe: Connection, work_file: Path, store: Path, log: Path, rank: int, num_ranks: int, resume: bool
) -> None:
    """What a worker process runs."""
    import torch.distributed as dist

    _print_to(log)
    # Ctrl-C reaches every process of a terminal; the supervisor decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()
    lock = threading.Lock()

    def send(message: Any) -> None:
        with lock:
            pipe.send(message)

    try:
        work = pickle.loads(work_file.read_bytes())
        device = set_up_device(work.config.device, rank, num_ranks)
        if num_ranks > 1:
            join_group(device, dist.FileStore(str(store), num_ranks), rank, num_ranks)
        train_rank(work, rank, device, send, resume)
        send(_Done(rank))
    except Exception:
        trace = traceback.format_exc()
        print(trace, file=sys.stderr, flush=True)
        send(_Failed(rank, trace))
    # Threads of the process group may wait for peers that are gone; there is nothing left to tidy.
    sys.stdout.flush()
    os._exit(0)


def _end_with_parent(pipe: Connection) -> None:
    """Nothing is ever sent to a worker: its pipe becomes readable when the supervisor is gone."""
    wait([pipe])
    os._exit(1)


def _print_to(log: Path) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
