"""Train: run a plan for real, in processes of this machine or as one rank of ``torchrun``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch.distributed as dist
from torch import nn

from trainyard.hardware.interface import use_interface
from trainyard.job.arguments import require_model, require_plan
from trainyard.job.plan import Plan
from trainyard.job.run.checkpoint.gather import load_written
from trainyard.job.run.checkpoint.lock import FolderLock, locked
from trainyard.job.run.checkpoint.resumable import check_resumable
from trainyard.job.run.checkpoint.saved import (
    newest_complete,
    started_again,
)
from trainyard.job.run.checkpoint.weights import load_tensors, load_weights
from trainyard.job.run.config import (
    ModelSource,
    Restart,
    StepMetrics,
    TrainConfig,
    TrainResult,
    WorkerInput,
    combine,
)
from trainyard.job.run.processes.launchers import is_launched, join_launcher, other_machine
from trainyard.job.run.processes.metric_logs import require_logs
from trainyard.job.run.processes.rendezvous import launched_store
from trainyard.job.run.processes.step_reports import gathered
from trainyard.job.run.processes.stopping import StopRequest, handling_signals
from trainyard.job.run.processes.supervisor import Watcher, shared_folder, supervise
from trainyard.job.run.processes.worker import Prepared, Ready, join_group, prepare, set_up_device, train_rank
from trainyard.job.run.processes.worker_group import trained_file
from trainyard.job.run.run_recorder import Callbacks, RunRecorder
from trainyard.job.run.step.data_source import Source, as_data
from trainyard.job.run.step.repeatable import repeatable
from trainyard.private import only_for_user
from trainyard.program.model import Model
from trainyard.reading.arguments import require_type

_NO_CALLBACKS = Callbacks()


def train(
    model: Model | ModelSource,
    plan: Plan,
    data: Source,
    config: TrainConfig,
    on_step: Callable[[StepMetrics], None] = lambda _: None,
    on_restart: Callable[[Restart], None] = lambda _: None,
    on_note: Callable[[str], None] = lambda _: None,
) -> TrainResult:
    """Train a model as a plan says; afterwards its module has the trained parameters and buffers.

    Starts one process per rank on this machine. Under ``torchrun`` (or any launcher that sets ``RANK``,
    ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``) the calling process is one of the ranks instead, and
    ``torchrun --max-restarts`` with ``resume`` takes the place of ``max_restarts``. Each task of a step of Slurm that
    has several is a rank, too, and each process that ``mpirun`` or ``mpiexec`` started.

    Parameters
    ----------
    model : the model the plan was made for, or a function that builds it. What is given is sent to other
        processes, so functions in it must be defined at the top level of a module. What a notebook defines, or a script
        without ``if __name__ == "__main__":``, goes by value, which needs the package cloudpickle. The module of a
        `Model` has its trained values when this returns, in place: tied weights stay tied, types and devices stay as
        they are, and what is on the meta device comes to the CPU. Under a launcher all ranks' modules have them. A
        function's module is not known here: ``load_weights(module, result.checkpoint)`` loads its values, as it does
        after a run that was interrupted.
    data : batches of ``plan.num_rows`` rows: `Data`, a function ``data(step)``, a Dataset, a DataLoader; see `as_data`.
        Rows are filled up to ``Lengths`` of a `Model`; those of a function's model are not known here.
    on_step : called after each step, in the calling process; under torchrun in rank 0's.
    on_restart : called after each restart.
    on_note : called with each of the result's notes as soon as it is known.

    Notes
    -----
    At the first Ctrl-C or SIGTERM the run ends after its present step, with a checkpoint in ``config.checkpoint``, and
    the signal does then what it does without this function: Ctrl-C raises ``KeyboardInterrupt``. A second one ends the
    run at once, except under a launcher. An exception of a callback is raised after a checkpoint was written, too.
    Without a folder of checkpoints nothing is saved, and neither waits.

    Raises
    ------
    WrongValueError
        If a log needs what is not installed, or a launcher's variables do not say which rank this process is and where
        the ranks meet; a missing one is named.
    WrongTypeError
        If an argument is of another type, or the model or the data cannot be pickled, before anything is written. Under
        a launcher nothing is pickled.
    WorkerError
        If a process fails or dies and ``config.max_restarts`` are used up.
    NonFiniteError
        If a step is not finite, and ``config.on_nonfinite`` is ``stop``.
    CheckpointError
        If the folder holds what this run cannot continue from, or another run uses it now.
    DataError
        If the data is not the same whenever it is asked for a step, or no more what a checkpoint was trained on.
    """
    run = Run(model, plan, data, config, Callbacks(on_step, on_restart, on_note))
    for _ in run.steps():
        pass
    return run.result()


class Run:
    """A run whose steps the caller takes one after the other.

    Parameters
    ----------
    model, plan, data, config, callbacks : see `train`.
    built : the model that ``model`` built in this process, whose module gets the trained values; by default ``model``
        itself if it is a `Model`.
    waits_for_caller : whether a step begins only when the caller takes it. Only such a run may be left between steps.

    Attributes
    ----------
    has_trained : whether the run has ended, and the module has its values.
    """

    def __init__(
        self,
        model: Model | ModelSource,
        plan: Plan,
        data: Source,
        config: TrainConfig,
        callbacks: Callbacks = _NO_CALLBACKS,
        built: Model | None = None,
        waits_for_caller: bool = False,
    ) -> None:
        _check_arguments(model, plan, config)
        self._model, self._plan, self._data, self._config = model, plan, data, config
        self._built = model if built is None and isinstance(model, Model) else built
        self._waits_for_caller = waits_for_caller
        self.has_trained = False
        self._stop = StopRequest(is_launched())
        self._recorder = RunRecorder(config, self._stop, callbacks)

    def steps(self) -> Generator[StepMetrics]:
        """Train, and yield every step when all ranks have done it; under a launcher in rank 0's process.

        If the caller closes the generator of a run that waits, as by leaving its loop, the run ends after the step that
        was yielded last, with a checkpoint in ``config.checkpoint`` if that is given. The module has the values after
        that step.

        Raises
        ------
        WrongValueError, WrongTypeError, WorkerError, NonFiniteError, CheckpointError, DataError
            As `train` does.
        """
        require_logs(self._config.log_to)
        join_launcher()
        with handling_signals(self._stop), self._recorder.raising():
            module, lengths = (
                (None, None) if self._built is None else (self._built.module, self._built.lengths)
            )
            source = as_data(self._data, self._plan.num_rows, self._config.seed, lengths)
            data = repeatable(source, self._config.steps)
            returns_values, waits = module is not None, self._waits_for_caller
            work = WorkerInput(self._model, self._plan, data, self._config, returns_values, waits)
            try:
                yield from _train(work, module, self._recorder, self._stop)
            except GeneratorExit:
                self.has_trained = True
                raise
            self.has_trained = True

    def result(self) -> TrainResult:
        """Return what the run came to, so far."""
        return self._recorder.result()


def _check_arguments(model: object, plan: object, config: object) -> None:
    """Refuse an argument of another type by its name."""
    require_model(model, may_be_function=True)
    require_plan(plan)
    require_type("config", config, TrainConfig, "a TrainConfig, such as TrainConfig(steps=100)")


def _train(
    work: WorkerInput, module: nn.Module | None, recorder: RunRecorder, stop: StopRequest
) -> Generator[StepMetrics]:
    config = work.config
    if config.checkpoint is not None and config.resume and not started_again():
        newest_complete(config.checkpoint)
    with (
        nullcontext(Path()) if is_launched() else shared_folder(work) as shared,
        _lock(config, int(os.environ["RANK"]) if is_launched() else 0) as lock,
    ):
        check_resumable(work)
        if lock is not None and lock.note:
            recorder.note(lock.note)
        if is_launched():
            with only_for_user():
                yield from _steps_under_launcher(work, module, recorder, _launched(), None)
            return
        with _log_folder(config.log) as logs:
            recorder.open(logs)
            watcher = Watcher(recorder.on_step, recorder.on_ready, recorder.on_restart, recorder.tell_of_stop)
            try:
                yield from supervise(work, shared, watcher, logs, lock, stop)
                _load_trained(work, module, shared)
            except GeneratorExit:  # the run has ended after a step
                _load_trained(work, module, shared)
                raise
            finally:
                recorder.close()


def _load_trained(work: WorkerInput, module: nn.Module | None, shared: Path) -> None:
    """Give the caller's module the trained values."""
    if module is None:
        return
    if work.config.checkpoint is not None:
        load_weights(module, newest_complete(work.config.checkpoint))
    else:
        load_written(module, trained_file(shared))


