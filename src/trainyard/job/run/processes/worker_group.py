"""Worker group: all forked ranks of a run, from their start until they are done or one has failed."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import FileStore

from trainyard.hardware.interface import use_interface
from trainyard.job.run.checkpoint.gather import TakeTrained, write_trained
from trainyard.job.run.config import RankStep, Restart, WorkerInput, combine
from trainyard.job.run.errors import CheckpointError, NonFiniteError
from trainyard.job.run.processes.rank_processes import RankProcesses, how_it_ended
from trainyard.job.run.processes.stopping import leave_signals_to_caller
from trainyard.job.run.processes.worker import Prepared, Ready, join_group, prepare, set_up_device, train_rank
from trainyard.private import only_for_user

# After the first sign of a failure: how long to wait for the one that caused it.
_SETTLE_S = 0.3
# How an exception of a rank reads that only lost its connection to another.
_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "DistBackendError")


@dataclass(frozen=True)
class _Failed:
    """``error`` is what the caller is to get as it is: the run cannot begin, or starting again would not help."""

    rank: int
    said: str
    error: Exception | None


@dataclass(frozen=True)
class _Done:
    rank: int


@dataclass(frozen=True)
class Watching:
    """The process that watches the ranks works."""


@dataclass(frozen=True)
class AllReady:
    """Message: all ranks are ready to train from a step. ``notes`` are lines for the user.

    Attributes
    ----------
    group : number of the group of ranks: how often they were started again.
    """

    step: int
    notes: tuple[str, ...]
    group: int


@dataclass(frozen=True)
class StepSeen:
    """Message: the caller has looked at a step, so the ranks of a group may begin the next one."""

    group: int


def stop_file(folder: Path) -> Path:
    """The file by which ranks learn that the run is to end after its present step."""
    return folder / "stop"


def trained_file(folder: Path) -> Path:
    """The file of the trained module's tensors, which the caller loads; rank 0 writes it if there are no checkpoints."""
    return folder / "trained.safetensors"


