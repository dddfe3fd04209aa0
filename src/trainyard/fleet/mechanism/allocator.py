"""Carry out the decisions of a policy, in the job table and on the devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from trainyard.fleet.allocation import Allocation, Placed, Queue, TimeFractions
from trainyard.fleet.jobs.job_table import ArrivalRows, Bools, Ints, JobTable
from trainyard.fleet.jobs.usage import Usage
from trainyard.fleet.mechanism import transitions
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.mechanism.crowding import Crowding
from trainyard.fleet.mechanism.feasibility import Feasibility
from trainyard.fleet.mechanism.hazards import Fate, Hazards
from trainyard.fleet.mechanism.leases import Leases
from trainyard.fleet.mechanism.pending_notes import PendingNotes
from trainyard.fleet.mechanism.placed import are_whole, changes, check_shares, extras_of, granted, tenants_of
from trainyard.fleet.mechanism.queue import QueueArrays, QueueRules, apply_queue, assignment, fill
from trainyard.fleet.mechanism.rates import Rates
from trainyard.fleet.mechanism.simultaneous_starts import SimultaneousStarts
from trainyard.fleet.mechanism.transitions import EndNote, FleetState
from trainyard.fleet.place.auxiliary import as_asked, needs_of
from trainyard.fleet.place.free import FreeDevices
from trainyard.fleet.place.grants import Laid, laid
from trainyard.fleet.place.nodes import of_workers
from trainyard.fleet.place.trial import TrialPlacement
from trainyard.fleet.policy import Policy
from trainyard.fleet.records import FleetRun, Recorder
from trainyard.fleet.span import Span
from trainyard.fleet.traits import traits_of
from trainyard.fleet.workload.job import Grant, Job, rate_anywhere
from trainyard.hardware.cluster import Cluster


class Allocator:
    """Jobs and the devices that they hold, of a cluster whose nodes may go away and come back.

    Parameters
    ----------
    policy : it says whether devices may be taken from jobs that run, and which wishes of jobs it supports.
    how : number of the placement of jobs that the policy does not place itself.
    fate : what goes wrong; by default nothing.
    crowding : how jobs of a node slow each other; by default not at all.
    rates : how fast jobs run; by default as their profiles say.
    """

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        how: int,
        costs: Costs,
        notes: Recorder,
        fate: Fate | None = None,
        crowding: Crowding | None = None,
        rates: type[Rates] = Rates,
    ) -> None:
        self.cluster, self.preempts, self.how = cluster, policy.preempts, how
        self.costs, self.notes = costs, notes
        self.table, self.free = JobTable(), FreeDevices(cluster)
        traits = traits_of(policy)
        if traits.usage_half_life_s is not None:
            self.table.usage = Usage(self.table, traits.usage_half_life_s)
        self.fate = fate or Fate(Hazards())
        self.rates = rates(cluster, self.table, self.fate, crowding or Crowding())
        self.leases, self._coming = Leases(self.table), ArrivalRows(1)
        self.pending = PendingNotes(cluster, self.table, notes)
        self._state: FleetState | None = None
        # Rows that the decision changed which is being brought about, some of them twice.
        self._changed: list[int] = []
        # Whether every grant is of whole devices and says nothing else.
        self.whole = True
        self._starts = SimultaneousStarts(self.table, costs.together_s)
        self.feasibility = Feasibility(cluster, traits.supports)

    def enter(self, job: Job, now_s: float, bits: int | None = None) -> None:
        """A job is submitted.

        Parameters
        ----------
        bits : what `allowed` says of it, if that was asked.

        Raises
        ------
        UnfitJobError
            If it can never run here as it asks to.
        """
        bits = self.allowed(job) if bits is None else bits
        partition = self.cluster.partition_index(job.virtual_cluster)
        self.feasibility.note(job)
        if self.table.num_active == len(self.table.data):
            self.grow()
        self._coming.note(0, job, rate_anywhere(job), bits, partition)
        self.table.jobs[transitions.arrive(self.state(), self._coming.rows, 0, now_s)] = job

    def grow(self) -> None:
        """Make room for twice as many jobs."""
        self.table.grow()
        self._state = None

    def state(self, num_given: int = 0) -> FleetState:
        """The jobs and devices as they are, for one change of them.

        Parameters
        ----------
        num_given : how many devices it may write down.
        """
        table, pending = self.table, self.pending
        if table.num_noted[0] + 2 > pending.most_uses:
            pending.write_uses(kept=1)
        if num_given and table.num_written[0] + num_given > len(table.grants.devices):
            table.num_written[0] = table.grants.make_room(num_given, table.active)
            self._state = None
        if self._state is None:
            devices, cluster, tables = table.grants.devices, self.cluster, self.free.tables
            room = cluster.partition_table, cluster.is_one_pool, cluster.num_devices
            notes = table.counts, pending.ended, pending.used
            self._state = FleetState(table.data, table.rows, devices, tables, *room, *notes)
        return self._state

    def result(self, policy: str, placement: str = "", queues: str = "") -> FleetRun:
        """Return the records of the run, after its end."""
        self.pending.write_uses()
        return self.notes.result(policy, self.cluster.whole, placement, queues)

    def trial(self, cluster: Cluster) -> TrialPlacement:
        """Return the free devices of some nodes, in a form that a policy may change to try decisions."""
        return TrialPlacement(self.free, self.how, cluster.members[0])

    def allowed(self, job: Job) -> int:
        """The types of device that a job can run on, as bits; an error if it can never run here as it asks to."""
        return self.feasibility.of(job)

    @property
    def is_plain(self) -> bool:
        """Whether jobs have no shape, run as fast as their profiles say, and neither spans nor usage are noted."""
        noted = self.feasibility.has_gangs or self.notes.spans is not None or self.table.usage is not None
        return not (noted or self.costs.together_s or self.rates.are_uneven or self.rates.adaptive)

    def apply(self, rows: Ints, allocation: Allocation, now_s: float, cluster: Cluster | None = None) -> Ints:
        """Refuse and stop what is not to run, then start what is, most urgent first.

        Parameters
        ----------
        rows : of the snapshot that the allocation is of.
        cluster : the one that was decided on, with the nodes that it is about; by default all.

        Returns
        -------
        Rows of the jobs that got devices, or others than they had, or another speed.

        Raises
        ------
        FleetError
            If it gives jobs devices that they cannot have, or more of a device than there is.
        """
        given, cluster = allocation.given, cluster or self.cluster
        self.table.count_usage(now_s)
        assert not isinstance(given, TimeFractions), "rounds make a queue of them"
        for number, reason in allocation.refused.items():
            self._refuse(int(rows[number]), reason, now_s)
        if isinstance(given, Placed):
            changed = self._as_placed(rows, given, now_s, cluster)
        elif self._is_at_once:
            changed = self._at_once(rows, given, now_s, cluster)
        else:
            changed = self._step_by_step(rows, given, now_s, cluster)
        self.leases.note(rows, given, now_s)
        return changed

    @property
    def _is_at_once(self) -> bool:
        """Whether a queue comes down to devices that jobs lose and get, so that one compiled call can do it all."""
        return self.notes.spans is None and not (self.feasibility.has_gangs or self.costs.together_s)

    def queue_rules(self, backfill: bool, one_queue: bool) -> QueueRules:
        """Rules by which a queue is brought about."""
        pauses_s = self.costs.start_s, self.costs.restart_s
        return QueueRules(self.preempts, self.how, backfill, one_queue, pauses_s)

    def _at_once(self, rows: Ints, queue: Queue, now_s: float, cluster: Cluster) -> Ints:
        """The same as `_step_by_step`, in one call."""
        state = self.state(num_given=self.cluster.num_devices).of(cluster)
        rules = self.queue_rules(queue.backfill, queue.one_queue)
        done = apply_queue(state, rows, QueueArrays.of(queue), rules, now_s)
        if len(done.leaving):
            self.table.forget(done.leaving)
            self.rates.left(done.leaving)
        self._set_going(done.started, done.places, None, done.known)
        return done.started

    def _step_by_step(self, rows: Ints, queue: Queue, now_s: float, cluster: Cluster) -> Ints:
        """Find out who runs, take devices away, and give them to others; returns the rows of those that changed."""
        self._changed, asked, more = [], self._asked(rows, queue), (self.how, queue.backfill)
        if self.preempts:
            done = assignment(self.state().of(cluster), rows, asked, *more)
            self._note_left(done.leaving, now_s)
            self._wait(done.stopping, now_s)
            places, given = done.places, done.given
        else:
            places, *laid_out = fill(self.state().of(cluster), rows, asked, *more, queue.one_queue)
            given = Laid(*laid_out)
        self._begin(rows[queue.order[places]], places, given, None, now_s)
        return self._all_changed(now_s)

    def _as_placed(self, rows: Ints, placed: Placed, now_s: float, cluster: Cluster) -> Ints:
        """Give jobs the devices that the policy names; returns the rows of those that changed."""
        self._changed = []
        starting, stopping = changes(self.table, cluster, rows, placed, self._taken())
        wanted = rows[placed.order]
        if self.preempts:
            self._pause(stopping, now_s)
            self._wait(stopping, now_s)
            self._pause(wanted[starting][self.table.held[wanted[starting]] > 0], now_s)
        given = laid([placed.devices[place] for place in starting.tolist()])
        self.free.take_these(given.devices)
        self._begin(wanted[starting], starting, given, placed, now_s)
        before, self.whole = self.whole, are_whole(placed)
        if not (before and self.whole):
            self._share(wanted, placed, now_s)
        return self._all_changed(now_s)

    def _all_changed(self, now_s: float) -> Ints:
        """Rows of the jobs that the decision changed, each once, after it was brought about."""
        transitions.note_use(self.state(), now_s)
        return np.array(list(dict.fromkeys(self._changed)), np.int64)

    def _taken(self) -> Bools:
        """Devices that the policy cannot give: it takes nothing away, and who has them is not in its snapshots."""
        taken = self.free.taken()
        return np.zeros_like(taken) if self.preempts else taken

    def _asked(self, rows: Ints, queue: Queue) -> QueueArrays:
        """Return the policy's queue as arrays; jobs of several workers have a placement of their own."""
        asked = QueueArrays.of(queue)
        if not self.feasibility.has_gangs:
            return asked
        gangs = [self.table.job(row).gang for row in rows[asked.order].tolist()]
        return asked._replace(hows=of_workers(gangs, asked.hows, self.how))

    def _begin(self, started: Ints, places: Ints, given: Laid, placed: Placed | None, now_s: float) -> None:
        """Jobs, at these places in the order, have got devices, or others than they had.

        Parameters
        ----------
        placed : what the policy said, if it placed them itself.
        """
        if len(started):
            known = self._start(started, given, now_s)
            self.table.has_auxiliary[started] = placed is None and self.free.counts_auxiliary
            self._set_going(started, places, placed, known)

    def take_over(self, row: int, grant: Grant, now_s: float) -> None:
        """Note that a job has devices already."""
        self.free.take_these(grant.devices, needs_of(self.table.job(row)))
        self.table.count_usage(now_s)
        if self.table.usage is not None:
            self.table.usage.resume(row, grant.num_devices, now_s)
        started = np.array([row])
        self._start(started, laid([grant.devices]), now_s)
        self.table.has_auxiliary[row] = self.free.counts_auxiliary
        self.table.grants[row] = grant
        self.rates.started(started, whole=False)
        transitions.note_use(self.state(), now_s)

    def _start(self, started: Ints, given: Laid, now_s: float) -> bool:
        """Jobs have devices; returns whether it is known how fast they run on these."""
        costs, rows, more_s = self.costs, started.tolist(), 0.0
        if costs.together_s:
            more_s, delayed = self._starts.beside_others(rows, now_s)
            self._changed += delayed
        pauses_s = costs.start_s + more_s, costs.restart_s + more_s
        self.table.grants.forget(started)
        state = self.state(num_given=len(given.devices))
        self._changed += rows
        return bool(transitions.start(state, started, *given, now_s, pauses_s))

    def _set_going(self, started: Ints, places: Ints, placed: Placed | None, known: bool) -> None:
        """Jobs that have devices get what else they are to have, and run as fast as they do with that."""
        extras = {} if placed is None else extras_of(placed)
        asks = self.feasibility.has_askers and placed is None
        if not (extras or asks or not known or self.rates.are_uneven):
            return
        grants = self.table.grants
        if extras or asks:
            for row, place in zip(started.tolist(), places.tolist(), strict=True):
                held = grants[row]
                assert held is not None
                grant = granted(held.devices, place, extras)
                grants[row] = as_asked(self.table.job(row), grant) if asks else grant
        self.rates.started(started, whole=not (extras or asks))

    def _share(self, wanted: Ints, placed: Placed, now_s: float) -> None:
        """Note who shares devices with whom, and how fast that lets them be; shares change without a restart."""
        tenants = tenants_of(wanted.tolist(), placed.devices)
        extras = extras_of(placed)
        for place, (row, devices) in enumerate(zip(wanted.tolist(), placed.devices, strict=True)):
            if not devices:
                continue
            others = {other for device in devices for other in tenants[device]} - {row}
            partners = tuple(sorted(self.table.job(other).name for other in others))
            grant = granted(devices, place, extras)._replace(partners=partners)
            if self.table.grants[row] != grant:
                self.rates.regranted(row, grant, now_s)
                self._changed.append(row)
        check_shares(tenants, self.table)

    def end_leases(self, now_s: float) -> list[int]:
        """Take devices back whose leases end, unless the policy does that itself; returns the rows of their jobs."""
        ending = self.leases.ending(now_s)
        if ending and not self.preempts:
            self.stop(ending, now_s)
        return ending

    def stop(self, rows: Sequence[int], now_s: float) -> None:
        """Take jobs' devices away; they wait."""
        stopped = np.array(rows, np.int64)
        self.table.count_usage(now_s)
        self._pause(stopped, now_s)
        self._wait(stopped, now_s)
        transitions.note_use(self.state(), now_s)

    def _wait(self, rows: Ints, now_s: float) -> None:
        self.table.forget(rows)
        transitions.wait(self.state(), rows, now_s)

    def _pause(self, rows: Ints, now_s: float) -> None:
        """Devices are free again; in the job table the jobs are as they were until they have others."""
        if len(rows):
            self._note_left(rows, now_s)
            transitions.give_back(self.state(), rows)

    def _note_left(self, rows: Ints, now_s: float) -> None:
        """Jobs leave the devices that they have on the table."""
        if self.notes.spans is not None:
            for row in rows.tolist():
                grant, placed_s = self.table.grants[row], float(self.table.placed_s[row])
                if grant is not None and now_s > placed_s:
                    self.notes.spans.append(Span(self.table.job(row).name, placed_s, now_s, grant.devices))
        self.rates.left(rows)

    def change_nodes(self, away: Iterable[int], now_s: float) -> None:
        """From now on these nodes, and no others, cannot be used; no job is on them any more."""
        self.cluster = self.cluster.without(away)
        self.free, self._state = FreeDevices(self.cluster), None
        for row in self.table.active.tolist():
            if (grant := self.table.grants[row]) is not None:
                needs = needs_of(self.table.job(row)) if self.table.has_auxiliary[row] else None
                self.free.take_these(grant.devices, needs)
        transitions.note_use(self.state(), now_s)

    def lose_unsaved(self, row: int, now_s: float, restart_s: float) -> None:
        """A job that runs loses what it did since its last checkpoint, and time to restart."""
        worked_s = now_s - float(self.table.began_s[row])
        unsaved_s = worked_s % self.fate.hazards.checkpoint_every_s if worked_s > 0 else 0.0
        self.set_back(row, unsaved_s, now_s, restart_s)
        self.notes.num_failures += 1

    def set_back(self, row: int, unsaved_s: float, now_s: float, restart_s: float) -> None:
        """A job that runs loses the work of the last ``unsaved_s`` seconds, and time to restart."""
        work = float(self.table.job(row).work)
        transitions.set_back(self.table.data, row, work, unsaved_s, now_s, restart_s)

    def finish(self, row: int, now_s: float, ended_s: float | None = None) -> bool:
        """A job has done its work, its time is up, or it changes its rate; whether it has ended.

        Parameters
        ----------
        ended_s : the end that counts, if it is another than now.
        """
        table, job = self.table, self.table.job(row)
        if table.turn[row] > 0 and not table.is_killed[row]:
            self.rates.turn(row, now_s)
            return False
        table.count_usage(now_s)
        transitions.end(self.state(), row, now_s)
        (note,) = self.pending.take_ended()
        self.note_end(job, note, ended_s)
        return True

    def note_end(self, job: Job, note: EndNote, ended_s: float | None = None) -> None:
        """Write down that a job has ended; its row may be another's by now."""
        rows = np.array([note.row])
        self.rates.left(rows)
        self.table.forget(rows)
        self.pending.write_end(job, note, ended_s)
        self.table.take_out(note.row, job)

    def _refuse(self, row: int, reason: str, now_s: float) -> None:
        if self.table.held[row]:
            self.stop([row], now_s)
        self.notes.turned_away(self.table.job(row), reason)
        self.forget(row, now_s)

    def forget(self, row: int, now_s: float) -> None:
        """A job that waits leaves for good."""
        transitions.leave(self.state(), row, now_s)
        self.table.take_out(row)
