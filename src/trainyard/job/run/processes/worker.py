"""Worker: one rank of a training run, from the process group to the last checkpoint."""

from __future__ import annotations

import math
import os
import resource
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from trainyard.hardware.gpus import require_gpus
from trainyard.job.lower.lower import Lowered, lower
from trainyard.job.lower.other_length import lower_at_length
from trainyard.job.lower.verify import verify
from trainyard.job.run.checkpoint.folders import Checkpointer, RunFacts
from trainyard.job.run.checkpoint.gather import TakeTrained, whole_tensors
from trainyard.job.run.checkpoint.initial_weights import initialized
from trainyard.job.run.checkpoint.module_record import module_record
from trainyard.job.run.checkpoint.quota import check_quota, checkpoint_bytes
from trainyard.job.run.checkpoint.same_run import ModelIdentity, model_identity, settings_of
from trainyard.job.run.checkpoint.saved import About, complete_steps, saved_steps
from trainyard.job.run.config import RankStep, TrainConfig, WorkerInput
from trainyard.job.run.errors import NonFiniteError
from trainyard.job.run.processes.agreement import (
    check_same_batch_on_ranks,
    check_same_run,
    check_same_values,
    held_values,
)
from trainyard.job.run.processes.evaluations import Evaluations
from trainyard.job.run.processes.logs import profile_file
from trainyard.job.run.processes.option_conflicts import check_options
from trainyard.job.run.step.data import check_batch, num_tokens
from trainyard.job.run.step.data_reader import DataReader, is_stream, open_reader
from trainyard.job.run.step.executor import Executor
from trainyard.job.run.step.initial import initial_values
from trainyard.job.run.step.pacing import Pacer
from trainyard.job.run.step.padded_steps import PaddedSteps, padded
from trainyard.job.run.step.recorder import StepRecorder, write_recorded
from trainyard.job.run.step.repeatable import check_goes_on, repeatable
from trainyard.job.run.step.row_places import row_places
from trainyard.job.run.step.state import Values
from trainyard.job.task import Task
from trainyard.program.model import Model
from trainyard.program.program import Program, tensor_of
from trainyard.program.random.positional import POSITIONAL


@dataclass(frozen=True)
class Ready:
    """A rank is about to train: from which step, and what it has to say."""

    rank: int
    step: int
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Prepared:
    """Values that are the same for all ranks: the lowered plan and the initial values.

    Attributes
    ----------
    held : those values that the model had when it was built, and constants.
    identity : of the model, for checkpoints.
    model : itself, as it was built.
    note : of weights from elsewhere; "" if there are none.
    shorter : the plan applied to batches of each smaller size of the model's lengths, by size.
    """

    lowered: Lowered
    values: Values
    held: Mapping[str, torch.Tensor]
    identity: ModelIdentity
    model: Model
    note: str = ""
    shorter: Mapping[int, Lowered] = field(default_factory=dict)

    def placeholder(self, path: str) -> torch.Tensor:
        """Stands for a value that a checkpoint replaces; a trained parameter's takes no memory."""
        param = self.lowered.params.get(path)
        if param is None or not param.trainable:
            return self.values(path)  # the precision in which it is read and kept is this one's
        return torch.zeros(()).expand(param.whole_shape)


