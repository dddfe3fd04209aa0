"""Simulating: time jumps from event to event, and nothing is sampled.

A run begins in Python. A long and simple run continues in compiled code: events for any policy, and also decisions for
policies with compiled decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from trainyard.engine.agenda import Agenda
from trainyard.fleet.allocation import Allocation, Queue
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.mechanism.ask_policy import ask_policy
from trainyard.fleet.mechanism.domains import SchedulingDomain, SchedulingDomains
from trainyard.fleet.periods import Rounds
from trainyard.fleet.policy import Policy
from trainyard.fleet.rounds.coordinator import Coordinator
from trainyard.fleet.simulation.already_running import continue_job
from trainyard.fleet.simulation.arrivals import Arrivals
from trainyard.fleet.simulation.compiled_events import Clock, CompiledEvents
from trainyard.fleet.simulation.compiled_run import compiled_run_of
from trainyard.fleet.simulation.job_failures import JobFailures
from trainyard.fleet.simulation.loop import COMING, DECIDE, EARLY, RATE, STUCK
from trainyard.fleet.simulation.moments import (
    ARRIVAL,
    END,
    FAILURE,
    NODES,
    free_while_blocked,
    may_change,
    next_event,
)
from trainyard.fleet.simulation.node_events import NodeEvents
from trainyard.fleet.simulation.run_progress import ProgressCheck
from trainyard.fleet.snapshot import Ints
from trainyard.fleet.traits import traits_of
from trainyard.fleet.workload.job import Job

_INF = float("inf")
# Moments in Python that take as long as loading compiled code, with decisions in it and without.
_COMPILED_AFTER, _COMPILED_EVENTS_AFTER = 5000, 500


class Simulator:
    """The clock: when jobs come and end, and when the policy is asked.

    Parameters
    ----------
    strict : a job that can never run here is an error.
    """

    def __init__(
        self, jobs: Iterable[Job], policy: Policy, allocator: Allocator, rounds: Rounds | None, strict: bool
    ) -> None:
        self.policy, self.allocator, self.table = policy, allocator, allocator.table
        self.coordinator = Coordinator(allocator, rounds)
        self.rounds = self.coordinator.rounds
        round_s = None if self.rounds is None else self.rounds.round_s
        self.arrivals = Arrivals(jobs, allocator, round_s, strict)
        self.ends = Agenda()
        self.may_crowd = allocator.rates.crowding.is_there
        self.job_failures = JobFailures(self.table, allocator.fate)
        self.node_events = NodeEvents(allocator.cluster, allocator.fate)
        if self.node_events.at_once:
            allocator.change_nodes(self.node_events.at_once, 0.0)
        self.domains = SchedulingDomains(allocator, policy, apart=self.rounds is None)
        self.clock = Clock()
        self.check = ProgressCheck(allocator)
        self.events: CompiledEvents | None = None

    def run(self) -> None:
        """Go on until all jobs have ended.

        Raises
        ------
        FleetError
            If jobs are not in order, or the policy leaves jobs waiting or restarting for ever.
        """
        while self._go_on():
            for domain in self.domains.due(self.clock.now_s):
                if self._may_change(domain):
                    self._decide(domain)
            self.clock.num_moments += 1
            if self.clock.num_moments % self.check.look_every == 0:
                self._look()
            if self.clock.num_moments == _COMPILED_AFTER and self._is_simple:
                self._run_compiled()

    def _go_on(self) -> bool:
        """Advance to the next decision of the policy; return whether there is one."""
        if self.events is None and self._is_simple and self.clock.num_moments >= self._events_after:
            given = self.arrivals, self.ends, self.domains.whole, self.check.look_every
            self.events = CompiledEvents(self.allocator, *given)
        if self.events is not None and self._pass_compiled(self.events):
            return True
        if self.arrivals.job is None and not self.table.num_active:
            return False
        self._advance()
        return True

    @property
    def _is_simple(self) -> bool:
        """Whether jobs only arrive and end, nothing else happens or is noted, and arriving jobs wait for devices."""
        happens = self.rounds is not None or self.job_failures.may_be or self.node_events
        is_noted = self.table.usage is not None
        runs_already = self.arrivals.job is not None and self.arrivals.job.ran_s > 0
        return not (happens or self.may_crowd or self.domains.parts or is_noted or runs_already)

    @property
    def _events_after(self) -> int:
        """Number of moments after which events run in compiled code; that of decisions if these are compiled, too."""
        decides = traits_of(self.policy).compiled is not None and self.allocator.is_plain
        return _COMPILED_AFTER if decides else _COMPILED_EVENTS_AFTER

    def _pass_compiled(self, events: CompiledEvents) -> bool:
        """Do the same as `_go_on` in compiled code; return False if Python has to continue."""
        while (why := events.next(self.clock)) != DECIDE:
            if why == COMING:
                events.leave()
                self.events = None
                return False
            if why == STUCK:
                self.check.refuse_to_wait()
            if why == RATE:
                finish_s = self.ends.next_s(self.table.finish_s)
                self._end(self.ends.pop(), finish_s)
            else:
                self._look()
        self._begin_moment(self.clock.now_s)
        return True

    def _run_compiled(self) -> None:
        """Let the policy decide in compiled code, too, for as long as that can go on."""
        domain, given = self.domains.whole, (self.arrivals, self.ends)
        run = compiled_run_of(self.policy, self.allocator, *given, domain, self.check.look_every)
        while run is not None and (why := run.run(self.clock)) != COMING:
            if why == STUCK:
                self.check.refuse_to_wait()
            if why == EARLY:
                self.check.refuse_early(self.clock.now_s, domain.wake_s)
            self.check.look(self.clock.now_s, False, run.jobs_may_come)

    def _advance(self) -> None:
        """Go to the next moment at which the policy is asked, through all that happens until then."""
        next_s = self._next_s()
        while self.job_failures.next_s < next_s and self._fails_first(next_s):
            self._fail()
            next_s = self._next_s()
        if next_s == _INF:
            self.check.refuse_to_wait()
        finish_s = self.ends.next_s(self.table.finish_s)
        while event := next_event(
            next_s, self.node_events.next_s, finish_s, self.arrivals.next_s, self.job_failures.next_s
        ):
            if event == ARRIVAL:
                self._arrive()
                continue
            if event == END:
                self._end(self.ends.pop(), finish_s)
            elif event == NODES:
                self._change_nodes()
            else:
                self._fail()
            finish_s = self.ends.next_s(self.table.finish_s)
        self.clock.now_s = next_s
        if self.rounds is not None:
            self.rounds.close(next_s)
        self._begin_moment(next_s)

    def _begin_moment(self, now_s: float) -> None:
        """End leases, and note which domains decide."""
        ending = self.coordinator.end_leases(now_s)
        if self.domains.parts:
            for row in ending:
                self.domains.touch(self.table.partition[row])
        else:
            self.domains.whole.is_due = True

    def _look(self) -> None:
        """Check that the run makes progress."""
        coming = self.arrivals if self.events is None else self.events
        self.check.look(self.clock.now_s, self.node_events.may_come, coming.jobs_may_come)

    def _next_s(self) -> float:
        """The next moment at which the policy is asked, if nothing fails before."""
        next_s = min(
            self.arrivals.next_s,
            self.ends.next_s(self.table.finish_s),
            self.domains.wake_s,
            self.allocator.leases.next_s(),
        )
        if self.node_events and (next_s < _INF or self.node_events.may_come):
            next_s = min(next_s, self.node_events.next_s)
        if self.rounds is None:
            return next_s
        return self.rounds.next_s(self.clock.now_s, next_s, self.arrivals.next_s)

    def _fails_first(self, next_s: float) -> bool:
        """Whether a job fails before that moment, and before all else that happens until then."""
        times_s = self.node_events.next_s, self.ends.next_s(self.table.finish_s), self.arrivals.next_s
        return next_event(next_s, *times_s, self.job_failures.next_s) == FAILURE

    def _arrive(self) -> None:
        """A job comes."""
        job, arrival_s = self.arrivals.job, self.arrivals.next_s
        assert job is not None
        if self.domains.parts:
            self.domains.touch(self.allocator.cluster.partition_index(job.virtual_cluster))
        if self.arrivals.arrive() and job.ran_s:
            row = int(self.table.active[-1])
            if continue_job(self.allocator, row, arrival_s):
                self._expect([row])
                self.job_failures.draw_for_moved(np.array([row]), arrival_s)
                self._crowd(arrival_s)

    def _end(self, row: int, end_s: float) -> None:
        """A job has done its work, or changes its rate."""
        if self.domains.parts:
            self.domains.touch(self.table.partition[row])
        ended = self.allocator.finish(row, end_s)
        self._expect(self.coordinator.left(row, end_s) if ended else [row])
        self._crowd(end_s)

    def _change_nodes(self) -> None:
        """Nodes go away, or come back; the policy is asked at its next chance."""
        now_s, away, saves = self.node_events.happen()
        lost, faster = self.coordinator.change_nodes(away, now_s, saves)
        self._expect(faster)
        if lost or 0 < self.table.num_waiting == self.table.num_active:
            self.check.note_loss(now_s)
        self._crowd(now_s)
        self.domains.change_nodes()

    def _fail(self) -> None:
        """Let the next failure happen; the policy is not asked, for no devices become free."""
        failure_s, row = self.job_failures.happen()
        if row is not None:
            self.allocator.lose_unsaved(row, failure_s, self.allocator.costs.restart_s)
            self.check.note_loss(failure_s)
            self._expect([row])
            self.job_failures.draw(row, failure_s)

    def _may_change(self, domain: SchedulingDomain) -> bool:
        """Whether a decision could have an effect."""
        if not domain.cluster.num_devices:
            return False
        preempts = self.policy.preempts
        # Who takes devices away does not ask how many are free, which takes long to count.
        num_free = 0 if preempts else self.domains.num_free(domain)
        num_jobs = self.domains.num_jobs(domain)
        return may_change(preempts, *num_jobs, num_free, domain.stands, domain.free_when_blocked)

    def _decide(self, domain: SchedulingDomain) -> None:
        now_s, is_last = self.clock.now_s, self.arrivals.job is None
        self._expect(self.allocator.rates.hear(now_s, domain.has))
        rows = self.domains.rows(domain, self.coordinator.rows())
        allocation = self.coordinator.decision(rows, now_s, partial(self._ask, domain), is_last)
        changed = self.allocator.apply(rows, allocation, now_s, domain.cluster)
        self._expect(changed)
        self.job_failures.draw_for_moved(changed, now_s)
        self._crowd(now_s)
        if self.rounds is not None:
            self._expect(self.rounds.open(now_s))
        given = allocation.given
        # Jobs that adapt themselves do so at every decision, also at one that starts nobody.
        blocks = isinstance(given, Queue) and given.blocks and not self.allocator.rates.adaptive
        domain.free_when_blocked = -1
        if blocks and self.rounds is None:
            _, num_waiting = self.domains.num_jobs(domain)
            is_one_pool, num_free = domain.cluster.is_one_pool, self.domains.num_free(domain)
            domain.free_when_blocked = free_while_blocked(blocks, num_waiting, is_one_pool, num_free)

    def _ask(self, domain: SchedulingDomain, rows: Ints) -> Allocation:
        policy, clock = self.policy, self.clock
        allocation, domain.state = ask_policy(
            self.allocator,
            rows,
            clock.now_s,
            policy.needs,
            lambda snapshot: policy.decide(snapshot, domain.state),
            in_rounds=self.rounds is not None,
            cluster=domain.cluster,
        )
        if allocation.ask_again_s <= self.clock.now_s:
            self.check.refuse_early(clock.now_s, allocation.ask_again_s)
        domain.wake_s, domain.stands = allocation.ask_again_s, allocation.stands
        return allocation

    def _crowd(self, now_s: float) -> None:
        if self.may_crowd:
            self._expect(self.allocator.rates.crowd(now_s))

    def _expect(self, rows: Sequence[int] | Ints) -> None:
        if len(rows):
            self.ends.expect(self.table.finish_s, np.asarray(rows, np.int64))