class RankError(Exception):
    """A rank failed: ``reason`` says how."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(reason)
        self.rank, self.reason = rank, reason


class WorkerGroup:
    """One process per rank.

    Parameters
    ----------
    prepared : what the ranks share; None where each has to prepare it for itself.
    pipe : to the caller of the run, for what is reported.
    folder : for the rendezvous.
    resume : whether to continue from a checkpoint.
    number : of the group: how many there were before.
    failed : why the one before ended, and when (``time.monotonic``).
    """

    def __init__(
        self,
        work: WorkerInput,
        prepared: Prepared | None,
        pipe: Connection,
        folder: Path,
        logs: Path,
        number: int,
        resume: bool,
        failed: tuple[str, float] | None,
    ) -> None:
        self.work, self.prepared, self.pipe = work, prepared, pipe
        self.number, self.resume, self.failed = number, resume, failed
        # A rendezvous of its own: addresses of an earlier group's processes would be waited for in vain.
        self.store = folder / f"store-{number}"
        self.stop_file, self.trained_file = stop_file(folder), trained_file(folder)
        self.ranks, config = range(work.plan.num_ranks), work.config
        self.processes = RankProcesses(self.ranks, logs, config.heartbeat_s, config.stall_s)
        self.ready: dict[int, Ready] = {}
        self.done: set[int] = set()
        self.steps: dict[int, dict[int, RankStep]] = {}
        self.pipes: dict[Connection, int] = {}

    def start(self) -> None:
        """Fork all ranks."""
        for rank in self.ranks:
            ours, theirs = Pipe()
            # A forked process has these too; while it keeps them open, nobody learns that they were closed.
            inherited = [*self.pipes, ours, self.pipe]
            self.processes.start(rank, _rank_main, self, theirs, inherited, rank)
            theirs.close()
            self.pipes[ours] = rank

    def watch(self) -> None:
        """Until all ranks are done.

        Raises
        ------
        RankError
            When one has failed, is stopped, or does no further step.
        CheckpointError, NonFiniteError, ValueError
            When one says that the run cannot begin, or cannot go on however often it is started again.
        """
        while running := self._running():
            ended, readable = self.processes.wait(running, [self.pipe, *self.pipes])
            if self.pipe in readable:
                self._pass_on()
                readable.remove(self.pipe)
            failures = self._take(readable)
            if failures or any(rank not in self.done for rank in ended):
                raise self._cause(failures)
            if self.processes.is_time_to_look():
                self.pipe.send(Watching())
                if problem := self.processes.problem(self._running()):
                    raise RankError(problem.rank, problem.reason)

    def _pass_on(self) -> None:
        """Tell all ranks that the caller has looked at a step."""
        try:
            seen = self.pipe.recv()
        except (EOFError, OSError):  # the caller is gone
            raise SystemExit(1) from None
        if seen.group == self.number:  # else the ranks that have done the step have ended
            for pipe in self.pipes:
                with suppress(OSError):  # the rank has ended, which is found by other means
                    pipe.send(seen)

    def _running(self) -> list[int]:
        return [rank for rank in self.ranks if rank not in self.done]

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
            if len(self.ready) == len(self.ranks):
                self._all_ready(message)
        elif isinstance(message, RankStep):
            reports = self.steps.setdefault(message.step, {})
            reports[message.rank] = message
            if len(reports) == len(self.ranks):
                del self.steps[message.step]
                in_order = [reports[r] for r in sorted(reports)]
                self.pipe.send(combine(in_order, self.work.plan.num_rows))

    def _all_ready(self, message: Ready) -> None:
        notes = tuple(dict.fromkeys(n for r in self.ready.values() for n in r.notes))
        if self.failed is not None:
            reason, since = self.failed
            self.pipe.send(Restart(reason, message.step, time.monotonic() - since))
        self.pipe.send(AllReady(message.step, notes, self.number))

    def _cause(self, failures: list[_Failed]) -> Exception:
        """The rank that failed by itself: the others only lost their connection to it."""
        deadline = time.monotonic() + _SETTLE_S
        while (left := deadline - time.monotonic()) > 0:
            codes = self.processes.exit_codes()
            if _killed(codes):
                break
            _, readable = self.processes.wait([r for r in self.ranks if codes[r] is None], self.pipes, left)
            failures += self._take(readable)
        codes = self.processes.exit_codes()
        if killed := _killed(codes):
            rank = min(killed)
            return RankError(rank, how_it_ended(killed[rank]))
        own = [f for f in failures if not any(text in f.said for text in _LOST)] or failures
        if own and own[0].error is not None:
            return own[0].error
        if own:
            return RankError(own[0].rank, f"failed: {own[0].said.splitlines()[0]}")
        rank, code = next((r, c) for r, c in codes.items() if c is not None and r not in self.done)
        return RankError(rank, how_it_ended(code))

    def stop(self) -> None:
        """End all processes at once, whatever they wait for."""
        self.processes.end(0.0 if self._running() else 5.0)
        for pipe in self.pipes:
            pipe.close()


def _killed(exit_codes: Mapping[int, int | None]) -> dict[int, int]:
    """The ranks that were killed, and their exit codes."""
    return {rank: code for rank, code in exit_codes.items() if code is not None and code < 0}


def _rank_main(group: WorkerGroup, pipe: Connection, inherited: list[Connection], rank: int) -> None:
    """Run a worker process."""
    leave_signals_to_caller()
    for other in inherited:
        other.close()
    group.processes.begin(rank)
    work, num_ranks = group.work, len(group.ranks)
    steps_seen, begun = threading.Semaphore(0), False
    threading.Thread(target=_listen, args=(pipe, steps_seen), daemon=True).start()

    def is_to_stop() -> bool:
        while work.waits_for_caller and not steps_seen.acquire(timeout=group.processes.look_s):
            group.processes.stepped(rank)  # the caller may take longer than a step may
        return group.stop_file.exists()

    try:
        device = set_up_device(work.config, rank, num_ranks)
        if num_ranks > 1:
            use_interface()
            join_group(device, FileStore(str(group.store), num_ranks), rank, num_ranks)
        with only_for_user():
            prepared = group.prepared or prepare(work)
            take = (
                _take_trained(group, rank) if work.returns_values and work.config.checkpoint is None else None
            )
            for message in train_rank(work, prepared, rank, device, group.resume, is_to_stop, take):
                begun = True
                pipe.send(message)
                if isinstance(message, RankStep):
                    group.processes.stepped(rank)
        pipe.send(_Done(rank))
    except Exception as error:
        said = f"{type(error).__name__}: {error}".strip()
        pipe.send(_Failed(rank, said, error if _is_final(error, begun) else None))
        with suppress(OSError):  # of a full disk
            traceback.print_exc()
            sys.stderr.flush()
    # Threads of the process group may wait for peers that are gone; there is nothing left to tidy.
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(0)


def _take_trained(group: WorkerGroup, rank: int) -> TakeTrained:
    return partial(write_trained, None if rank else group.trained_file)


def _is_final(error: Exception, begun: bool) -> bool:
    """Return whether to raise an error to the caller: the run refuses to begin, or would fail again in the same way."""
    refuses = isinstance(error, CheckpointError | ValueError) and not begun
    return (refuses or isinstance(error, NonFiniteError)) and type(error).__module__.startswith("trainyard.")


def _listen(pipe: Connection, steps_seen: threading.Semaphore) -> None:
    """Count the steps at which the caller has looked; end when the run's own process is gone."""
    with suppress(EOFError, OSError):
        while True:
            pipe.recv()
            steps_seen.release()
    os._exit(1)
