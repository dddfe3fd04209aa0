"""Simulating a workload under a policy: time jumps from event to event, and nothing is sampled."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import numpy as np

from trainyard.fleet.allocation import Allocation, Queue
from trainyard.fleet.errors import FleetError, UnfitJobError
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.mechanism.ask_policy import ask_policy
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.place.nodes import placement
from trainyard.fleet.policy import Policy
from trainyard.fleet.records import FleetRun, Recorder, Submitted, Unfit
from trainyard.fleet.rounds.coordinator import Coordinator
from trainyard.fleet.rounds.rounds import Rounds
from trainyard.fleet.simulation.arrivals import Arrivals
from trainyard.fleet.simulation.compiled_run import Clock, compiled_run_of
from trainyard.fleet.simulation.crowding import Crowding
from trainyard.fleet.simulation.ends import Ends
from trainyard.fleet.simulation.hazards import Fate, Hazards
from trainyard.fleet.simulation.loop import COMING, EARLY, STUCK
from trainyard.fleet.simulation.moments import (
    ARRIVAL,
    END,
    FAILURE,
    NODES,
    free_for_none,
    may_change,
    next_event,
)
from trainyard.fleet.simulation.node_events import NodeEvents
from trainyard.fleet.simulation.run_progress import RunProgress
from trainyard.fleet.snapshot import Ints
from trainyard.fleet.traits import traits_of
from trainyard.fleet.workload.job import Adaptive, Job
from trainyard.fleet.workload.lengths import check_duration, check_times
from trainyard.hardware.cluster import Cluster

_INF = float("inf")
# Moments at which the policy may be asked.
_LOOK_EVERY = 1000
# Failures that hit jobs, or come while all wait.
_MANY_LOSSES = 20_000
# To load compiled code takes as long as some thousands of them take without it.
_COMPILED_AFTER = 5000


def simulate_fleet(
    jobs: Iterable[Job],
    cluster: Cluster,
    policy: Policy,
    *,
    name: str = "",
    place: str = "consolidated",
    rounds: Rounds | None = None,
    costs: Costs | None = None,
    hazards: Hazards | None = None,
    crowding: Crowding | None = None,
    keep_spans: bool = False,
    strict: bool = False,
) -> FleetRun:
    """Run a workload to its end.

    A job that can never run here, as it asks to and under this policy, is left out and counted.

    Parameters
    ----------
    jobs : in the order of arrival; may be a generator, of which one job is read ahead.
    name : of the policy, for reports.
    place : name of the placement of jobs that the policy does not place itself.
    rounds : when decisions are made; by default whenever a job comes or ends, or in the rounds that the policy names.
    hazards : what goes wrong; by default nothing.
    crowding : how jobs of a node slow each other; by default not at all.
    keep_spans : note what ran where, for charts.
    strict : a job that can never run here is an error.

    Raises
    ------
    FleetError
        If jobs are not in order, or the policy leaves jobs waiting or restarting for ever.
    """
    traits = traits_of(policy)
    if traits.rounds is not None:
        rounds = traits.rounds(rounds)
    hazards, crowding = hazards or Hazards(), crowding or Crowding()
    if (
        rounds is not None
        and rounds.only_simulated
        and (hazards.are_there or crowding.is_there or cluster.changes)
    ):
        raise FleetError(
            "rounds as published know no failures, no interference and no nodes that come and go; simulate these in "
            "rounds of your own"
        )
    notes, fate = Recorder(keep_spans), Fate(hazards)
    how = placement(place)
    allocator = Allocator(cluster, policy, how, costs or Costs(), notes, fate, crowding)
    return _Simulator(jobs, policy, allocator, rounds, strict).run(
        name, traits.placement_text(place), traits.queues_text(cluster)
    )


class _Simulator:
    """The clock: when jobs come and end, and when the policy is asked."""

    def __init__(
        self, jobs: Iterable[Job], policy: Policy, allocator: Allocator, rounds: Rounds | None, strict: bool
    ) -> None:
        self.policy, self.allocator, self.strict = policy, allocator, strict
        self.notes, self.table = allocator.notes, allocator.table
        self.coordinator = Coordinator(allocator, rounds)
        self.rounds = self.coordinator.rounds
        self.arrivals = Arrivals(jobs, self._allowed)
        self.ends = Ends(self.table)
        self.may_crowd = allocator.rates.crowding.is_there
        self.may_fail = allocator.fate.hazards.failure_every_s < _INF
        # Failures that are drawn, the row, and when the job got the devices that will fail.
        self.failing: list[tuple[float, int, float]] = []
        self.node_events = NodeEvents(allocator.cluster, allocator.fate)
        if self.node_events.at_once:
            allocator.change_nodes(self.node_events.at_once, 0.0)
        self.clock = Clock(policy.start(allocator.cluster))
        self.progress = self.progress_at_losses = RunProgress.of(self.allocator, 0.0)
        self.num_losses = 0

    def run(self, name: str, placement: str, queues: str) -> FleetRun:
        while self.arrivals.job is not None or self.table.num_active:
            self._advance()
            if self._may_change():
                self._decide()
            self.clock.num_moments += 1
            if self.clock.num_moments % _LOOK_EVERY == 0:
                self._refuse_to_restart_for_ever()
            if self.clock.num_moments == _COMPILED_AFTER:
                self._run_compiled()
        return self.allocator.result(name, placement, queues)

    def _run_compiled(self) -> None:
        """Go on in compiled code for as long as that can."""
        if self.rounds is not None or self.may_fail or self.node_events:
            return
        run = compiled_run_of(self.policy, self.allocator, self.arrivals, self.ends)
        while run is not None and (why := run.run(self.clock, _LOOK_EVERY)) != COMING:
            if why == STUCK:
                self._refuse_to_wait()
            if why == EARLY:
                self._refuse_early(self.clock.wake_s)
            self._refuse_to_restart_for_ever()

    def _advance(self) -> None:
        """Go to the next moment at which the policy is asked, through all that happens until then."""
        next_s = self._next_s()
        while self._fails_first(next_s):
            self._fail()
            next_s = self._next_s()
        if next_s == _INF:
            self._refuse_to_wait()
        finish_s = self.ends.next_s()
        while event := next_event(
            next_s, self.node_events.next_s, finish_s, self.arrivals.next_s, self._failure_s()
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
            finish_s = self.ends.next_s()
        self.clock.now_s = next_s
        if self.rounds is not None:
            self.rounds.close(next_s)
        self.coordinator.end_leases(next_s)
        if self.clock.wake_s <= next_s:
            self.clock.wake_s = _INF

    def _next_s(self) -> float:
        """The next moment at which the policy is asked, if nothing fails before."""
        next_s = min(
            self.arrivals.next_s, self.ends.next_s(), self.clock.wake_s, self.allocator.leases.next_s()
        )
        if next_s < _INF or self.allocator.cluster.away:
            next_s = min(next_s, self.node_events.next_s)
        if self.rounds is None:
            return next_s
        return self.rounds.next_s(self.clock.now_s, next_s, self.arrivals.next_s)

    def _failure_s(self) -> float:
        """When a job fails next."""
        return self.failing[0][0] if self.failing else _INF

    def _fails_first(self, next_s: float) -> bool:
        """Whether a job fails before that moment, and before all else that happens until then."""
        times_s = self.node_events.next_s, self.ends.next_s(), self.arrivals.next_s
        return bool(next_event(next_s, *times_s, self._failure_s()) == FAILURE)

    def _end(self, row: int, end_s: float) -> None:
        """A job has done its work, or changes its rate."""
        ended = self.allocator.finish(row, end_s)
        self._expect(self.coordinator.left(row, end_s) if ended else [row])
        self._crowd(end_s)

    def _change_nodes(self) -> None:
        """Nodes go away, or come back; the policy is asked at its next chance."""
        now_s, away, saves = self.node_events.happen()
        lost, faster = self.coordinator.change_nodes(away, now_s, saves)
        self._expect(faster)
        if lost or 0 < self.table.num_waiting == self.table.num_active:
            self._note_loss(now_s)
        self._crowd(now_s)
        self.clock.stands, self.clock.free_when_blocked = False, -1

    def _fail(self) -> None:
        """Let the next failure happen; the policy is not asked, for no devices become free."""
        failure_s, row, placed_s = heapq.heappop(self.failing)
        table = self.table
        if table.jobs[row] is not None and table.placed_s[row] == placed_s and table.held[row]:
            self.allocator.set_back(row, failure_s, self.allocator.costs.restart_s)
            self._note_loss(failure_s)
            self._expect([row])
            self._foresee(row, failure_s)

    def _note_loss(self, now_s: float) -> None:
        """Jobs of which none is further after so many failures than before never end."""
        self.num_losses += 1
        if self.num_losses < _MANY_LOSSES:
            return
        before, self.num_losses = self.progress_at_losses, 0
        self.progress_at_losses = RunProgress.of(self.allocator, now_s)
        if not self.progress_at_losses.is_better(before):
            raise FleetError(
                f"{_MANY_LOSSES:,} failures in a row left no job with less work: {self.allocator.fate.hazards}. Let them "
                "fail less often, or write checkpoints more often"
            )

    def _foresee(self, row: int, now_s: float) -> None:
        """Draw when one of a job's devices fails."""
        failure_s = now_s + self.allocator.fate.time_to_failure_s(int(self.table.held[row]))
        if failure_s < _INF:
            heapq.heappush(self.failing, (failure_s, row, float(self.table.placed_s[row])))

    def _refuse_to_wait(self) -> None:
        waiting = [self.table.job(row) for row in self.table.active.tolist()]
        widest = max(waiting, key=lambda job: job.num_devices)
        raise FleetError(
            f"the policy leaves {len(waiting)} jobs waiting for ever, {waiting[0].name!r} first; a policy must in the "
            f"end run every job that fits, or refuse it. Job {widest.name!r} asks for most devices, "
            f"{widest.num_devices}: a policy that does not resize jobs cannot run it where fewer are of one type"
        )

    def _refuse_early(self, ask_again_s: float) -> None:
        raise FleetError(
            f"the policy asks at {self.clock.now_s} s to decide again at {ask_again_s} s; give a later time"
        )

    def _refuse_to_restart_for_ever(self) -> None:
        """Who loses devices before the restart on them is over does no work: if that is so of all, they never end."""
        before, self.progress = self.progress, RunProgress.of(self.allocator, self.clock.now_s)
        num_starts = self.progress.starts_without_work(before)
        # Nodes that come back may let them work.
        if num_starts >= _LOOK_EVERY // 2 and not self.allocator.cluster.away:
            raise FleetError(
                f"{len(before.rows)} jobs were started {num_starts} times in a row and did no work until "
                f"{self.clock.now_s:g} s: their devices are taken away again while they restart. Let a restart take "
                "less time (restart_s, start_s), or leave jobs theirs for longer (round_s, or the policy's quantum)"
            )

    def _allowed(self, job: Job) -> int | None:
        """The types of device that a job can run on, as bits; one that can never run here is noted as left out."""
        try:
            check_times(job)
            return self.allocator.allowed(job)
        except UnfitJobError as error:
            self._leave_out(job, error)
            return None

    def _leave_out(self, job: Job, error: UnfitJobError) -> None:
        if self.strict:
            raise error
        self.notes.left_out.append(Unfit(Submitted.of(job), error.reason, str(error)))

    def _arrive(self) -> None:
        job, bits = self.arrivals.job, self.arrivals.bits
        assert job is not None
        try:
            if not isinstance(job.profile, Adaptive):
                alone_s = self.allocator.pending.fair.alone_s(job, bits)
                check_duration(
                    job,
                    alone_s,
                    None if self.rounds is None else self.rounds.round_s,
                )
        except UnfitJobError as error:
            self._leave_out(job, error)
        else:
            self.allocator.enter(job, self.arrivals.next_s, bits)
        self.arrivals.read_on()

    def _may_change(self) -> bool:
        """Whether a decision could have an effect."""
        if not self.allocator.cluster.num_devices:
            return False
        table, clock, free = self.table, self.clock, self.allocator.free.total
        counts = table.num_active, table.num_waiting, free
        return bool(may_change(self.policy.preempts, *counts, clock.stands, clock.free_when_blocked))

    def _decide(self) -> None:
        table, now_s = self.table, self.clock.now_s
        self._expect(self.allocator.rates.hear(now_s))
        rows = self.coordinator.rows()
        allocation = self.coordinator.decision(rows, now_s, self._ask, last=self.arrivals.job is None)
        changed = self.allocator.apply(rows, allocation, now_s)
        self._expect(changed)
        if self.may_fail:
            for row in changed.tolist():
                if table.placed_s[row] == now_s:
                    self._foresee(row, now_s)
        self._crowd(now_s)
        if self.rounds is not None:
            self._expect(self.rounds.open(now_s))
        given = allocation.given
        # Jobs that adapt themselves do so at every decision, also at one that starts nobody.
        blocks = isinstance(given, Queue) and given.blocks and not self.allocator.rates.adaptive
        self.clock.free_when_blocked = free_for_none(
            blocks and self.rounds is None,
            table.num_waiting,
            self.allocator.cluster.num_pools,
            self.allocator.free.total,
        )

    def _ask(self, rows: Ints) -> Allocation:
        policy, clock = self.policy, self.clock
        allocation, clock.state = ask_policy(
            self.allocator,
            rows,
            clock.now_s,
            policy.needs,
            lambda snapshot: policy.decide(snapshot, clock.state),
            in_rounds=self.rounds is not None,
        )
        if allocation.ask_again_s <= self.clock.now_s:
            self._refuse_early(allocation.ask_again_s)
        self.clock.wake_s, self.clock.stands = allocation.ask_again_s, allocation.stands
        return allocation

    def _crowd(self, now_s: float) -> None:
        if self.may_crowd:
            self._expect(self.allocator.rates.crowd(now_s))

    def _expect(self, rows: Sequence[int] | Ints) -> None:
        if len(rows):
            self.ends.expect(np.asarray(rows, np.int64))