def prepare(work: WorkerInput, task: Task | None = None) -> Prepared:
    """Build, capture and lower the model, look at a first batch, and load what ranks will need at once.

    Parameters
    ----------
    task : of the model and the plan, if something of it has been captured already.

    Raises
    ------
    CaptureError, PlanError, DataError, InitialValueError
        If the model, plan and data do not fit together.
    QuotaError
        If its checkpoints would be larger than they may.
    """
    plan = work.plan
    model = work.build()
    check_options(work, model)
    optimizer = work.config.optimizer
    if task is None:
        task = Task(model, plan.dtype, plan.statistics, plan.num_rows, optimizer)
    elif task.optimizer != optimizer:
        task = replace(task, optimizer=optimizer)
    if work.config.checkpoint is not None:
        one_bytes = checkpoint_bytes(model.module, task.optimizer)
        best = work.config.keep_best
        num_kept = work.config.keep + (0 if best is None else best.num)
        check_quota(one_bytes, num_kept, work.config.max_checkpoint_bytes)
    data = repeatable(work.data, work.config.steps)
    task.check_patterns()
    program, rows = task.program(plan.rows_per_microbatch), plan.rows_per_microbatch
    size, first = padded(data.batch(0), model.lengths, 0)
    check_batch(first, task.shorter.get(size or 0, task).program(rows), plan.num_rows)
    values = initial_values(model, work.config.seed, None if isinstance(work.model, Model) else work.model)
    loaded, note = dict[str, torch.Tensor](), ""
    if work.config.init_from is not None:
        values, loaded, note = initialized(values, model, work.config.init_from)
    _load_kernels(program, values)
    identity = model_identity(task)
    lowered = lower(program, plan, task.optimizer)
    shorter = {
        size: lower_at_length(lowered, each.program(rows), size) for size, each in task.shorter.items()
    }
    for each in (lowered, *shorter.values()):
        verify(each)
    held = {**held_values(model), **loaded, **program.constants}
    for size, each in shorter.items():
        held |= {f"{path} at length {size}": value for path, value in each.program.constants.items()}
    return Prepared(lowered, values, held, identity, model, note, shorter)


def _load_kernels(program: Program, values: Values) -> None:
    """Use compiled functions once, so that processes forked from this one have them."""
    shapes = {i.path: tensor_of(program.nodes[i.node]).shape for i in program.params}
    matrices = [path for path, shape in shapes.items() if len(shape) > 1]
    if matrices:
        values(min(matrices, key=lambda path: shapes[path].numel()))
    counter = torch.zeros(3, dtype=torch.int64)
    drawn = [n for n in program.graph.nodes if n.target in POSITIONAL]
    for op, how, dtype in {(n.target, n.args[2], tensor_of(n).dtype) for n in drawn}:
        if isinstance(how, str):
            op([2], counter, how, 0, 0, 0, [2], [0], dtype=dtype, device=torch.device("cpu"))
        else:
            op(torch.ones(2, dtype=dtype), counter, how, 0, 0, 0, [2], [0])


def train_rank(
    work: WorkerInput,
    prepared: Prepared,
    rank: int,
    device: torch.device,
    resume: bool,
    is_to_stop: Callable[[], bool] = lambda: False,
    take_trained: TakeTrained | None = None,
) -> Generator[Ready | RankStep]:
    """Train as one rank, in a process group that exists already if there are several ranks.

    Parameters
    ----------
    resume : continue from the newest whole checkpoint, if there is any.
    is_to_stop : whether this rank was asked to end the run after the present step; asked after each step but the last.
    take_trained : called on every rank at the end with the trained module's tensors.

    Yields
    ------
    A message when the rank is ready, and one after every step.

    Raises
    ------
    CheckpointError
        If all checkpoints are damaged, or they are not of this run.
    NonFiniteError
        On all ranks, if a step is not finite and the run is to stop then.
    PlanError, InitialValueError, DataError
        If the ranks do not begin with the same.
    """
    config = work.config
    executor, checkpointer, about, notes = _begin(work, prepared, rank, device, resume)
    first = 0 if about is None else about.step
    steps = PaddedSteps(executor, prepared.model.lengths, prepared.shorter)
    reader = _open_data(work, executor, about, not notes, reads_all=prepared.model.lengths is not None)
    evaluations = Evaluations(config, prepared.model, prepared.values, executor, about)
    notes += [prepared.note if about is None else "", reader.note, evaluations.stop_reason]
    yield Ready(rank, first, tuple(filter(None, notes)))
    pacer, checkpoint_s = Pacer(config.core_part, torch.get_num_threads()), 0.0
    with closing(reader):
        for step in () if evaluations.stop_reason else range(first, config.steps):
            began_s = time.perf_counter()
            if step > first:
                pacer.rest()
            done = _step(executor, steps, work, reader, step, began_s)
            if done.skipped and config.on_nonfinite == "stop" and not _is_overflow(done):
                raise _stopped(done, work, checkpointer)
            done = evaluations.after(replace(done, checkpoint_s=checkpoint_s))
            yield done
            checkpoint_s = 0.0
            is_over = step + 1 == config.steps or bool(evaluations.stop_reason)
            last = is_over or _is_stopped(work, executor, is_to_stop)
            if checkpointer is not None and (last or _is_checkpoint_due(config, done)):
                checkpoint_s = _save(checkpointer, step + 1, reader, evaluations, rank)
            if last:
                break
    if checkpointer is not None:
        checkpointer.wait()
    _hand_over(executor, config, take_trained)


