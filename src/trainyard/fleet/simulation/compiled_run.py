"""A run in compiled code: events and decisions of jobs and policies that allow it.

What happens is what `simulator.py` lets happen, bit for bit, many times as fast. Where the loop cannot go on, everything
stands as if it had not been there.
"""

from __future__ import annotations

import numpy as np

from trainyard.engine.agenda import Agenda
from trainyard.fleet.compiled_policy import CompiledPolicy
from trainyard.fleet.known import KnownJob
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.mechanism.domains import SchedulingDomain
from trainyard.fleet.policy import Policy
from trainyard.fleet.simulation import loop
from trainyard.fleet.simulation.arrivals import Arrivals
from trainyard.fleet.simulation.compiled_events import Clock, CompiledEvents
from trainyard.fleet.traits import traits_of
from trainyard.fleet.workload.job import Job


def compiled_run_of(
    policy: Policy,
    allocator: Allocator,
    arrivals: Arrivals,
    ends: Agenda,
    domain: SchedulingDomain,
    look_every: int,
) -> CompiledRun | None:
    """A run of what is there now in compiled code; None where it needs more than compiled code knows of.

    Where nodes or jobs may fail, decisions are made in rounds, or partitions are scheduled apart, it is not to be asked.
    """
    compiled, table = traits_of(policy).compiled, allocator.table
    if compiled is None or not allocator.is_plain or np.isnan(table.gang_rate[table.active]).any():
        return None
    return CompiledRun(policy, compiled, allocator, arrivals, ends, domain, look_every)


class CompiledRun(CompiledEvents):
    """Takes a simulation over, and gives it back."""

    def __init__(
        self,
        policy: Policy,
        compiled: CompiledPolicy,
        allocator: Allocator,
        arrivals: Arrivals,
        ends: Agenda,
        domain: SchedulingDomain,
        look_every: int,
    ) -> None:
        super().__init__(allocator, arrivals, ends, domain, look_every)
        self.policy, self.compiled = policy, compiled
        for row in self.table.active.tolist():
            self.table.mark[row] = self._mark(self.table.job(row))

    def run(self, clock: Clock) -> int:
        """Go on for as long as possible, or until it is time to look whether anything goes on.

        Returns
        -------
        Why it ended: `loop.COMING` if the next job needs more than compiled code, or there is none; `LOOK`, `STUCK` or
        `EARLY`.
        """
        self._read_ahead()
        while True:
            why = self._run(clock)
            if why == loop.COMING and not self._read_ahead():
                self.leave()
                return why
            if why == loop.ROWS:
                self.allocator.grow()
            elif why not in (loop.COMING, loop.NOTES, loop.DEVICES):
                return why

    def _is_for_python(self, job: Job, rate: float) -> bool:
        return super()._is_for_python(job, rate) or np.isnan(rate) or bool(job.gang)

    def _mark(self, job: Job) -> float:
        mark = self.compiled.mark
        return float(mark(KnownJob(job, self.policy.needs))) if mark is not None else 0.0

    def _run(self, clock: Clock) -> int:
        """Enter the loop once."""
        allocator, compiled, domain = self.allocator, self.compiled, self.domain
        self.table.grants.forget_all()
        tables = self._begin(clock, allocator.state(num_given=len(allocator.cluster.node_of)))
        queue_rules = allocator.queue_rules(compiled.backfill, compiled.one_queue)
        rules = loop.RunRules(self.rules, queue_rules, compiled.stands, compiled.blocks)
        is_last = self.arrivals.job is None
        why, domain.state = loop.run(compiled.decide, compiled.options, domain.state, rules, is_last, tables)
        self._take(clock)
        return int(why)
