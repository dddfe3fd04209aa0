"""Train: run a plan for real, in processes of this machine or as one rank of ``torchrun``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from trainyard.hardware.interface import use_interface
from trainyard.job.arguments import require_model, require_plan
from trainyard.job.plan import Plan
from trainyard.job.run.checkpoint.folders import check_goes_on_as
from trainyard.job.run.checkpoint.lock import FolderLock, locked
from trainyard.job.run.checkpoint.same_run import settings_of
from trainyard.job.run.checkpoint.saved import (
    check_unused,
    complete_steps,
    newest_complete,
    path_of,
    read_about,
    saved_steps,
    started_again,
)
from trainyard.job.run.config import (
    ModelSource,
    RankStep,
    Restart,
    StepMetrics,
    TrainConfig,
    TrainResult,
    WorkerInput,
    combine,
)
from trainyard.job.run.processes.launchers import is_launched, join_launcher
from trainyard.job.run.processes.logs import Metrics
from trainyard.job.run.processes.rendezvous import launched_store
from trainyard.job.run.processes.stopping import EndedBySignal, StopRequest, handling_signals
from trainyard.job.run.processes.supervisor import Watcher, shared_folder, supervise
from trainyard.job.run.processes.worker import Prepared, Ready, join_group, prepare, set_up_device, train_rank
from trainyard.job.run.step.data import Data
from trainyard.job.run.step.repeatable import check_goes_on, repeatable
from trainyard.private import only_for_user
from trainyard.program.model import Model
from trainyard.reading.arguments import require_type

T = TypeVar("T")


def train(
    model: Model | ModelSource,
    plan: Plan,
    data: Data,
    config: TrainConfig,
    on_step: Callable[[StepMetrics], None] = lambda _: None,
    on_restart: Callable[[Restart], None] = lambda _: None,
    on_note: Callable[[str], None] = lambda _: None,
) -> TrainResult:
    """Train a model as a plan says.

    Starts one process per rank on this machine. Under ``torchrun`` (or any launcher that sets ``RANK``,
    ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``) the calling process is one of the ranks instead, and
    ``torchrun --max-restarts`` with ``resume`` takes the place of ``max_restarts``. Each task of a step of Slurm that
    has several is a rank, too, and each process that ``mpirun`` or ``mpiexec`` started.

    Parameters
    ----------
    model : the model the plan was made for, or a function that builds it. What is given is sent to other
        processes, so functions in it must be defined at the top level of a module. What a notebook defines, or a script
        without ``if __name__ == "__main__":``, goes by value, which needs the package cloudpickle.
    data : batches of ``plan.num_rows`` rows.
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
    ValueError
        If a launcher's variables do not say which rank this process is and where the ranks meet; a missing one is named.
    WrongTypeError
        If an argument is of another type.
    TypeError
        If the model or the data cannot be pickled, before anything is written. Under a launcher nothing is pickled.
    WorkerError
        If a process fails or dies and ``config.max_restarts`` are used up.
    NonFiniteError
        If a step is not finite, and ``config.on_nonfinite`` is ``stop``.
    CheckpointError
        If the folder holds what this run cannot continue from, or another run uses it now.
    DataError
        If the data is not the same whenever it is asked for a step, or no more what a checkpoint was trained on.
    """
    _check_arguments(model, plan, data, config)
    join_launcher()
    stop = StopRequest(is_launched())
    recorder = _Recorder(plan, config, stop, on_step, on_restart, on_note)
    with handling_signals(stop), recorder.raising():
        _train(WorkerInput(model, plan, repeatable(data, config.steps), config), recorder, stop)
    return recorder.result()


def _check_arguments(model: object, plan: object, data: object, config: object) -> None:
    """Refuse an argument of another type by its name."""
    require_model(model, may_be_function=True)
    require_plan(plan)
    if not callable(getattr(data, "batch", None)):
        require_type(
            "data", data, (), "data with batch(step), such as FunctionData(FUNCTION) or FixedData(TENSORS)"
        )
    require_type("config", config, TrainConfig, "a TrainConfig, such as TrainConfig(steps=100)")


def _train(work: WorkerInput, recorder: _Recorder, stop: StopRequest) -> None:
    config = work.config
    if config.checkpoint is not None and config.resume and not started_again():
        newest_complete(config.checkpoint)
    with (
        nullcontext(Path()) if is_launched() else shared_folder(work) as shared,
        _lock(config, int(os.environ["RANK"]) if is_launched() else 0) as lock,
    ):
        _check_checkpoint(work)
        if lock is not None and lock.note:
            recorder.note(lock.note)
        if is_launched():
            with only_for_user():
                _train_under_launcher(work, recorder, _launched(), None)
            return
        with _log_folder(config.log) as logs:
            recorder.open(logs)
            watcher = Watcher(recorder.on_step, recorder.on_ready, recorder.on_restart, recorder.tell_of_stop)
            try:
                supervise(work, shared, watcher, logs, lock, stop)
            finally:
                recorder.close()


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
    num_local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", num_ranks))
    # A launcher that does not say how many ranks are here may have started some elsewhere.
    alone = "LOCAL_WORLD_SIZE" in os.environ and num_local_ranks == num_ranks
    return Launched(
        rank,
        num_ranks,
        int(os.environ.get("LOCAL_RANK", rank)),
        num_local_ranks,
        peer="" if alone else os.environ["MASTER_ADDR"],
    )


def train_prepared(work: WorkerInput, launched: Launched, prepared: Prepared | None) -> TrainResult:
    """Be one of the ranks that a launcher started, as ``train`` is under ``torchrun``.

    With ``resume`` it begins where there is no checkpoint yet: who starts it may not know.

    Parameters
    ----------
    prepared : from ``prepare``, in the process that this one was forked from; None to prepare it here.
    """
    with _lock(work.config, launched.rank):
        _check_checkpoint(work)
        recorder = _Recorder(work.plan, work.config, StopRequest(), lambda _: None, lambda _: None, _print)
        _train_under_launcher(work, recorder, launched, prepared)
        return recorder.result()


@contextmanager
def _lock(config: TrainConfig, rank: int) -> Iterator[FolderLock | None]:
    """One process of a run holds its folder for all of them."""
    with locked(config.checkpoint) if config.checkpoint is not None and rank == 0 else nullcontext() as lock:
        yield lock


def _check_checkpoint(work: WorkerInput) -> None:
    """Check that the run may continue from its folder's newest checkpoint, if there is one."""
    folder = work.config.checkpoint
    if folder is not None and not work.config.resume and not started_again():
        check_unused(folder)
    if folder is None or not saved_steps(folder):
        return
    newest = newest_complete(folder)
    check_goes_on_as(newest, settings_of(work.plan, work.config))
    about = read_about(newest)
    check_goes_on(work.data, about.step - 1, about.batch)


