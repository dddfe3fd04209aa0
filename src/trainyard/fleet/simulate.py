"""Simulating a workload under a policy: time jumps from event to event, and nothing is sampled."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from trainyard.fleet.books import Books
from trainyard.fleet.mechanism import chosen
from trainyard.fleet.place.free import FreeDevices
from trainyard.fleet.place.nodes import Placement, placement
from trainyard.fleet.policy import Ints, Policy, Snapshot, Targets
from trainyard.fleet.records import FleetRun, Recorder, Span
from trainyard.fleet.site import FleetError, Site
from trainyard.fleet.workload.job import Grant, Job, Spot

_INF = float("inf")


@dataclass(frozen=True)
class Costs:
    """What changes cost.

    Attributes
    ----------
    restart_s : time in which a job that ran before and gets devices again does no work: checkpoint, move, warm up.
    start_s : the same for a job that starts for the first time.
    """

    restart_s: float = 0.0
    start_s: float = 0.0


@dataclass(frozen=True)
class Rounds:
    """Decisions are made, and take effect, only every ``round_s`` seconds from time 0 on."""

    round_s: float

    def __post_init__(self) -> None:
        if self.round_s <= 0:
            raise FleetError(f"rounds last longer than 0 s, got {self.round_s}")


def simulate_fleet(
    jobs: Iterable[Job],
    site: Site,
    policy: Policy,
    *,
    name: str = "",
    place: str = "consolidated",
    rounds: Rounds | None = None,
    costs: Costs | None = None,
    keep_spans: bool = False,
) -> FleetRun:
    """Run a workload to its end.

    Parameters
    ----------
    jobs : in the order of arrival; may be a generator, of which one job is read ahead.
    name : of the policy, for reports.
    place : name of the placement of jobs that the policy does not place itself.
    rounds : when decisions are made; by default whenever a job comes or ends.
    keep_spans : note what ran where, for charts.

    Raises
    ------
    FleetError
        If a job can never run here, jobs are not in order, or the policy leaves jobs waiting for ever.
    """
    return _Simulator(jobs, site, policy, placement(place), rounds, costs or Costs(), keep_spans).run(name)


class _Simulator:
    """Owns all that changes: the clock, the books, the free devices."""

    def __init__(
        self,
        jobs: Iterable[Job],
        site: Site,
        policy: Policy,
        how: Placement,
        rounds: Rounds | None,
        costs: Costs,
        keep_spans: bool,
    ) -> None:
        self.site, self.policy, self.how, self.rounds, self.costs = site, policy, how, rounds, costs
        self.books, self.free, self.notes = Books(), FreeDevices(site), Recorder(keep_spans)
        self.coming = iter(jobs)
        self.next_job = next(self.coming, None)
        self.finishing: list[tuple[float, int, str]] = []
        self.now_s = 0.0
        self.wake_s = _INF
        self.state = policy.start(site)

    def run(self, name: str) -> FleetRun:
        while self.next_job is not None or len(self.books.active):
            changed = self._advance()
            if changed and self._may_change():
                self._decide()
        return self.notes.result(name, self.site)

    # Time

    def _advance(self) -> bool:
        """Go to the next moment at which something happens; whether the policy is to be asked then."""
        arrival_s = _INF if self.next_job is None else self.next_job.arrival_s
        event_s = min(arrival_s, self._next_finish_s(), self.wake_s)
        if self.rounds is not None:
            boundary_s = self._boundary_s(event_s)
            self._events_until(boundary_s)
            self.now_s = boundary_s
            return True
        if event_s == _INF:
            waiting = [job.name for job in self.books.jobs if job is not None]
            raise FleetError(
                f"the policy leaves {len(waiting)} jobs waiting for ever on free devices, {waiting[0]!r} first; a policy "
                "must in the end run every job that fits, or refuse it"
            )
        self.now_s = event_s
        self._events_until(event_s)
        return True

    def _boundary_s(self, event_s: float) -> float:
        """The next round: the one after this, or, where nobody is there, the one after the next arrival."""
        assert self.rounds is not None
        length_s = self.rounds.round_s
        if len(self.books.active):
            return self.now_s + length_s
        return float(np.ceil(max(event_s, self.now_s) / length_s)) * length_s

    def _events_until(self, end_s: float) -> None:
        """Ends before arrivals of the same moment."""
        while True:
            finish_s = self._next_finish_s()
            arrival_s = _INF if self.next_job is None else self.next_job.arrival_s
            if min(finish_s, arrival_s) > end_s:
                return
            if finish_s <= arrival_s:
                self._finish(heapq.heappop(self.finishing)[1], finish_s)
            else:
                self._arrive(arrival_s)

    def _next_finish_s(self) -> float:
        """When the next job ends; entries of jobs that were stopped or changed since are dropped."""
        while self.finishing:
            finish_s, row, name = self.finishing[0]
            job = self.books.jobs[row]
            if job is not None and job.name == name and self.books.finish_s[row] == finish_s:
                return finish_s
            heapq.heappop(self.finishing)
        return _INF

    def _arrive(self, now_s: float) -> None:
        job = self.next_job
        assert job is not None
        fitting = [t for t in job.device_types or self.site.device_types if t in self.site.device_types]
        most = max((int(self.site.devices_of_type[self.site.type_index(t)]) for t in fitting), default=0)
        if job.least_devices > most:
            raise FleetError(
                f"job {job.name!r} asks for {job.least_devices} devices of {', '.join(job.device_types) or 'one type'}; "
                f"cluster {self.site.name!r} has {most}. Give it more devices, or leave the job out"
            )
        self.books.add(job, now_s)
        self.next_job = next(self.coming, None)
        if self.next_job is not None and self.next_job.arrival_s < job.arrival_s:
            raise FleetError(
                f"job {self.next_job.name!r} arrives at {self.next_job.arrival_s} s, before {job.name!r}; give the jobs "
                "in the order of their arrival"
            )

    def _finish(self, row: int, now_s: float) -> None:
        books, job = self.books, self.books.jobs[row]
        assert job is not None
        self._stop(row, now_s)
        deadline_s = _INF if job.deadline_s is None else job.deadline_s
        values = (job.arrival_s, books.first_start_s[row], now_s, books.attained_device_s[row])
        self.notes.ended(job.name, job.virtual_cluster, (*values, books.num_preempted[row] - 1, deadline_s))
        books.remove(row)

    # Decisions

    def _may_change(self) -> bool:
        """Whether a decision could have an effect: for a policy that takes nothing away, only if something is free."""
        if not len(self.books.active):
            return False
        return self.policy.preempts or self.free.total > 0

    def _decide(self) -> None:
        rows = self.books.active
        if not self.policy.preempts:
            rows = rows[self.books.held[rows] == 0]
            if not len(rows):
                return
        snapshot = Snapshot(
            self.now_s, self.site, self.free.by_node.copy(), self.policy.needs, rows.copy(), self.books
        )
        targets, self.state = self.policy.decide(snapshot, self.state)
        self.notes.num_decisions += 1
        self.wake_s = targets.ask_again_s
        self._apply(snapshot.rows, targets)
        self.notes.in_use(self.now_s, self.site.num_devices - self.free.total)

    def _apply(self, rows: Ints, targets: Targets) -> None:
        """Stop what is not to run, then start what is, most urgent first."""
        for number, reason in targets.refused.items():
            self._refuse(int(rows[number]), reason)
        wanted = (
            self.books.num_devices[rows[targets.order]]
            if targets.num_devices is None
            else targets.num_devices
        )
        kinds = np.full(len(targets.order), -1) if targets.device_type is None else targets.device_type
        room = self.site.devices_of_type if self.policy.preempts else self.free.by_type
        runs = chosen(wanted, kinds, room, targets.backfill)
        if self.policy.preempts:
            keep = np.zeros(len(rows), np.bool_)
            keep[targets.order[runs]] = True
            for row in rows[~keep & (self.books.held[rows] > 0)].tolist():
                self._stop(row, self.now_s)
        for place in np.nonzero(runs)[0].tolist():
            row = int(rows[targets.order[place]])
            started = self._run(row, int(wanted[place]), int(kinds[place]), targets, place)
            if not started and not targets.backfill:
                break

    def _run(self, row: int, wanted: int, kind: int, targets: Targets, place: int) -> bool:
        """Give a job its devices if it has others; False if there is no place for it."""
        books = self.books
        before = books.grants[row]
        batch_size = 0 if targets.batch_size is None else int(targets.batch_size[place])
        if targets.devices is not None:
            devices = targets.devices[place]
            if before is not None and before.devices == devices and before.batch_size == batch_size:
                return True
            if before is not None:
                self._pause(row)
            self.free.take_these(devices)
        else:
            same = before is not None and before.num_devices == wanted and before.batch_size == batch_size
            if same and (kind < 0 or self._kind_of(before) == kind):  # type: ignore[arg-type]
                return True
            if before is not None:
                self._pause(row)
            found = self.free.find(wanted, kind, self.how)
            if found is None:
                if before is not None:
                    books.release(row, self.now_s)
                return False
            devices = self.free.take(found)
        self._start(row, devices, batch_size, targets, place)
        return True

    def _start(
        self, row: int, devices: tuple[int, ...], batch_size: int, targets: Targets, place: int
    ) -> None:
        books, job = self.books, self.books.jobs[row]
        assert job is not None
        cpus = 0.0 if targets.cpus is None else float(targets.cpus[place])
        memory = 0.0 if targets.memory_bytes is None else float(targets.memory_bytes[place])
        grant = Grant(devices, batch_size=batch_size, cpus=cpus, memory_bytes=memory)
        nodes = set(self.site.node_of[list(devices)].tolist())
        kind = self.site.hosts[next(iter(nodes))].device_type
        rate = job.profile.work_per_s(Spot(kind, len(devices), len(nodes)), grant)
        again = not np.isnan(books.first_start_s[row])
        books.grant(row, grant, rate, self.now_s, self.costs.restart_s if again else self.costs.start_s)
        heapq.heappush(self.finishing, (float(books.finish_s[row]), row, job.name))

    def _pause(self, row: int) -> None:
        """A job leaves its devices for others, at once."""
        grant, job = self.books.grants[row], self.books.jobs[row]
        assert grant is not None
        assert job is not None
        self._note_span(job, grant, row, self.now_s)
        self.free.give(grant.devices)

    def _stop(self, row: int, now_s: float) -> None:
        grant, job = self.books.grants[row], self.books.jobs[row]
        assert grant is not None
        assert job is not None
        self._note_span(job, grant, row, now_s)
        self.books.release(row, now_s)
        self.free.give(grant.devices)
        self.notes.in_use(now_s, self.site.num_devices - self.free.total)

    def _note_span(self, job: Job, grant: Grant, row: int, now_s: float) -> None:
        if self.notes.spans is not None and now_s > self.books.granted_s[row]:
            self.notes.spans.append(Span(job.name, float(self.books.granted_s[row]), now_s, grant.devices))

    def _refuse(self, row: int, reason: str) -> None:
        job = self.books.jobs[row]
        assert job is not None
        if self.books.grants[row] is not None:
            self._stop(row, self.now_s)
        self.notes.refused.append((job.name, reason))
        self.books.remove(row)

    def _kind_of(self, grant: Grant) -> int:
        return int(self.site.type_of_node[self.site.node_of[grant.devices[0]]])
