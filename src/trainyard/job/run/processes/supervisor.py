"""Supervisor: has a run done in a process of its own, and passes on what that reports."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.hardware.gpus import require_gpus
from trainyard.job.run.checkpoint.lock import FolderLock
from trainyard.job.run.config import Restart, StepMetrics, WorkerInput
from trainyard.job.run.processes.agent import Ended, agent_main, work_file
from trainyard.job.run.processes.fork_server import WorkerError, context, start
from trainyard.job.run.processes.heartbeat import SuspensionDetector
from trainyard.job.run.processes.logs import rank_log
from trainyard.job.run.processes.rank_processes import how_it_ended
from trainyard.job.run.processes.stopping import StopRequest
from trainyard.job.run.processes.worker_group import AllReady, StepSeen, Watching, stop_file
from trainyard.private import make_private, opener
from trainyard.processes import can_run_again, pickled, process_state
from trainyard.reading.arguments import WrongTypeError

_LOOK_S = 1.0


@dataclass(frozen=True)
class Watcher:
    """Callbacks for the events of a run.

    Attributes
    ----------
    on_step : after every step.
    on_ready : when all ranks are about to train, with the step and notes.
    on_restart : after a failure, when all ranks are ready again.
    on_look : about every second.
    """

    on_step: Callable[[StepMetrics], None]
    on_ready: Callable[[int, tuple[str, ...]], None]
    on_restart: Callable[[Restart], None]
    on_look: Callable[[], None]


@contextmanager
def shared_folder(work: WorkerInput) -> Iterator[Path]:
    """Make a folder that holds the work in the form that processes read; it is removed at the end of the context.

    Raises
    ------
    WrongTypeError
        If the model or the data has no such form.
    """
    with tempfile.TemporaryDirectory(prefix="trainyard-") as name:
        folder = Path(name)
        with work_file(folder).open("wb") as file:
            try:
                file.write(pickled(work))
            except OSError:  # of a full disk
                raise
            except Exception as error:  # what an object of the user raises when it is pickled can be anything
                raise WrongTypeError(_advice(work, error)) from error
        yield folder


def supervise(
    work: WorkerInput,
    folder: Path,
    watcher: Watcher,
    logs: Path,
    lock: FolderLock | None,
    stop: StopRequest,
) -> Generator[StepMetrics]:
    """Train with one process per rank, all of them stopped when this returns or raises; yield every step.

    Parameters
    ----------
    folder : from `shared_folder`.
    logs : folder of ``rank-<n>.log``, which are emptied first.
    lock : of the checkpoints' folder, which the processes hold, too.
    stop : whether the run is to end after its present step.

    Raises
    ------
    HardwareError
        If the run is to compute on GPUs that this machine does not have.
    WorkerError
        If a process failed and no restart is left.
    CheckpointError, NonFiniteError and others
        If a process found that the run cannot begin, or cannot go on however often it is started again.
    """
    if work.config.device == "cuda":
        require_gpus(work.plan.num_ranks)
    make_private(logs)
    for rank in range(work.plan.num_ranks):
        open(rank_log(logs, rank), "wb", opener=opener).close()
    spawn = context()
    stop.tell_through(stop_file(folder))
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=agent_main, args=(theirs, folder, logs.resolve(), lock))
    with theirs:
        start(process)
    try:
        yield from _listen(ours, process, watcher, logs, work, stop)
    finally:
        # Closed, the pipe tells the process to stop its ranks and end.
        ours.close()
        process.join(5.0)
        process.kill()
        process.join(5.0)


def _listen(
    pipe: Any, process: Any, watcher: Watcher, logs: Path, work: WorkerInput, stop: StopRequest
) -> Generator[StepMetrics]:
    is_left, group = False, 0
    # While the ranks are prepared nothing is heard; from then on, often.
    suspended, num_heard = SuspensionDetector[str](work.config.heartbeat_s, _LOOK_S), 0
    while True:
        watcher.on_look()
        if num_heard and not pipe.poll(_LOOK_S):
            for said in suspended.look({"": num_heard}, {"": process_state(process.pid)}).values():
                raise WorkerError(f"the process that watches the ranks {said}: it is stopped")
            continue
        try:
            message = pipe.recv()
        except EOFError:
            process.join()
            how = how_it_ended(process.exitcode)
            log = logs / "prepare.log"
            if not log.exists():
                raise WorkerError(_never_began(how)) from None
            said = log.read_text(errors="replace")[-2000:]
            raise WorkerError(f"the process that prepares the ranks {how}. It printed:\n{said}") from None
        if isinstance(message, Watching):
            num_heard += 1
        elif isinstance(message, StepMetrics):
            watcher.on_step(message)
            if not is_left:
                try:
                    yield message
                except GeneratorExit:
                    if not work.may_be_asked_to_stop:
                        raise
                    is_left = True
                    stop.ask()
            if work.waits_for_caller:
                with suppress(OSError):  # it was the last step
                    pipe.send(StepSeen(group))
        elif isinstance(message, AllReady):
            group = message.group
            watcher.on_ready(message.step, message.notes)
        elif isinstance(message, Restart):
            watcher.on_restart(message)
        elif isinstance(message, Ended):
            watcher.on_look()  # a signal may have come since the last message
            if message.error is not None:
                raise message.error
            return


def _never_began(how: str) -> str:
    """Return what to do where a process ended before it did anything."""
    advice = (
        'it runs the main script again; put all that the script does, as this call, under `if __name__ == "__main__":`'
        if can_run_again()
        else "see what it printed"
    )
    return f"the process that prepares the ranks {how} before it began: {advice}"


def _advice(work: WorkerInput, error: Exception) -> str:
    """Return what to write instead of a model or data that cannot be pickled."""
    try:
        pickled(work.data)
    except Exception:
        return (
            f"the data cannot be sent to worker processes ({error}): give a function data(step) that is defined at the "
            "top level of a module, instead of a lambda or an inner function"
        )
    try:
        pickled(work.config.optimizer)
    except Exception:
        return (
            f"the optimizer cannot be sent to worker processes ({error}): define make and a function as lr_schedule at "
            "the top level of a module, instead of a lambda or an inner function"
        )
    try:
        pickled(work.config)
    except Exception:
        return (
            f"the evaluation cannot be sent to worker processes ({error}): define its data, metrics and from_means at "
            "the top level of a module, or give a function of one as its data"
        )
    return (
        f"the model cannot be sent to worker processes ({error}): lambdas, inner functions and classes, and "
        "functions that torch.compile returned cannot be pickled. Instead of the model, give train a function that is "
        "defined at the top level of a module and builds the model"
    )
