"""Trainings of level 1 as level 2 has them: what to train, over which devices, and what is known of its speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from trainyard.divisors import divisors
from trainyard.fleet.errors import FleetError
from trainyard.job.optimizer import OptimizerConfig
from trainyard.reading import shown

if TYPE_CHECKING:
    from trainyard.hardware.cluster import Cluster
    from trainyard.job.plan import Plan
    from trainyard.job.run.config import ModelSource
    from trainyard.job.run.step.data import Data
    from trainyard.job.task import Task

THIS_MACHINE = "local"
"""The device type of this machine: a device of it is one process."""
_MOST_EPOCHS = 100
_SHOWN_SIZES = 64
CAPTURING = Lock()
"""Held while a program is captured, which changes PyTorch for all threads of a process."""


@dataclass(frozen=True)
class Training:
    """A training of a model of the zoo, or of a Python file.

    Its batch is the same however many devices it has, and so is its loss curve.

    Attributes
    ----------
    model : name in the zoo, or the absolute path of a Python file with ``model()`` and its data.
    rows : of the batch of one step.
    steps : of the whole training.
    strategies : how it is spread over its devices, as ``parse_strategies`` reads them.
    learning_rate, seed : of the training.
    checkpoint_every : steps between checkpoints: what a job that dies may lose.
    """

    model: str
    rows: int
    steps: int
    strategies: str = "data_parallel"
    learning_rate: float = OptimizerConfig.lr
    seed: int = 0
    checkpoint_every: int = 5

    @property
    def as_fast(self) -> Training:
        """A training of one step without what changes losses only; equal for trainings that are equally fast."""
        return Training(self.model, self.rows, 1, self.strategies, checkpoint_every=self.checkpoint_every)

    @property
    def source(self) -> ModelSource:
        """Builds the model, in whatever process that is needed."""
        from trainyard.job.sources import model_source

        return model_source(self.model, self.rows)

    @property
    def is_own(self) -> bool:
        """Whether it is of a Python file, which runs code of a user."""
        return is_own_file(self.model)

    @property
    def optimizer(self) -> OptimizerConfig:
        """Optimizer of the training; a Python file may have an ``optimizer(params)`` and an ``lr_schedule(step)``."""
        if not self.is_own:
            return OptimizerConfig(lr=self.learning_rate)
        from trainyard.job.own_optimizer import configured

        return configured({"lr": self.learning_rate}, self.model)

    def data(self) -> Data:
        """Return the data of the training, as `trainyard train` reads them."""
        from trainyard.job.sources import data_of, file_data, file_model

        model = file_model(self.model, self.seed)
        own = file_data(self.model, model, self.steps, self.rows, self.seed)
        return data_of(self.model, self.rows, own)[0]

    def task(self) -> Task:
        """Make the task of one step, which keeps captured programs; weights of a model of the zoo take no memory."""
        from trainyard.job.sources import loaded
        from trainyard.job.task import Task

        return Task(loaded(self.model, self.rows, self.seed), optimizer=self.optimizer)

    def plan(self, cluster: Cluster, task: Task | None = None) -> Plan:
        """Plan the training on all devices of a cluster.

        Parameters
        ----------
        task : its own; a new one if the caller needs no programs.

        Raises
        ------
        PlanError
            If its strategies have no plan there.
        """
        from trainyard.job.catalog import parse_strategies
        from trainyard.job.planning import make_setting
        from trainyard.job.setting import apply

        with CAPTURING:
            return apply(parse_strategies(self.strategies), make_setting(task or self.task(), cluster))

    def sizes(self, most: int) -> tuple[int, ...]:
        """Numbers of devices over which the batch divides."""
        return tuple(n for n in divisors(self.rows) if n <= most)

    @property
    def sizes_text(self) -> str:
        """The smaller numbers of devices over which the batch divides."""
        shown = ", ".join(map(str, self.sizes(min(self.rows, _SHOWN_SIZES))))
        return shown if self.rows <= _SHOWN_SIZES else f"{shown}, or more"

    @property
    def epoch_steps(self) -> int:
        """Steps that count as an epoch, whose mean loss it tells: from checkpoint to checkpoint, or a hundredth of all.

        The longer of both, so that who follows a long training is not told of thousands.
        """
        return max(self.checkpoint_every, -(-self.steps // _MOST_EPOCHS))

    def to_dict(self) -> dict[str, Any]:
        """Plain form, for files; ``from_dict`` reads it back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Training:
        """Read the plain form.

        Raises
        ------
        FleetError
            If a field is unknown, missing, or has another type.
        """
        kinds: dict[str, type] = {
            "model": str, "rows": int, "steps": int, "strategies": str, "learning_rate": float, "seed": int,
            "checkpoint_every": int,
        }  # fmt: skip
        unknown = sorted(given.keys() - kinds.keys())
        missing = [f for f in ("model", "rows", "steps") if f not in given]
        if unknown or missing:
            raise FleetError(
                f"a training has the fields {', '.join(kinds)}; "
                + (f"{unknown[0]!r} is none of them" if unknown else f"{missing[0]} is missing")
            )
        values = {}
        for name, value in given.items():
            kind = kinds[name]
            if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
                raise FleetError(f"training: {name} is {value!r}; it takes {kind.__name__}")
            values[name] = kind(value)
        return cls(**values)


def is_own_file(model: str) -> bool:
    """Whether the model of a job is a Python file, and no name of the zoo."""
    return model.endswith(".py")


def cluster_text(nodes: Sequence[tuple[str, int]]) -> str:
    """The devices of a job as ``parse_cluster`` reads them.

    Parameters
    ----------
    nodes : device type and number of devices of each.

    Raises
    ------
    FleetError
        If level 1 does not know a type.
    """
    from trainyard.hardware import DEVICES, HardwareError, device_named

    if all(kind == THIS_MACHINE for kind, _ in nodes):
        return f"{THIS_MACHINE}:{sum(count for _, count in nodes)}"
    for kind, _ in nodes:
        try:
            device_named(kind)
        except HardwareError as error:
            raise FleetError(
                f"unknown device type {shown(kind)}: a training runs on devices of a known type "
                f"({', '.join(sorted(DEVICES))}), or of type {THIS_MACHINE!r} (processes of this machine), "
                f"as in 2x2x{THIS_MACHINE}"
            ) from error
    return "+".join(f"1x{count}x{kind}" for kind, count in nodes)