def _hand_over(executor: Executor, config: TrainConfig, take_trained: TakeTrained | None) -> None:
    """Write what a run recorded, and give the trained tensors to the caller."""
    if executor.recorder is not None and config.log is not None:
        write_recorded(executor.recorder, profile_file(config.log, executor.groups.rank))
    if take_trained is not None:
        take_trained(whole_tensors(executor))


def _save(
    checkpointer: Checkpointer, step: int, reader: DataReader, evaluations: Evaluations, rank: int
) -> float:
    """Save a checkpoint; return the seconds for which the rank stood still."""
    began_s = time.perf_counter()
    position = (reader.checksums(), reader.state()) if rank == 0 else ({}, "")
    checkpointer.save(step, *position, evaluations.history)
    return time.perf_counter() - began_s


def _is_checkpoint_due(config: TrainConfig, done: RankStep) -> bool:
    is_best = config.keep_best is not None and bool(done.evaluation)
    return is_best or (config.checkpoint_every > 0 and (done.step + 1) % config.checkpoint_every == 0)


def _begin(
    work: WorkerInput, prepared: Prepared, rank: int, device: torch.device, resume: bool
) -> tuple[Executor, Checkpointer | None, About | None, list[str]]:
    """Make the state of a rank, from a checkpoint if there is one to continue from; notes name those passed over."""
    config = work.config
    replaced = resume and config.checkpoint is not None and bool(saved_steps(config.checkpoint))
    check_same_run(work, replaced)
    values = prepared.placeholder if replaced else prepared.values
    recorder = StepRecorder(device) if config.profile else None
    executor = Executor(prepared.lowered, rank, values, device, config.seed, recorder)
    checkpointer, about, notes = None, None, list[str]()
    if config.checkpoint is not None:
        facts = RunFacts(
            settings_of(work.plan, config),
            config.options,
            prepared.identity,
            module_record(prepared.model.module),
        )
        checkpointer = Checkpointer(executor, config.checkpoint, facts, config.keep, config.keep_best)
        about, notes = checkpointer.restore() if resume else (None, [])
    check_same_values(work, {} if replaced else prepared.held)
    return executor, checkpointer, about, notes


def _open_data(
    work: WorkerInput, executor: Executor, about: About | None, is_newest: bool, reads_all: bool
) -> DataReader:
    """Open the data at the step to come, which must be the same on all ranks.

    Parameters
    ----------
    is_newest : whether ``about`` is of the newest checkpoint, at which the caller of the run has looked.
    reads_all : whether the rank reads the rows of other ranks, too, by which it knows the length of the batch.
    """
    first, end = 0 if about is None else about.step, work.config.steps
    if about is not None and not is_newest and not is_stream(work.data):
        check_goes_on(work.data, first - 1, about.batch)
    position, trained_on = ("", {}) if about is None else (about.position, about.batch)
    places = None if reads_all else row_places(executor)
    reader = open_reader(work.data, places, first, end, position, trained_on)
    check_same_batch_on_ranks(work, first, reader.peek() if first < end else {})
    return reader


