"""Setting: all that a strategy may ask, in one place; and what a strategy is.

This is the interface. `trainyard.job.planning.make_setting` makes a setting, whose answers come from the lowering and
the simulator; strategies know neither.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from numpy.typing import ArrayLike

from trainyard.cost.ops import OpSeconds, Roofline
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.devices import DeviceSpec
from trainyard.hardware.parse import is_described_by_name
from trainyard.job.model_state import ParameterTypes
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Plan, Statistics
from trainyard.job.schedules import make_schedule
from trainyard.job.tables import Floats, LayerTable, OpTable, TensorTable
from trainyard.program.model import Model
from trainyard.program.program import Program
from trainyard.progress import Progress, no_progress

__all__ = [
    "Prediction",
    "RunnerUp",
    "Setting",
    "Strategy",
    "TaskLike",
    "TaskTimer",
    "apply",
    "first_plan",
]


class TaskLike(Protocol):
    """The work to be planned, as strategies see it; `trainyard.job.task.Task` is one."""

    @property
    def model(self) -> Model:
        """The model that is trained."""

    @property
    def dtype(self) -> str:
        """Compute precision."""

    @property
    def weight_types(self) -> ParameterTypes:
        """The types in which parameters are computed with."""

    @property
    def statistics(self) -> Statistics:
        """The rows over which statistics are computed if rows depend on each other; see `Plan`."""

    @property
    def optimizer(self) -> OptimizerConfig:
        """Options of the optimizer, and so the tensors that it keeps for each parameter."""

    @property
    def num_rows(self) -> int:
        """Rows of one step."""

    @property
    def shorter(self) -> Mapping[int, TaskLike]:
        """Tasks on batches of each size of the model's lengths but the largest, by size."""

    def program(self, num_rows: int) -> Program:
        """The program of a microbatch of this many rows, on all ranks together.

        Raises
        ------
        PlanError
            If that is not the whole batch, and its rows depend on each other.
        """

    @property
    def coupling(self) -> str | None:
        """Why the batch cannot be split into microbatches exactly; None where it can."""

    @property
    def splits(self) -> bool:
        """True if the batch may be split into microbatches."""

    def statistics_in(self, num_microbatches: int) -> Statistics:
        """Return the field `statistics` of a plan with so many microbatches."""


class Prediction(Protocol):
    """The predicted cost of a step; `trainyard.job.simulation.result.Simulation` is one.

    Tuples have one entry per pipeline rank.
    """

    @property
    def step_s(self) -> float:
        """Seconds of a step."""

    @property
    def breakdown(self) -> Mapping[str, float]:
        """Mean seconds per rank by what a rank does; they add up to ``step_s``."""

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """Most memory that each rank uses."""

    @property
    def peak_memory_bytes(self) -> int:
        """Most memory that any rank uses."""

    @property
    def shortage_bytes(self) -> tuple[int, ...]:
        """Memory that each rank lacks; 0 where it suffices."""

    @property
    def shortage(self) -> str:
        """The same in words, with a remedy; empty where the plan fits."""

    @property
    def fits(self) -> bool:
        """True if every rank has enough memory."""


class TaskTimer(Protocol):
    """Called with durations and an order, it says when each task of a graph ends, in seconds.

    Parameters
    ----------
    duration_s : float array (n,)
    priority : int array (n,) or scalar
        Among tasks that are ready for a resource the lowest goes first, then the one that became ready first.
    release_s : float array (n,) or scalar
        A task does not start before this time.
    """

    def __call__(
        self, duration_s: ArrayLike, *, priority: ArrayLike = 0, release_s: ArrayLike = 0.0
    ) -> Floats: ...


@dataclass(frozen=True)
class RunnerUp:
    """A plan that a search considered and did not choose.

    Attributes
    ----------
    name : in a few words.
    step_s, memory_bytes : simulated where ``is_simulated``, else estimated.
    """

    name: str
    step_s: float
    memory_bytes: int
    is_simulated: bool


