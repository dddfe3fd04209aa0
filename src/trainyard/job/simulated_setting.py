"""A setting whose answers come from the lowering and the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from numpy.typing import ArrayLike
from torch import fx

from trainyard.cost.collectives import collective_cost
from trainyard.cost.ops import OpSeconds, Roofline, collective_of
from trainyard.engine.simulate import load
from trainyard.engine.timer import TaskTimer
from trainyard.hardware.devices import DeviceSpec
from trainyard.job import tabulate
from trainyard.job.lower.axes import shard_whole
from trainyard.job.lower.lower import Lowered, lower
from trainyard.job.lower.other_length import lower_at_length
from trainyard.job.lower.resolve import resolve
from trainyard.job.plan import Plan
from trainyard.job.setting import RunnerUp, Setting
from trainyard.job.simulate import Simulation, predicted_ops, simulate_plan
from trainyard.job.simulation.op_prices import PredictedOp
from trainyard.job.simulation.traces import measured_ops
from trainyard.job.tables import LayerTable, OpTable, TensorTable
from trainyard.job.tabulate import NodeSeconds
from trainyard.job.task import Task
from trainyard.program.model import Model
from trainyard.program.program import Program

__all__ = ["SimulatedSetting"]

_Table = TypeVar("_Table", OpTable, TensorTable, LayerTable)

_MAX_REMEMBERED = 32  # a timeline of a large plan has a million tasks


@dataclass(frozen=True, eq=False)
class SimulatedSetting(Setting):
    """A setting that simulates plans as they would run.

    Attributes
    ----------
    runners_up : what the last search reported.
    """

    runners_up: list[RunnerUp] = field(default_factory=list, init=False, repr=False)
    _tables: dict[tuple[type, int, DeviceSpec | None], object] = field(
        default_factory=dict, init=False, repr=False
    )
    _sharded: list[tuple[Plan, Program]] = field(default_factory=list, init=False, repr=False)
    _collective_s: dict[tuple[str, tuple[int, ...], int], float] = field(
        default_factory=dict, init=False, repr=False
    )
    _simulated: list[tuple[Plan, Simulation]] = field(default_factory=list, init=False, repr=False)

    def simulate(self, plan: Plan) -> Simulation:
        """Lower a plan and simulate a step of it."""
        decision = replace(plan, made_by=(), reasons=())
        for known, simulation in self._simulated:
            if known == decision:
                return simulation
        program = self.task.program(plan.rows_per_microbatch)
        simulation = self._simulate(lower(program, plan, self.task.optimizer))
        self._simulated.append((decision, simulation))
        del self._simulated[:-_MAX_REMEMBERED]
        return simulation

    def simulate_lengths(self, plan: Plan) -> Simulation:
        """Simulate a plan as `simulate` does, and each size of the model's lengths beside it.

        Raises
        ------
        PlanError
            If the plan cannot be applied to batches of one of them.
        """
        longest, lengths, rows = self.simulate(plan), self.task.model.lengths, plan.rows_per_microbatch
        if lengths is None:
            return longest
        lowered = lower(self.task.program(rows), plan, self.task.optimizer)
        found = {
            size: self._simulate(lower_at_length(lowered, task.program(rows), size))
            for size, task in self.task.shorter.items()
        }
        return replace(longest, by_length={**found, lengths.largest: longest})

    def _simulate(self, lowered: Lowered) -> Simulation:
        """Simulate a lowered plan, with measured times of ops if the cluster is this machine, else with the roofline."""
        return simulate_plan(lowered, self.cluster, self._prices_of(lowered))

    def _prices_of(self, lowered: Lowered) -> OpSeconds:
        if self.cluster.profile is None:
            return Roofline()
        return measured_ops([lowered], self.cluster, progress=self.progress)

    def predicted_ops(self, plan: Plan) -> dict[tuple[int, str], dict[str, PredictedOp]]:
        """The seconds of every op of a plan, as `simulate` has them; see `trainyard.job.simulate.predicted_ops`."""
        lowered = lower(self.task.program(plan.rows_per_microbatch), plan, self.task.optimizer)
        return predicted_ops(lowered, self.cluster, self._prices_of(lowered))

    def op_table(self, num_rows: int, device: DeviceSpec | None = None) -> OpTable:
        """The ops of a microbatch of the whole model."""
        make = partial(tabulate.op_table, seconds=self._seconds_on(device))
        return self._table(OpTable, num_rows, device, make)

    def tensor_table(self, num_rows: int) -> TensorTable:
        """Return the tensors of such a microbatch."""
        return self._table(TensorTable, num_rows, None, tabulate.tensor_table)

    def layer_table(self, num_rows: int, device: DeviceSpec | None = None) -> LayerTable:
        """Return the cost of every layer of the model for such a microbatch."""
        make = partial(tabulate.layer_table, seconds=self._seconds_on(device))
        return self._table(LayerTable, num_rows, device, make)

    def rank_layer_table(self, plan: Plan) -> LayerTable:
        """Return the cost of every layer on one rank of a plan of one pipeline stage."""
        program = self.task.program(plan.rows_per_microbatch)
        named = resolve(program, plan)
        whole = replace(named, tensors={})
        if not self._sharded or self._sharded[0][0] != whole:
            self._sharded[:] = [(whole, shard_whole(program, whole))]
        return tabulate.layer_table(self._sharded[0][1], partial(self._on_rank_s, plan), named.recomputed)

    def _on_rank_s(self, plan: Plan, node: fx.Node) -> float:
        """Seconds of an op of a sharded program on the first rank."""
        collective = collective_of(node)
        if collective is None:
            return self.op_seconds(node, self.cluster.device(0))
        kind, num_bytes = collective
        ranks = plan.groups((str(node.args[1]),), 0)[0]
        key = (kind, ranks, num_bytes)
        if key not in self._collective_s:
            self._collective_s[key] = collective_cost(self.cluster, kind, ranks, num_bytes).seconds
        return self._collective_s[key]

    def of_model(self, model: Model) -> SimulatedSetting:
        """A setting of another model that is otherwise the same."""
        return replace(
            self, task=Task(model, self.task.dtype, self.task.statistics, optimizer=self.task.optimizer)
        )

    def of_step(self, num_rows: int, dtype: str) -> SimulatedSetting:
        """A setting of another step of the same model."""
        task = Task(self.task.model, dtype, self.task.statistics, num_rows, self.task.optimizer)
        return replace(self, task=task)

    def load(self) -> None:
        """Load the engine."""
        load()

    def _seconds_on(self, device: DeviceSpec | None) -> NodeSeconds:
        where = device or self.cluster.device(0)
        return lambda node: self.op_seconds(node, where)

    def _table(
        self, kind: type[_Table], num_rows: int, device: DeviceSpec | None, make: Callable[[Program], _Table]
    ) -> _Table:
        key = (kind, num_rows, device)
        if key not in self._tables:
            self._tables[key] = make(self.task.program(num_rows))
        found = self._tables[key]
        assert isinstance(found, kind)
        return found

    def task_timer(self, resources: ArrayLike, predecessors: ArrayLike) -> TaskTimer:
        """A timer of a small graph of tasks; see `trainyard.engine.timer`."""
        return TaskTimer(resources, predecessors)

    def report(self, runners_up: Sequence[RunnerUp]) -> None:
        """Keep what a search considered."""
        self.runners_up[:] = runners_up
