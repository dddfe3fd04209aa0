"""Agent: the process of a run that prepares what all ranks share, forks them, watches them, and starts them again.

The graph of every rank is captured and lowered once, here, and the ranks are forked with it: that takes
milliseconds, so a run that lost a process goes on at once. (With GPUs each rank captures for itself: a process
that has touched CUDA cannot be forked.) No thread is left here when ranks are forked, because they would lack it.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch

from trainyard.job.run.checkpoint.lock import FolderLock
from trainyard.job.run.checkpoint.saved import complete_steps
from trainyard.job.run.config import WorkerInput
from trainyard.job.run.errors import FailedRunError
from trainyard.job.run.processes.fork_server import WorkerError
from trainyard.job.run.processes.logs import last_lines, print_to, rank_log
from trainyard.job.run.processes.stopping import leave_signals_to_caller
from trainyard.job.run.processes.worker import Prepared, prepare
from trainyard.job.run.processes.worker_group import RankError, WorkerGroup
from trainyard.processes import can_run_again
from trainyard.reading import count_text

_TAIL_LINES = 30


@dataclass(frozen=True)
class Ended:
    """The run is over: as it should be, or with an error for the caller."""

    error: BaseException | None


def work_file(folder: Path) -> Path:
    """The file in which the process finds the pickled work."""
    return folder / "work"


def agent_main(pipe: Connection, folder: Path, logs: Path, lock: FolderLock | None) -> None:
    """Run the process: read ``work`` from a folder, train, and report through a pipe.

    The lock is held by being there; ranks inherit it.
    """
    leave_signals_to_caller()
    print_to(logs / "prepare.log")
    if not can_run_again():
        # What the caller's main module defines came by value. Processes that read data cannot import it: they are forked.
        multiprocessing.set_start_method("fork", force=True)
    error: BaseException | None = None
    try:
        work = pickle.loads(work_file(folder).read_bytes())
        # One thread: the pool that computes with more would be lost in forked processes.
        torch.set_num_threads(1)
        with _ending_with(pipe):
            prepared = prepare(work) if work.config.device == "cpu" else None
        _with_restarts(work, prepared, pipe, folder, logs)
    except Exception as caught:
        error = caught
        if not isinstance(caught, FailedRunError):
            traceback.print_exc()
    pipe.send(Ended(_sendable(error)))


@contextmanager
def _ending_with(caller: Connection) -> Iterator[None]:
    """End when the caller is gone; by a thread, which is over before anything is forked."""
    over, done = Pipe(duplex=False)

    def watch() -> None:
        # Nothing is ever sent this way.
        if caller in wait([caller, over]):
            os._exit(1)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.close()
        thread.join()
        over.close()


def _sendable(error: BaseException | None) -> BaseException | None:
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return WorkerError(f"{type(error).__name__}: {error}")


def _with_restarts(
    work: WorkerInput, prepared: Prepared | None, pipe: Connection, folder: Path, logs: Path
) -> None:
    resume = work.config.resume
    failed: tuple[str, float] | None = None
    for num_restarts in range(work.config.max_restarts + 1):
        group = WorkerGroup(work, prepared, pipe, folder, logs, num_restarts, resume, failed)
        try:
            group.start()
            group.watch()
            return
        except RankError as error:
            failed = (f"rank {error.rank} {error.reason}", time.monotonic())
            if num_restarts == work.config.max_restarts:
                raise WorkerError(_message(work, error, logs, num_restarts)) from None
        finally:
            group.stop()
        resume = work.config.checkpoint is not None


def _message(work: WorkerInput, failure: RankError, logs: Path, restarts: int) -> str:
    after = f" after {count_text(restarts, 'restart')}" if restarts else ""
    folder = work.config.checkpoint
    steps = complete_steps(folder) if folder is not None else []
    if steps:
        advice = f"--resume continues from step {steps[0]} ({folder})"
    elif folder is not None:
        advice = f"there is no complete checkpoint in {folder} yet: without --resume the run begins anew"
    else:
        advice = "there is no checkpoint to resume from: give a checkpoint folder"
    tail = "\n".join(last_lines(rank_log(logs, failure.rank), _TAIL_LINES))
    said = f"It last printed:\n{tail}\n" if tail else "It printed nothing.\n"
    return f"rank {failure.rank} {failure.reason}{after}. {said}{advice[0].upper()}{advice[1:]}."