@dataclass(frozen=True)
class Launched:
    """The rank of a process that a launcher started, and how it finds the others.

    Attributes
    ----------
    rank, num_ranks : of the run.
    local_rank, num_local_ranks : on this machine.
    store : file in which the ranks meet, new for every start; None where ``MASTER_ADDR`` and ``MASTER_PORT`` say where.
    peer : address of another machine whose processes take part; "" if there is none.
    stepped : called after each step.
    """

    rank: int
    num_ranks: int
    local_rank: int
    num_local_ranks: int
    store: Path | None = None
    peer: str = ""
    stepped: Callable[[], None] = lambda: None


def _launched() -> Launched:
    """Read the variables that launchers set."""
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank, num_local_ranks = (
        int(os.environ.get(name, usual))
        for name, usual in (("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", num_ranks))
    )
    return Launched(rank, num_ranks, local_rank, num_local_ranks, peer=other_machine())


def train_prepared(work: WorkerInput, launched: Launched, prepared: Prepared | None) -> TrainResult:
    """Be one of the ranks that a launcher started, as ``train`` is under ``torchrun``.

    With ``resume`` it begins where there is no checkpoint yet: who starts it may not know.

    Parameters
    ----------
    prepared : from ``prepare``, in the process that this one was forked from; None to prepare it here.
    """
    with _lock(work.config, launched.rank):
        check_resumable(work)
        recorder = RunRecorder(work.config, StopRequest(), Callbacks(on_note=_print))
        for _ in _steps_under_launcher(work, None, recorder, launched, prepared):
            pass
        return recorder.result()