def _is_overflow(step: RankStep) -> bool:
    """Return whether gradients were too large for float16 with this scale of the loss, and another one may do."""
    return step.loss_scale is not None and step.loss_scale > 1 and _finite_losses(step)


def _finite_losses(step: RankStep) -> bool:
    return all(math.isfinite(x) for name, x in step.losses.items() if name.startswith("loss:"))


def _stopped(step: RankStep, work: WorkerInput, checkpointer: Checkpointer | None) -> NonFiniteError:
    """Return the error for a step that is not finite, once the checkpoint before it is on the disk."""
    config = work.config
    values = {**step.losses, "norm of the gradient": step.grad_norm}
    wrong = [f"{n.removeprefix('loss:')} is {x}" for n, x in values.items() if not math.isfinite(x)]
    if checkpointer is not None:
        checkpointer.wait()
    steps = complete_steps(config.checkpoint) if config.checkpoint is not None else []
    kept = (
        f"the checkpoint of step {steps[0]} is kept in {config.checkpoint}"
        if steps
        else "there is no checkpoint"
    )
    what = f"step {step.step + 1}, of data({step.step}), is not finite: {', '.join(wrong)}. The run ended"
    if work.plan.schedule.has_updates:
        return NonFiniteError(
            f"{what} without saving it; {kept}.",
            "Look at the data of that step, or lower the learning rate in a run of its own",
        )
    return NonFiniteError(
        f"{what} before its update; {kept}.",
        "Look at the data of that step, lower the learning rate in a run of its own, or leave out the updates of such "
        f"steps ({'--resume ' if steps else ''}--on-nonfinite skip)",
    )


def _is_stopped(work: WorkerInput, executor: Executor, is_to_stop: Callable[[], bool]) -> bool:
    """Return whether the run is to end now; all ranks agree, though they look at different moments."""
    config = work.config
    if not work.may_be_asked_to_stop:
        return False
    is_asked = is_to_stop() or (config.pause is not None and config.pause.exists())
    if executor.plan.num_ranks == 1:
        return is_asked
    any_asked = torch.tensor([float(is_asked)], device=executor.device)
    dist.all_reduce(any_asked, dist.ReduceOp.MAX)
    return bool(any_asked.item())


def _step(
    executor: Executor, steps: PaddedSteps, work: WorkerInput, reader: DataReader, step: int, began_s: float
) -> RankStep:
    sent, reads_s = executor.groups.sent_bytes, time.perf_counter()
    batch = reader.next()
    data_s = time.perf_counter() - reads_s
    result, length = steps.run(batch, step, keep_buffers=work.config.on_nonfinite == "skip")
    return RankStep(
        executor.groups.rank,
        step,
        result.losses,
        result.grad_norm,
        time.perf_counter() - began_s,
        num_tokens(batch),
        peak_memory_bytes(executor.device),
        executor.groups.sent_bytes - sent,
        not result.is_finite,
        executor.optimizer.learning_rate,
        data_s,
        result.forward_backward_s,
        result.wait_s,
        result.update_s,
        loss_scale=result.loss_scale,
        length=length,
    )


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory that this process held: allocated on a GPU, else resident."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def set_up_device(config: TrainConfig, local_rank: int, processes_here: int) -> torch.device:
    """The device of a local rank; the cores of the machine are divided among its processes if nothing else is said.

    Raises
    ------
    HardwareError
        If there are fewer GPUs than processes.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(config.num_threads or max(1, cores // processes_here))
    if config.device == "cpu":
        return torch.device("cpu")
    require_gpus(processes_here)
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def join_group(device: torch.device, store: Store, rank: int, num_ranks: int) -> None:
    """Make the default process group: nccl between GPUs (gloo for their CPU tensors), else gloo."""
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=num_ranks)
