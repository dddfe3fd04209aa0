"""Drive a backend by a policy: the loop of the simulator, with real time and real jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import partial

from trainyard.fleet.allocation import Allocation
from trainyard.fleet.errors import FleetError, one_line
from trainyard.fleet.mechanism import transitions
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.mechanism.ask_policy import ask_policy
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.mechanism.domains import SchedulingDomain, SchedulingDomains
from trainyard.fleet.mechanism.waiting import why_waiting
from trainyard.fleet.periods import Rounds
from trainyard.fleet.place.nodes import placement
from trainyard.fleet.policy import Policy
from trainyard.fleet.records import Recorder
from trainyard.fleet.rounds.coordinator import Coordinator
from trainyard.fleet.run.backend import Backend, Progress
from trainyard.fleet.run.decision import UndecidedError, decide
from trainyard.fleet.run.event import Event, Happening
from trainyard.fleet.run.observed import Observed
from trainyard.fleet.run.past import Done, Past
from trainyard.fleet.run.patience import Patience
from trainyard.fleet.run.running import Running
from trainyard.fleet.snapshot import Ints
from trainyard.fleet.workload.job import Grant, Job
from trainyard.fleet.workload.measured_report import report_of_timings, updated_report
from trainyard.fleet.workload.runnable import runnable_of
from trainyard.hardware.cluster import Cluster

POLL_S = 0.05


class Driver:
    """Carry out the decisions of a policy on a backend.

    Parameters
    ----------
    tell : gets the events of jobs before the backend is told; the event of a cancelled job when the job has left.
    cancelled : names the jobs that are not wanted any more. It is called after each decision, which may take long, so
        that no such job gets devices.
    notes : record of the devices that each job had, and of the progress of jobs; by default a new one that keeps all.

    Attributes
    ----------
    running : devices of the jobs that the backend runs or is to start, by row of the table.
    waiting : reasons why jobs wait, by name, as of the last decision.
    given_up : failures of the jobs that were given up in the last step, by name.
    trouble : something that all jobs need and wait for, such as space on the disk; "" if nothing is missing.
    trouble_since_s : time at which ``trouble`` began.
    """

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        backend: Backend,
        *,
        place: str = "consolidated",
        rounds: Rounds | None = None,
        patience: Patience | None = None,
        tell: Callable[[Event], None] = lambda _: None,
        cancelled: Callable[[], Collection[str]] = tuple,
        notes: Recorder | None = None,
    ) -> None:
        if rounds is not None and rounds.only_simulated:
            raise FleetError(
                "such rounds follow a published simulator, whose jobs do what no real one does; run jobs for real in "
                "rounds of a length"
            )
        if cluster.changes:
            raise FleetError(
                f"nodes of cluster {cluster.name!r} come and go in simulation only: of real ones the backend says which "
                "are there; leave `changes` out"
            )
        self.policy, self.backend, self.rounds = policy, backend, rounds
        self.patience, self.tell, self._cancelled = patience or Patience(), tell, cancelled
        self.notes = notes or Recorder(keep_spans=True)
        self.allocator = Allocator(cluster, policy, placement(place), Costs(), self.notes, rates=Observed)
        self.table = self.allocator.table
        self.coordinator = Coordinator(self.allocator, rounds)
        self.waiting: dict[str, str] = {}
        self.given_up: dict[str, str] = {}
        self.domains = SchedulingDomains(self.allocator, policy, apart=rounds is None)
        for domain in self.domains.current:
            domain.wake_s = 0.0
        self.trouble, self.trouble_since_s = "", 0.0
        self._running = Running(backend, self.table, tell)
        self._departures, self.running = self._running.departures, self._running.grants

    @property
    def cluster(self) -> Cluster:
        """Cluster without the nodes that are lost now."""
        return self.allocator.cluster

    @property
    def wake_s(self) -> float:
        """Time of the next decision, if nothing happens before."""
        return self.domains.wake_s

    @property
    def names(self) -> list[str]:
        """Names of the jobs that have neither ended nor been refused."""
        return [self.table.job(row).name for row in self.table.active.tolist()]

    @property
    def ending(self) -> frozenset[str]:
        """Names of the jobs that have ended for good and have not left their devices yet."""
        return self._departures.ending

    def done(self) -> dict[str, Done]:
        """Return the progress of every job at the last step, by name."""
        return {self.table.job(row).name: Done.of(self.table, row) for row in self.table.active.tolist()}

    def admitted(self) -> frozenset[str]:
        """Return the names of the jobs that were in a decision and were not refused."""
        rows = self.table.active
        return frozenset(self.table.job(row).name for row in rows[self.table.was_admitted(rows)].tolist())

    def submit(self, job: Job, now_s: float) -> None:
        """Add a job that arrives.

        Raises
        ------
        FleetError
            If the job has nothing to run, or can never run here.
        """
        runnable_of(job)
        self.allocator.enter(job, now_s)
        self._touch(int(self.table.active[-1]))
        self.tell(Event(now_s, job, Happening.ARRIVES))

    def restore(self, job: Job, now_s: float, past: Past) -> None:
        """Take over a job of an earlier driver; if the job still runs, it goes on.

        A job that was to leave its devices and was not told is stopped. If the backend raises an error, nothing is noted
        of the job, and the devices that it may have are reserved until it is restored or `expel` has stopped it.
        """
        grant = past.grant if past.grant is not None and self._can_keep(job.name, past.grant) else None
        # The backend may fail: it is called first, so that nothing is noted of a job that is not restored.
        kept = self._running.take_back(job, grant, past)
        self.allocator.enter(job, now_s)
        self._departures.release(job.name)
        row, table = int(self.table.active[-1]), self.table
        self._touch(row)
        work, table.attained_s[row], table.attained_device_s[row], timings = past.done
        if timings:
            table.reports[row] = report_of_timings(job.batch_size, timings)
        table.left[row] = max(0.0, job.work - work)
        table.first_start_s[row], table.taken_over[row] = past.first_start_s, past.admitted
        if kept is not None:
            self.allocator.take_over(row, kept, now_s)
            if self.coordinator.rounds is not None:
                self.coordinator.rounds.partners.resumed(row)
            self.running[row] = kept
            self.tell(Event(now_s, job, Happening.STAYS, kept))
            if not self.cluster.away.isdisjoint(self.cluster.node_of[d] for d in kept.devices):
                self._change_nodes(self.cluster.away, now_s)

    def clear(self, job: Job, past: Past) -> None:
        """Have a waiting job of an earlier driver leave the devices that it may still have; it is restored later.

        If the backend raises an error, these devices are reserved until the job is cleared or restored.
        """
        self._running.take_back(job, None, past)
        self._departures.release(job.name)

    def _can_keep(self, name: str, grant: Grant) -> bool:
        """Whether a job may go on where it was: its devices are in the cluster, and no other job has them."""
        given = {d for held in self.running.values() if name not in held.partners for d in held.devices}
        return max(grant.devices, default=0) < self.cluster.whole.num_devices and given.isdisjoint(
            grant.devices
        )

    def expel(self, name: str) -> None:
        """Have a job leave that is not restored; no other job gets its devices until it `has_left`."""
        self._departures.leave(name, self.backend.held(name))

    def has_left(self, name: str) -> bool:
        """Whether a job that was to leave has left its devices."""
        return not self._departures.is_leaving(name)

    def cancel(self, name: str, now_s: float) -> None:
        """Stop a job and forget it.

        Raises
        ------
        FleetError
            If no job of this name waits or runs.
        """
        row = next((r for r in self.table.active.tolist() if self.table.job(r).name == name), None)
        if row is None:
            raise FleetError(f"there is no job {name!r} that waits or runs")
        self._touch(row)
        self._end(row, Happening.CANCELLED, "", now_s)

    def _touch(self, row: int) -> None:
        """Have the policy decide anew after a change of a job; in rounds, it decides when the next round begins."""
        if self.rounds is None:
            self.domains.touch(int(self.table.partition[row]))

    def _end(self, row: int, what: Happening, why: str, now_s: float) -> None:
        """End a job for good; its last event is told when it has left its devices."""
        job, grant = self.table.job(row), self._running.remove(row)
        if self.table.grants[row] is not None:
            self.allocator.stop([row], now_s)
            self._part(row, now_s)
        self._running.forget_failures(row)
        self.waiting.pop(job.name, None)
        self.allocator.forget(row, now_s)
        self._departures.end(Event(now_s, job, what, grant, why))

    def step(self, now_s: float) -> None:
        """Observe jobs and nodes; let the policy decide if a decision is due.

        A fault of a job fails the job. Something that all jobs need and that is missing is waited for, as ``trouble``.
        """
        before, self.trouble, self._running.trouble, self.given_up = self.trouble, "", "", {}
        self._observe(now_s)
        self._look_at_nodes(now_s)
        self._end_leases(now_s)
        self._departures.look()
        for row in sorted(self._running.waiting):
            self._start(row, now_s)
        for domain in self.domains.due(now_s):
            try:
                self._decide(domain, now_s)
            except UndecidedError as error:
                for row, why in error.jobs.items():
                    self._give_up(row, why, now_s)
                domain.wake_s = now_s
        self.trouble = self.trouble or self._running.trouble or self._departures.trouble
        if not before:
            self.trouble_since_s = now_s

    def _look_at_nodes(self, now_s: float) -> None:
        """Read which nodes are lost or back, and take jobs off lost ones."""
        try:
            away = self.backend.away()
        except Exception as error:
            self.trouble = one_line(error)
            return
        if away != self.cluster.away:
            self._change_nodes(away, now_s)

    def _change_nodes(self, away: frozenset[int], now_s: float) -> None:
        """Take jobs off the nodes that are lost now."""
        node_of = self.cluster.node_of
        lost, alone = self.coordinator.change_nodes(away, now_s)
        self._departures.lose({device for device, node in enumerate(node_of) if node in away})
        for row in lost:
            own = sorted({int(node_of[device]) for device in self.running[row].devices} & away)
            names = ", ".join(f"node {node}" for node in own)
            self._running.revoke(row, Happening.LOSES_NODE, now_s, f"{names} cannot be used")
            self._running.forget_failures(row)  # they were the node's
        self._note_alone(alone)
        self.domains.change_nodes()

    def _end_leases(self, now_s: float) -> None:
        """Take devices back whose leases end, unless the policy does that itself."""
        for row in self.coordinator.end_leases(now_s):
            self._touch(row)
            if not self.policy.preempts:
                self._running.revoke(row, Happening.LEAVES, now_s, "its lease ends")
                self._part(row, now_s)

    def _observe(self, now_s: float) -> None:
        """Read the progress of jobs, and part with those that ended or failed."""
        for row in list(self.running):
            job, progress = self.table.job(row), self._running.progress(row)
            if progress is None:
                continue
            transitions.settle(self.table.data, row, now_s)
            self._note_progress(row, job, progress)
            if progress.ended:
                self.tell(Event(now_s, job, Happening.ENDS, self.running[row]))
                del self.running[row]
                self._running.forget_failures(row)
                self._touch(row)
                self.allocator.finish(row, now_s)
                self._part(row, now_s)
            elif progress.failure is not None:
                self._again(row, progress, now_s)

    def _note_progress(self, row: int, job: Job, progress: Progress) -> None:
        """Note the progress of a job; a job that reports none goes on as fast as it was declared."""
        if progress.steps is None:
            return
        work_per_step = job.work / runnable_of(job).steps
        self.table.left[row] = job.work - progress.steps * work_per_step
        if progress.step_s is not None and job.batch_size:
            spot = self.allocator.rates.spot(self.running[row])
            losses = tuple((steps * work_per_step, loss) for steps, loss in progress.losses)
            report = updated_report(job.batch_size, self.table.reports[row], spot, progress.step_s, losses)
            self.table.reports[row] = report

    def _again(self, row: int, progress: Progress, now_s: float) -> None:
        """Take the devices of a job that failed; the job waits like a preempted one, or is given up."""
        self._touch(row)
        if why := self._running.note_failure(row, progress, now_s, self.patience):
            self._give_up(row, why, now_s)
            return
        self._running.revoke(row, Happening.FAILS, now_s, progress.failure or "")
        self.allocator.stop([row], now_s)
        self._part(row, now_s)

    def _give_up(self, row: int, why: str, now_s: float) -> None:
        """Give up a job that has failed for good."""
        self.given_up[self.table.job(row).name] = why
        self._end(row, Happening.GIVEN_UP, why, now_s)

    def _part(self, row: int, now_s: float) -> None:
        """Note that a job has left its devices; a job that shared them has them alone until the round ends."""
        self._note_alone(self.coordinator.left(row, now_s))

    def _note_alone(self, rows: list[int]) -> None:
        for row in rows:
            if row in self.running:
                grant = self.table.grants[row]
                assert grant is not None
                self.running[row] = grant

    def _decide(self, domain: SchedulingDomain, now_s: float) -> None:
        domain.wake_s = math.inf
        if self.rounds is not None:
            domain.wake_s = (math.floor(now_s / self.rounds.round_s) + 1) * self.rounds.round_s
        rows = self.domains.rows(domain, self.coordinator.rows())
        if not len(rows):
            return
        if not domain.cluster.num_devices:
            where = "its partition" if self.cluster.num_devices else "the cluster"
            why = f"no node of {where} can be used now"
            self._note_waiting(domain, dict.fromkeys(self._names(domain), why))
            return
        if self.coordinator.rounds is not None:
            self.coordinator.rounds.close(now_s)
        allocation = self.coordinator.decision(rows, now_s, partial(self._ask, domain, now_s))
        domain.wake_s = min(domain.wake_s, allocation.ask_again_s)
        jobs = {row: self.table.job(row) for row in rows.tolist()}
        for number, why in allocation.refused.items():
            row = int(rows[number])
            if row in self.running:
                self._running.revoke(row, Happening.LEAVES, now_s)
            self._departures.end(Event(now_s, jobs[row], Happening.REFUSED, why=why))
        self.allocator.apply(rows, allocation, now_s, domain.cluster)
        reasons = why_waiting(self.allocator, rows, allocation).items()
        self._note_waiting(domain, {jobs[int(rows[number])].name: reason for number, reason in reasons})
        for name in set(self._cancelled()).intersection(self.names):
            self.cancel(name, now_s)
        active = set(self.table.active.tolist())
        self._bring_about({row: job for row, job in jobs.items() if row in active}, now_s)

    def _note_waiting(self, domain: SchedulingDomain, why: dict[str, str]) -> None:
        """Note why jobs of a domain wait; reasons of other domains stay."""
        others = set(self.names).difference(self._names(domain))
        self.waiting = {name: text for name, text in self.waiting.items() if name in others} | why

    def _names(self, domain: SchedulingDomain) -> list[str]:
        return [self.table.job(row).name for row in self.domains.rows(domain, self.table.active).tolist()]

    def _ask(self, domain: SchedulingDomain, now_s: float, rows: Ints) -> Allocation:
        allocation, domain.state = ask_policy(
            self.allocator,
            rows,
            now_s,
            self.policy.needs,
            lambda snapshot: decide(self.policy, snapshot, domain.state),
            in_rounds=self.rounds is not None,
            cluster=domain.cluster,
        )
        return allocation

    def _bring_about(self, jobs: dict[int, Job], now_s: float) -> None:
        """Have jobs leave that lose their devices, then start the others."""
        wanted = {row: grant for row in jobs if (grant := self.table.grants[row]) is not None}
        for row, grant in list(self.running.items()):
            if row in jobs and _place(wanted.get(row)) != _place(grant):
                self._running.revoke(row, Happening.LEAVES, now_s)
        for row, grant in wanted.items():
            if row not in self.running:
                self.tell(Event(now_s, jobs[row], Happening.RUNS, grant))
                self.running[row] = grant
                self._start(row, now_s)
            else:
                self.running[row] = grant

    def _start(self, row: int, now_s: float) -> None:
        failure = self._running.start(row, now_s)
        if failure is not None:
            self._again(row, failure, now_s)


def _place(grant: Grant | None) -> tuple[int, ...] | None:
    """Return the devices of a job, whose change moves it; the batch size of a training does not change."""
    return None if grant is None else grant.devices