@contextmanager
def _lock(config: TrainConfig, rank: int) -> Iterator[FolderLock | None]:
    """One process of a run holds its folder for all of them."""
    with locked(config.checkpoint) if config.checkpoint is not None and rank == 0 else nullcontext() as lock:
        yield lock


@contextmanager
def _log_folder(log: Path | None) -> Iterator[Path]:
    if log is not None:
        yield log
        return
    with tempfile.TemporaryDirectory(prefix="trainyard-log-") as name:
        yield Path(name)


def _print(note: str) -> None:
    with suppress(OSError):  # of a disk that is full
        print(note, flush=True)


def _steps_under_launcher(
    work: WorkerInput,
    module: nn.Module | None,
    recorder: RunRecorder,
    launched: Launched,
    prepared: Prepared | None,
) -> Generator[StepMetrics]:
    """Be one of the ranks that a launcher started; rank 0 yields every step."""
    rank, num_ranks = launched.rank, launched.num_ranks
    work.plan.require_processes(num_ranks)
    device = set_up_device(work.config, launched.local_rank, launched.num_local_ranks)
    if num_ranks > 1:
        use_interface(launched.peer)
        store = launched_store(rank, num_ranks, launched.store, several_machines=bool(launched.peer))
        join_group(device, store, rank, num_ranks)
    if rank == 0 and work.config.log is not None:
        recorder.open(work.config.log)

    # After a failure an elastic launcher starts the same command again: continue then without being asked.
    resume = work.config.resume or (started_again() and work.config.checkpoint is not None)
    is_left = False
    try:
        take = None if module is None else partial(load_tensors, module)
        for message in train_rank(
            work, prepared or prepare(work), rank, device, resume, recorder.stop.is_asked, take
        ):
            if isinstance(message, Ready):
                recorder.on_ready(message.step, message.notes)
                continue
            reports = gathered(message, num_ranks, device)
            if rank == 0:
                recorder.on_step(combine(reports, work.plan.num_rows))
            launched.stepped()
            if rank == 0 and not is_left:
                try:
                    yield recorder.by_step[message.step]
                except GeneratorExit:
                    is_left = True
                    recorder.stop.ask()
    finally:
        recorder.close()
        if dist.is_initialized():
            dist.destroy_process_group()