@dataclass(frozen=True, eq=False)
class Setting(ABC):
    """The input of a strategy: what it plans, and the questions that it may ask.

    Attributes
    ----------
    task : the work.
    cluster : the place.
    op_seconds : seconds of an op on a device, before there is a plan: nothing is measured for it.
    published : the published systems as their papers have them, by name: what a search may try beside its own plans.
    all_devices : whether a plan that leaves devices idle is not wanted, even if it is faster.
    progress : hears what a strategy is doing.
    """

    task: TaskLike
    cluster: Cluster
    op_seconds: OpSeconds = field(default_factory=Roofline)
    published: Mapping[str, Strategy] = field(default_factory=dict, repr=False)
    all_devices: bool = False
    progress: Progress = no_progress

    @cached_property
    def place(self) -> Cluster | None:
        """The cluster as plans carry it: None where its name says what it is."""
        return None if is_described_by_name(self.cluster) else self.cluster

    @abstractmethod
    def simulate(self, plan: Plan) -> Prediction:
        """Time and memory of one step of a plan, as it would run; the same plan is simulated once.

        Raises
        ------
        PlanError
            If the plan cannot run.
        """

    @abstractmethod
    def op_table(self, num_rows: int, device: DeviceSpec | None = None) -> OpTable:
        """The ops of a microbatch of the whole model; a table is made once, and nobody writes to it.

        Parameters
        ----------
        num_rows : of the microbatch, on all ranks together.
        device : that computes; by default the first of the cluster.
        """

    @abstractmethod
    def tensor_table(self, num_rows: int) -> TensorTable:
        """Return the tensors of such a microbatch; ops are numbered as in its `op_table`."""

    @abstractmethod
    def layer_table(self, num_rows: int, device: DeviceSpec | None = None) -> LayerTable:
        """Return the cost of every layer of the model for such a microbatch."""

    @abstractmethod
    def rank_layer_table(self, plan: Plan) -> LayerTable:
        """Return the cost of every layer on one rank of a plan of one pipeline stage: its part, with communication.

        Raises
        ------
        PlanError
            If the model cannot be sharded so.
        """

    @abstractmethod
    def of_model(self, model: Model) -> Setting:
        """A setting of another model that is otherwise the same, such as of one with fewer of its blocks."""

    @abstractmethod
    def of_step(self, num_rows: int, dtype: str) -> Setting:
        """A setting of another step of the same model: of other rows, or in another precision."""

    @abstractmethod
    def load(self) -> None:
        """Load what a simulation needs now, which takes a second, rather than with the first."""

    @abstractmethod
    def task_timer(self, resources: ArrayLike, predecessors: ArrayLike) -> TaskTimer:
        """A timer of a small graph of tasks, for searches that try thousands of orders and durations.

        Parameters
        ----------
        resources : int array (n,) or (n, k)
            Serial resources that each task occupies from start to end, counted from 0; -1 stands for none.
        predecessors : int array (n,) or (n, k)
            Tasks that must have ended before each; -1 stands for none.
        """

    @abstractmethod
    def report(self, runners_up: Sequence[RunnerUp]) -> None:
        """Say which other plans a search considered, the best first; they are shown beside the plan."""


Strategy = Callable[[Setting, Plan], Plan]
"""A pure function from a setting and the plan so far to a plan. Strategies compose left to right."""


def first_plan(setting: Setting) -> Plan:
    """Return the plan from which strategies start: one rank, the whole batch at once, the model's own recomputation."""
    task = setting.task
    program = task.program(task.num_rows)
    return Plan(
        task.model.name,
        program.fingerprint,
        setting.cluster.name,
        task.num_rows,
        make_schedule("one_f_one_b", 1, 1),
        tensors=dict.fromkeys(sorted(program.recompute), "recompute"),
        dtype=task.dtype,
        place=setting.place,
    )


def apply(strategies: Sequence[tuple[str, Strategy]], setting: Setting) -> Plan:
    """Apply named strategies left to right to the first plan."""
    plan = first_plan(setting)
    for name, strategy in strategies:
        plan = strategy(setting, plan)
        plan = replace(plan, made_by=(*plan.made_by, name))
    return plan
