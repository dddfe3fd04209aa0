"""Options and results of a training run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor

from trainyard.job.arguments import require_optimizer
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Plan
from trainyard.job.run.best import EarlyStop, KeepBest
from trainyard.job.run.step.data import Data
from trainyard.job.run.step.evaluation import Evaluation
from trainyard.program.model import Model
from trainyard.reading.arguments import WrongValueError, name_list, require_field_types, require_type
from trainyard.shown import Shown

ModelSource = Callable[[], Model]
"""Builds the model; called in every process with the same random seed. ``partial(build, "gpt2", 8)`` is one."""


OnNonFinite = Literal["stop", "skip"]


@dataclass(frozen=True, eq=False)
class InitFrom:
    """Weights with which a run begins, in the place of the model's own; the optimizer begins anew.

    Attributes
    ----------
    weights : a folder of checkpoints or one of them, a ``.safetensors`` file, a file of a state dict, or tensors by name.
    rename : beginnings of names in ``weights``, and what stands in their place in the model.
    """

    weights: Path | Mapping[str, Tensor]
    rename: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_type("weights", self.weights, (Path, Mapping), "a pathlib.Path, or tensors by name")
        require_type("rename", self.rename, Mapping, "new beginnings of names by the old ones")
        for part in (part for pair in self.rename.items() for part in pair):
            require_type("an entry of rename", part, str, "the beginning of a name")
        # Weights of a file are read one at a time, and are tensors in any case.
        for value in self.weights.values() if isinstance(self.weights, dict) else ():
            require_type("an entry of weights", value, Tensor, "a tensor")


_PARTS_OF_RUN = (
    ("evaluate", Evaluation, "an Evaluation, such as Evaluation(dataset)"),
    ("early_stop", EarlyStop, "an EarlyStop, such as EarlyStop(patience=3)"),
    ("keep_best", KeepBest, "a KeepBest, such as KeepBest(num=1)"),
    ("init_from", InitFrom, "an InitFrom, such as InitFrom(Path('weights.safetensors'))"),
)
"""Fields of `TrainConfig` that are None unless they are given: the type of each, and an example."""


@dataclass(frozen=True)
class TrainConfig:
    """Options of a run.

    Attributes
    ----------
    steps : the run ends after this many steps, counted from the first one ever, not from a resumption.
    optimizer : how parameters are updated. A rate that falls and has no ``lr_steps`` falls over ``steps``.
    checkpoint : folder of checkpoints; None keeps none. One is written at the end of the run in any case.
    checkpoint_every : steps between checkpoints; 0 writes the last one only.
    keep : complete checkpoints that stay.
    resume : continue from the newest whole checkpoint of the folder, which must be of this run. Without it the folder
        must hold none.
    seed : of initial values and dropout.
    on_nonfinite : what to do after a step whose loss or gradient is not finite: ``stop`` the run before the update, or
        ``skip`` the update, on all ranks alike, and count it in the metrics.
    max_restarts : how often all processes are started again, from the newest checkpoint, when one dies.
    log : folder of ``metrics.jsonl`` (a line per step) and ``rank-<n>.log`` (what a process printed).
    log_to : further logs of the metrics in ``log``: ``csv``, ``tensorboard``, ``wandb``.
    ideal_step_s : seconds that a step would take at the peak of its devices (``Simulation.ideal_step_s``), of which MFU
        is made; 0 leaves MFU unknown.
    profile : record when each op of the last few steps began and ended, for ``read_recorded``, in ``log``.
    device : ``cpu``, or ``cuda`` with one GPU per process of a machine.
    heartbeat_s : seconds without a heartbeat after which a process counts as stopped, and fails.
    stall_s : seconds without a further step after which a process that lives counts as stuck, and fails; the first step
        may take half an hour in any case. Writing a checkpoint is part of a step.
    max_checkpoint_bytes : that all checkpoints of the run may take on the disk together; a run that would need more is
        refused before it begins.
    pause : as soon as there is a file of this name, the run ends after its present step, with a checkpoint.
    num_threads : of each process; 0 divides the cores of the machine among its processes.
    evaluate : on a held-out set while training.
    early_stop : ends the run when evaluations get no better.
    keep_best : checkpoints that stay beside ``keep``; with it every evaluation writes one.
    init_from : weights to begin with, for fine-tuning; a resumed run has those of its checkpoint.
    core_part : of the time of a core that each thread takes at most; below 1 a process rests after its steps, so that it
        is no faster alone than beside others with which it shares cores.
    """

    steps: int
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    checkpoint: Path | None = None
    checkpoint_every: int = 0
    keep: int = 2
    resume: bool = False
    seed: int = 0
    on_nonfinite: OnNonFinite = "stop"
    max_restarts: int = 0
    log: Path | None = None
    log_to: tuple[str, ...] = ()
    ideal_step_s: float = 0.0
    profile: bool = False
    device: Literal["cpu", "cuda"] = "cpu"
    heartbeat_s: float = 60.0
    stall_s: float = 1800.0
    max_checkpoint_bytes: float = math.inf
    pause: Path | None = None
    num_threads: int = 0
    core_part: float = 1.0
    evaluate: Evaluation | None = None
    early_stop: EarlyStop | None = None
    keep_best: KeepBest | None = None
    init_from: InitFrom | None = None

    def __post_init__(self) -> None:
        self._check_types()
        for name in ("steps", "checkpoint_every", "max_restarts", "num_threads"):
            if getattr(self, name) < 0:
                raise WrongValueError(f"{name} cannot be negative, got {getattr(self, name)}")
        if self.optimizer.has_falling_rate and not self.optimizer.lr_steps:
            # Written down, so that a run that is resumed for more steps goes on with the rates that it had.
            optimizer = replace(self.optimizer, lr_steps=self.steps)
            object.__setattr__(self, "optimizer", optimizer)
        for name in ("heartbeat_s", "stall_s", "max_checkpoint_bytes"):
            if not getattr(self, name) > 0.0:
                raise WrongValueError(f"{name} is more than 0, got {getattr(self, name)}")
        if not -(2**63) <= self.seed < 2**63:
            raise WrongValueError(f"seed is a number of 64 bits, from -2**63 to 2**63 - 1, got {self.seed}")
        if not 0.0 < self.core_part <= 1.0:
            raise WrongValueError(f"core_part is more than 0 and at most 1, got {self.core_part}")
        if self.keep < 1:
            raise WrongValueError(f"at least one checkpoint must be kept, got keep={self.keep}")
        if self.checkpoint is None and (self.resume or self.checkpoint_every or self.pause):
            raise WrongValueError(
                "resume, checkpoint_every and pause need the folder of the checkpoints: give checkpoint"
            )
        if self.log_to and self.log is None:
            raise WrongValueError(f"log_to {', '.join(self.log_to)} needs a folder for logs: give log")
        if self.profile and self.log is None:
            raise WrongValueError("profile needs a folder for what is recorded: give log")
        if self.evaluate is None and (self.early_stop or self.keep_best):
            raise WrongValueError("early_stop and keep_best compare evaluations: give evaluate")
        if self.keep_best and self.checkpoint is None:
            raise WrongValueError("keep_best needs the folder of the checkpoints: give checkpoint")
        if self.device not in ("cpu", "cuda"):
            raise WrongValueError(f"unknown device {self.device!r}; known: cpu, cuda")
        if self.on_nonfinite not in get_args(OnNonFinite):
            raise WrongValueError(f"unknown on_nonfinite {self.on_nonfinite!r}; known: stop, skip")

    def _check_types(self) -> None:
        require_field_types(self)
        require_optimizer(self.optimizer)
        for name, allowed, example in _PARTS_OF_RUN:
            require_type(name, getattr(self, name), (allowed, type(None)), f"None or {example}")
        name_list("log_to", self.log_to)

    @property
    def options(self) -> dict[str, Any]:
        """Options of the run that do not change what is trained; a checkpoint keeps them."""
        names = ("steps", "checkpoint_every", "keep", "max_restarts", "device", "on_nonfinite")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, eq=False)
class WorkerInput:
    """All that a worker process needs to know.

    Attributes
    ----------
    returns_values : whether the caller has a module that gets the trained values.
    waits_for_caller : whether a step begins only when the caller has looked at the one before, after which it may end
        the run.
    """

    model: Model | ModelSource
    plan: Plan
    data: Data
    config: TrainConfig
    returns_values: bool = False
    waits_for_caller: bool = False

    @property
    def may_be_asked_to_stop(self) -> bool:
        """Whether ranks look after each step if they are to end; other runs lose nothing when they are ended at once."""
        return self.config.checkpoint is not None or self.waits_for_caller

    def build(self) -> Model:
        """The model. One of Trainyard's own takes no memory: its values are made when a rank asks for its part."""
        import torch

        if isinstance(self.model, Model):
            return self.model
        torch.manual_seed(self.config.seed)
        function = self.model.func if isinstance(self.model, partial) else self.model
        if getattr(function, "__module__", "").startswith("trainyard.zoo.registry"):
            with torch.device("meta"):
                return self.model()
        return self.model()


