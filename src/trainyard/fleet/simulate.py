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
from trainyard.fleet.rounds.rounds import Rounds
from trainyard.fleet.simulation.arrivals import Arrivals
from trainyard.fleet.simulation.compiled_run import Clock, compiled_run_of
from trainyard.fleet.simulation.crowding import Crowding
from trainyard.fleet.simulation.ends import Ends
from trainyard.fleet.simulation.hazards import Fate, Hazards
from trainyard.fleet.simulation.loop import COMING, EARLY, STUCK
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
        self.round_scheduler = None if rounds is None else rounds.scheduler(self.allocator)
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
        if self.round_scheduler is not None or self.may_fail or self.node_events:
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
        while self.failing and self._fails_before(next_s):
            self._fail()
            next_s = self._next_s()
        if next_s == _INF:
            self._refuse_to_wait()
        finish_s = self.ends.next_s()
        while True:
            # Of one moment, nodes before ends, ends before arrivals, and these before what fails.
            if self.failing and self._fails_before(next_s):
                self._fail()
                finish_s = self.ends.next_s()
            elif self.node_events and self.node_events.next_s <= min(next_s, finish_s, self.arrivals.next_s):
                self._change_nodes()
                finish_s = self.ends.next_s()
            elif finish_s <= next_s and finish_s <= self.arrivals.next_s:
                row = self.ends.pop()
                if not self.allocator.finish(row, finish_s):
                    self._expect([row])
                elif self.round_scheduler is not None:
                    self._expect(self.round_scheduler.partners.parted(row, finish_s))
                self._crowd(finish_s)
                finish_s = self.ends.next_s()
            elif self.arrivals.next_s <= next_s:
                self._arrive()
            else:
                break
        self.clock.now_s = next_s
        if self.round_scheduler is not None:
            self.round_scheduler.close(next_s)
        if self.allocator.end_leases(next_s) and self.round_scheduler is not None:
            self.round_scheduler.ask_again_s = next_s
        if self.clock.wake_s <= next_s:
            self.clock.wake_s = _INF

    def _next_s(self) -> float:
        """The next moment at which the policy is asked, if nothing fails before."""
        next_s = min(
            self.arrivals.next_s, self.ends.next_s(), self.clock.wake_s, self.allocator.leases.next_s()
        )
        if next_s < _INF or self.allocator.cluster.away:
            next_s = min(next_s, self.node_events.next_s)
        if self.round_scheduler is None:
            return next_s
        return self.round_scheduler.next_s(self.clock.now_s, next_s, self.arrivals.next_s)

    def _fails_before(self, next_s: float) -> bool:
        """Whether something fails before that moment, and before all else that happens until then."""
        others_s = self.ends.next_s(), self.arrivals.next_s, self.node_events.next_s
        return self.failing[0][0] < min(next_s, *others_s)

    def _change_nodes(self) -> None:
        """Nodes go away, or come back; the policy is asked at its next chance."""
        now_s, away, saves = self.node_events.happen()
        allocator = self.allocator
        lost = allocator.on_lost_nodes(away)
        if self.round_scheduler is not None:
            self.round_scheduler.ask_again_s = now_s
            self._expect([p for row in lost for p in self.round_scheduler.partners.parted(row, now_s)])
        for row in [] if saves else lost:
            allocator.set_back(row, now_s, 0.0)
        allocator.stop(lost, now_s)
        allocator.change_nodes(away, now_s)
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
                    None if self.round_scheduler is None else self.round_scheduler.round_s,
                )
        except UnfitJobError as error:
            self._leave_out(job, error)
        else:
            self.allocator.enter(job, self.arrivals.next_s, bits)
        self.arrivals.read_on()

    def _may_change(self) -> bool:
        """Whether a decision could have an effect: for a policy that takes nothing away, only if something is free."""
        if not self.allocator.cluster.num_devices:
            return False
        if self.policy.preempts:
            return self.table.num_active > 0 and (self.table.num_waiting > 0 or not self.clock.stands)
        free = self.allocator.free.total
        return self.table.num_waiting > 0 and free > 0 and free != self.clock.free_when_blocked

    def _decide(self) -> None:
        table = self.table
        self._expect(self.allocator.rates.hear(self.clock.now_s))
        # Copied, because what a policy sees does not change under it.
        rows = table.active.copy() if self.policy.preempts else table.waiting()
        if self.round_scheduler is None:
            allocation = self._ask(rows)
        else:
            last = self.arrivals.job is None
            allocation = self.round_scheduler.allocation(
                rows,
                self.clock.now_s,
                self._ask if self.round_scheduler.is_due(self.clock.now_s, last) else None,
            )
        changed = self.allocator.apply(rows, allocation, self.clock.now_s)
        self._expect(changed)
        if self.may_fail:
            for row in changed.tolist():
                if table.placed_s[row] == self.clock.now_s:
                    self._foresee(row, self.clock.now_s)
        self._crowd(self.clock.now_s)
        if self.round_scheduler is not None:
            self._expect(self.round_scheduler.open(self.clock.now_s))
        # Jobs that adapt themselves do so at every decision, also at one that starts nobody.
        given = allocation.given
        blocked = (
            isinstance(given, Queue)
            and given.blocks
            and self.table.num_waiting
            and not self.allocator.rates.adaptive
        )
        # Of several pools others may have room still, for jobs that come.
        blocked = blocked and self.table.num_waiting > 0 and self.allocator.cluster.is_one_pool
        self.clock.free_when_blocked = (
            self.allocator.free.total if blocked and self.round_scheduler is None else -1
        )

    def _ask(self, rows: Ints) -> Allocation:
        policy, clock = self.policy, self.clock
        allocation, clock.state = ask_policy(
            self.allocator,
            rows,
            clock.now_s,
            policy.needs,
            lambda snapshot: policy.decide(snapshot, clock.state),
            in_rounds=self.round_scheduler is not None,
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
