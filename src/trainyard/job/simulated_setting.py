"""A setting whose answers come from the lowering and the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trainyard.cost.ops import OpSeconds, Roofline
from trainyard.hardware.cluster import Cluster
from trainyard.job.lower.lower import Lowered, lower
from trainyard.job.plan import Plan
from trainyard.job.setting import RunnerUp, Setting
from trainyard.job.simulate import Simulation, simulate_plan
from trainyard.job.simulation.traces import measured_ops
from trainyard.program.flops import program_flops

__all__ = ["SimulatedSetting"]

_MAX_REMEMBERED = 32  # a timeline of a large plan has a million tasks


@dataclass(frozen=True, eq=False)
class SimulatedSetting(Setting):
    """A setting that simulates plans as they would run.

    Attributes
    ----------
    runners_up : what the last search reported.
    """

    runners_up: list[RunnerUp] = field(default_factory=list, init=False, repr=False)
    _simulated: list[tuple[Plan, Simulation]] = field(default_factory=list, init=False, repr=False)

    def simulate(self, plan: Plan) -> Simulation:
        """Lower a plan and simulate a step of it."""
        decision = replace(plan, made_by=(), reasons=())
        for known, simulation in self._simulated:
            if known == decision:
                return simulation
        program = self.task.program(plan.rows_per_microbatch)
        simulation = _simulate(lower(program, plan), self.cluster, float(program_flops(program)))
        self._simulated.append((decision, simulation))
        del self._simulated[:-_MAX_REMEMBERED]
        return simulation

    def report(self, runners_up: Sequence[RunnerUp]) -> None:
        """Keep what a search considered."""
        self.runners_up[:] = runners_up


def _simulate(lowered: Lowered, cluster: Cluster, flops_per_microbatch: float) -> Simulation:
    """Simulate what was lowered; ops take what was measured where the cluster is this machine, else the roofline."""
    op_seconds: OpSeconds = Roofline() if cluster.profile is None else measured_ops([lowered], cluster)
    return simulate_plan(lowered, cluster, op_seconds, flops_per_microbatch=flops_per_microbatch)