@dataclass(frozen=True)
class RankStep:
    """Results of one rank for one step; see ``StepMetrics``."""

    rank: int
    step: int
    losses: Mapping[str, float]
    grad_norm: float
    seconds: float
    tokens: int
    peak_memory_bytes: int
    sent_bytes: int
    skipped: bool
    learning_rate: float = 0.0
    data_s: float = 0.0
    forward_backward_s: float = 0.0
    wait_s: float = 0.0
    update_s: float = 0.0
    checkpoint_s: float = 0.0
    loss_scale: float | None = None
    length: int | None = None
    evaluation: Mapping[str, float] = field(default_factory=dict)
    evaluation_s: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class StepMetrics:
    """One step of all ranks.

    Attributes
    ----------
    step : its number, from 0. After a restart, steps since the last checkpoint are reported again.
    losses : loss and metrics by name, averages over the batch.
    grad_norm : global norm of the gradient before clipping.
    seconds : of the slowest rank.
    rows_per_s, tokens_per_s : of all ranks together; no tokens (0) where the data is not text.
    peak_memory_bytes : by rank: most memory held so far, resident on a CPU, allocated on a GPU.
    sent_bytes : by rank: sent in this step to other ranks, counted as the usual ring algorithms send.
    skipped : whether there was no update, because the loss or the gradient was not finite.
    learning_rate : of the last update, of the first group of parameters.
    data_s, forward_backward_s, wait_s, update_s : of ``seconds``: waiting for the batch; computing forward and backward;
        waiting for other ranks; updating. On a GPU they are seconds of its host. Each of the rank where it is longest.
    checkpoint_s : seconds for which the ranks stood still for a checkpoint before this step, beside ``seconds``.
    mfu : share of the devices' peak that the model's flops take in ``seconds``; None where it is not known, or
        above 1 because the devices do more than the peak that is known, or where steps have several lengths.
    loss_scale : the factor of the loss in the backward pass of float16; None in other precisions.
    length : the size to which the batch was padded; None where the model has no `Lengths`.
    evaluation : loss and metrics by name on the held-out set after the step; empty where it was not evaluated.
    evaluation_s : seconds that the evaluation took; they are not part of ``seconds``.
    note : why the run ends early after this step; "" if it does not.
    """

    step: int
    losses: Mapping[str, float]
    grad_norm: float
    seconds: float
    rows_per_s: float
    tokens_per_s: float
    peak_memory_bytes: tuple[int, ...]
    sent_bytes: tuple[int, ...]
    skipped: bool
    learning_rate: float = 0.0
    data_s: float = 0.0
    forward_backward_s: float = 0.0
    wait_s: float = 0.0
    update_s: float = 0.0
    checkpoint_s: float = 0.0
    mfu: float | None = None
    loss_scale: float | None = None
    length: int | None = None
    evaluation: Mapping[str, float] = field(default_factory=dict)
    evaluation_s: float = 0.0
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return asdict(self)