@contextmanager
def _log_folder(log: Path | None) -> Iterator[Path]:
    if log is not None:
        yield log
        return
    with tempfile.TemporaryDirectory(prefix="trainyard-log-") as name:
        yield Path(name)


class _Recorder:
    """A recorder of step metrics: keeps them, writes them to files and passes them on.

    When a callback raises an exception, no callback is called any more, and the run stops.
    """

    def __init__(
        self,
        plan: Plan,
        config: TrainConfig,
        stop: StopRequest,
        on_step: Callable[[StepMetrics], None],
        on_restart: Callable[[Restart], None],
        on_note: Callable[[str], None],
    ) -> None:
        self.plan, self.config, self.stop = plan, config, stop
        self._tell_step, self._tell_restart, self._tell_note = on_step, on_restart, on_note
        self.by_step: dict[int, StepMetrics] = {}
        self.restarts: list[Restart] = []
        self.notes: dict[str, None] = {}
        self.first: int | None = None
        self.metrics: Metrics | None = None
        self.raised: BaseException | None = None

    def open(self, folder: Path) -> None:
        """Write metrics into a folder; a resumed run goes on with the file that is there."""
        self.metrics = Metrics(folder, self.config.resume)

    def close(self) -> None:
        if self.metrics is not None:
            self.metrics.close()

    def on_step(self, metrics: StepMetrics) -> None:
        self.by_step[metrics.step] = metrics
        try:
            if self.metrics is not None:
                self.metrics.write(metrics.as_dict())
        except OSError as error:
            self.note(f"metrics of some steps are not written to {self.config.log}: {error.strerror}")
        self.tell_of_stop()
        self._tell(self._tell_step, metrics)

    def on_ready(self, step: int, notes: tuple[str, ...]) -> None:
        self.first = step if self.first is None else self.first
        self.stop.can_save = self.config.checkpoint is not None
        for text in notes:
            self.note(text)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes[text] = None
            self._tell(self._tell_note, text)

    def on_restart(self, restart: Restart) -> None:
        self.restarts.append(restart)
        self._tell(self._tell_restart, restart)

    def tell_of_stop(self) -> None:
        """Note that a signal came, and what a second one does."""
        if self.stop.signal is not None:
            at_once = "" if self.stop.is_launched else "; a second signal ends it at once, without"
            self.note(
                f"{self.stop.signal.name}: the run ends after the present step, with a checkpoint{at_once}"
            )

    def _tell(self, callback: Callable[[T], None], news: T) -> None:
        if self.raised is not None:
            return
        try:
            callback(news)
        except BaseException as error:
            if not self.stop.can_save or isinstance(error, EndedBySignal):
                raise
            self.raised = error
            self.stop.ask()

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Raise the exception of a callback when the run has stopped for it, however that went."""
        try:
            yield
            self.tell_of_stop()  # for a signal that came after the last step was told
        except Exception as error:
            if self.raised is not None:
                raise self.raised from error
            raise
        except EndedBySignal:
            if self.config.checkpoint is None and self.by_step:
                self.note(
                    f"nothing of the {len(self.by_step)} steps that were done is saved: give a checkpoint folder, where "
                    "an interrupted run is saved"
                )
            raise
        if self.raised is not None:
            raise self.raised

    def result(self) -> TrainResult:
        folder = self.config.checkpoint
        steps = complete_steps(folder) if folder is not None else []
        return TrainResult(
            tuple(self.by_step[s] for s in sorted(self.by_step)),
            self.first or 0,
            tuple(self.restarts),
            tuple(self.notes),
            path_of(folder, steps[0]) if folder is not None and steps else None,
        )


def _print(note: str) -> None:
    with suppress(OSError):  # of a disk that is full
        print(note, flush=True)


def _train_under_launcher(
    work: WorkerInput, recorder: _Recorder, launched: Launched, prepared: Prepared | None
) -> None:
    """Be one of the ranks that a launcher started."""
    rank, num_ranks = launched.rank, launched.num_ranks
    work.plan.require_processes(num_ranks)
    device = set_up_device(work.config, launched.local_rank, launched.num_local_ranks)
    if num_ranks > 1:
        use_interface(launched.peer)
        store = launched_store(rank, num_ranks, launched.store, several_machines=bool(launched.peer))
        join_group(device, store, rank, num_ranks)
    if rank == 0 and work.config.log is not None:
        recorder.open(work.config.log)

    def report(message: Ready | RankStep) -> None:
        if isinstance(message, Ready):
            recorder.on_ready(message.step, message.notes)
        else:
            reports = _gathered(message, num_ranks, device)
            if rank == 0:
                recorder.on_step(combine(reports, work.plan.num_rows))
            launched.stepped()

    # After a failure an elastic launcher starts the same command again: continue then without being asked.
    resume = work.config.resume or (started_again() and work.config.checkpoint is not None)
    try:
        train_rank(work, prepared or prepare(work), rank, device, report, resume, recorder.stop.is_asked)
    finally:
        recorder.close()
        if dist.is_initialized():
            dist.destroy_process_group()


def _gathered(report: RankStep, num_ranks: int, device: torch.device) -> list[RankStep]:
    """The reports of all ranks; only what differs between them travels."""
    if num_ranks == 1:
        return [report]
    own = [report.seconds, float(report.peak_memory_bytes), float(report.sent_bytes)]
    mine = torch.tensor(own, dtype=torch.float64, device=device)
    all_of_them = [torch.empty_like(mine) for _ in range(num_ranks)]
    dist.all_gather(all_of_them, mine)
    return [
        replace(report, rank=r, seconds=s, peak_memory_bytes=int(memory), sent_bytes=int(sent))
        for r, (s, memory, sent) in enumerate(t.tolist() for t in all_of_them)
    ]