PARTS = ("data_s", "forward_backward_s", "wait_s", "update_s", "checkpoint_s")
"""Fields of `RankStep` and `StepMetrics` that say where the time went."""


def combine(reports: list[RankStep], num_rows: int) -> StepMetrics:
    """The metrics of a step from the reports of all ranks, in the order of ranks."""
    first = reports[0]
    seconds = max(r.seconds for r in reports)
    return StepMetrics(
        first.step,
        first.losses,
        first.grad_norm,
        seconds,
        num_rows / seconds,
        first.tokens / seconds,
        tuple(r.peak_memory_bytes for r in reports),
        tuple(r.sent_bytes for r in reports),
        first.skipped,
        first.learning_rate,
        loss_scale=first.loss_scale,
        length=first.length,
        evaluation=first.evaluation,
        evaluation_s=first.evaluation_s,
        note=first.note,
        **{name: max(getattr(r, name) for r in reports) for name in PARTS},
    )


@dataclass(frozen=True)
class Restart:
    """Why and how fast a run was started again.

    Attributes
    ----------
    reason : what happened to which rank.
    step : from which training went on.
    seconds : from the failure until all ranks were ready for that step.
    """

    reason: str
    step: int
    seconds: float


@dataclass(frozen=True, repr=False)
class TrainResult(Shown):
    """Results of a run.

    Attributes
    ----------
    metrics : of every step that this run did, in order, each step once.
    first_step : 0, or where it was resumed.
    restarts : one entry for each.
    notes : what the user should know, such as a damaged checkpoint that was passed over.
    checkpoint : the last checkpoint's folder, for ``load_weights``; None without checkpoints.
    """

    metrics: tuple[StepMetrics, ...]
    first_step: int
    restarts: tuple[Restart, ...]
    notes: tuple[str, ...]
    checkpoint: Path | None
