"""Who has what: brings about what a policy wants, on the books and on the devices."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trainyard.fleet.books import Books, Bools, Ints
from trainyard.fleet.mechanism import chosen
from trainyard.fleet.place.free import FreeDevices
from trainyard.fleet.place.nodes import Placement, anywhere, consolidated
from trainyard.fleet.policy import Targets
from trainyard.fleet.records import Recorder, Span
from trainyard.fleet.site import FleetError, Site
from trainyard.fleet.workload.job import Adaptive, Grant, Job, Spot


@dataclass(frozen=True)
class Costs:
    """What changes cost.

    Attributes
    ----------
    restart_s : time in which a job that ran before and gets devices again, or others, does no work: checkpoint, move,
        warm up.
    start_s : the same for a job that starts for the first time.
    """

    restart_s: float = 0.0
    start_s: float = 0.0


class Holdings:
    """Jobs and the devices that they hold.

    Parameters
    ----------
    preempts : whether devices may be taken from jobs that run.
    how : placement of jobs that the policy does not place itself.
    """

    def __init__(self, site: Site, preempts: bool, how: Placement, costs: Costs, notes: Recorder) -> None:
        self.site, self.preempts, self.how, self.costs, self.notes = site, preempts, how, costs, notes
        self.books, self.free = Books(), FreeDevices(site)
        self.changed: list[int] = []
        self.adaptive: set[int] = set()
        # Whether every grant is of whole devices and says nothing else.
        self.whole = True

    def enter(self, job: Job, now_s: float) -> None:
        """A job is submitted.

        Raises
        ------
        FleetError
            If it can never run here.
        """
        site = self.site
        kinds = [t for t in job.device_types or site.device_types if t in site.device_types]
        most = max((int(site.devices_of_type[site.type_index(t)]) for t in kinds), default=0)
        if job.least_devices > most:
            kind = " or ".join(job.device_types) or "one type"
            raise FleetError(
                f"job {job.name!r} asks for {job.least_devices} devices of {kind}; cluster {site.name!r} has {most}. "
                "Take a larger cluster, or leave the job out"
            )
        self.books.add(job, now_s, site.type_bits(job.device_types))

    def apply(self, rows: Ints, targets: Targets, now_s: float) -> list[int]:
        """Refuse and stop what is not to run, then start what is, most urgent first.

        Parameters
        ----------
        rows : of the snapshot that the targets are for.

        Returns
        -------
        Rows of the jobs that got devices, or others than they had, or another speed.

        Raises
        ------
        FleetError
            If the targets give a device twice, or more of it than there is.
        """
        self.changed = []
        for number, reason in targets.refused.items():
            self._refuse(int(rows[number]), reason, now_s)
        wanted = rows[targets.order]
        runs, same = self._runs_and_stays(wanted, targets)
        if self.preempts:
            keep = np.zeros(len(self.books.held), np.bool_)
            keep[wanted[runs]] = True
            for row in rows[~keep[rows] & (self.books.held[rows] > 0)].tolist():
                self.stop(row, now_s)
        starting = np.nonzero(runs & ~same)[0].tolist()
        moving = [p for p in starting if self.books.held[wanted[p]]]
        for place in moving:
            self._pause(int(wanted[place]), now_s)
        for place in starting:
            if not self._place(int(wanted[place]), place, targets, now_s) and not targets.backfill:
                break
        if targets.devices is not None:
            whole = _whole(targets)
            if not (whole and self.whole):
                self._share(wanted, targets, now_s)
            self.whole = whole
        self.notes.in_use(now_s, self.site.num_devices - self.free.total)
        return self.changed

    def _runs_and_stays(self, wanted: Ints, targets: Targets) -> tuple[Bools, Bools]:
        """Which entries of the order run, and which of those have already what they are to have."""
        books = self.books
        if targets.devices is not None:
            runs = np.array([len(devices) > 0 for devices in targets.devices], np.bool_)
            grants = [books.grants[row] for row in wanted.tolist()]
            pairs = zip(grants, targets.devices, strict=True)
            return runs, np.array([g is not None and g.devices == d for g, d in pairs], np.bool_)
        counts = books.num_devices[wanted] if targets.num_devices is None else targets.num_devices
        kinds = _ANY[: len(wanted)] if targets.device_type is None else targets.device_type
        if len(kinds) < len(wanted):
            kinds = np.full(len(wanted), -1)
        room = self.site.devices_of_type if self.preempts else self.free.by_type
        same = books.held[wanted] == counts
        if targets.device_type is not None:
            same &= books.held_type[wanted] == kinds
        return chosen(counts, kinds, books.allowed[wanted], room, targets.backfill), same

    def _place(self, row: int, place: int, targets: Targets, now_s: float) -> bool:
        """Give a job devices; False if there is no place for it."""
        if targets.devices is not None:
            devices = targets.devices[place]
            self.free.take_these(devices)
        else:
            counts = targets.num_devices
            wanted = int(self.books.num_devices[row] if counts is None else counts[place])
            kind = -1 if targets.device_type is None else int(targets.device_type[place])
            how = self.how
            if targets.consolidate is not None:
                how = consolidated if targets.consolidate[place] else anywhere
            found = self.free.find(wanted, kind, how, int(self.books.allowed[row]))
            if found is None:
                if self.books.grants[row] is not None:
                    self._lose(row, now_s)
                return False
            devices = self.free.take(found)
        self._start(row, _granted(devices, place, targets), now_s)
        return True

    def take_over(self, row: int, grant: Grant, now_s: float) -> None:
        """Note that a job has devices already."""
        self.free.take_these(grant.devices)
        self._start(row, grant, now_s)

    def _start(self, row: int, grant: Grant, now_s: float) -> None:
        books = self.books
        again = not np.isnan(books.first_start_s[row])
        restart_s = self.costs.restart_s if again else self.costs.start_s
        self._grant(row, grant, now_s, restart_s)
        books.num_starts[row] += 1
        books.placed_s[row] = now_s
        books.held_type[row] = self.site.type_of_node[self.site.node_of[grant.devices[0]]]
        self.changed.append(row)

    def _grant(self, row: int, grant: Grant, now_s: float, restart_s: float) -> None:
        """Write a grant down, with the speed that it gives."""
        profile = self.job(row).profile
        if isinstance(profile, Adaptive):
            self.books.grant(row, grant, 0.0, now_s, restart_s)
            self._adapt(row)
            self.adaptive.add(row)
        else:
            self.books.grant(row, grant, profile.work_per_s(self._spot(grant), grant), now_s, restart_s)

    def _spot(self, grant: Grant) -> Spot:
        counts: dict[int, int] = {}
        for device in grant.devices:
            node = self.free.node_of[device]
            counts[node] = counts.get(node, 0) + 1
        kind = self.site.hosts[node].device_type
        return Spot(kind, len(grant.devices), len(counts), tuple(counts.values()))

    def _adapt(self, row: int) -> None:
        books, job, grant = self.books, self.job(row), self.books.grants[row]
        assert isinstance(job.profile, Adaptive)
        assert grant is not None
        done = job.work - float(books.left[row])
        books.adapt(row, job.profile.pace(self._spot(grant), grant, done, books.reports[row]))

    def hear(self, now_s: float) -> list[int]:
        """Let the running jobs that adapt themselves do so, and report; those that still restart have nothing to say.

        Returns
        -------
        Their rows.
        """
        rows = sorted(row for row in self.adaptive if self.books.since_s[row] < now_s)
        for row in rows:
            self._report(row, now_s)
            self._adapt(row)
        return rows

    def _report(self, row: int, now_s: float) -> None:
        """What a job did until now, and what it knows since."""
        pace = self.books.paces[row]
        self.books.settle(row, now_s)
        if pace is not None:
            self.books.reports[row] = pace.report

    def _share(self, wanted: Ints, targets: Targets, now_s: float) -> None:
        """Note who shares devices with whom, and how fast that lets them be; shares change without a restart."""
        assert targets.devices is not None
        tenants: dict[int, list[int]] = {}
        for row, devices in zip(wanted.tolist(), targets.devices, strict=True):
            for device in devices:
                tenants.setdefault(device, []).append(row)
        for place, (row, devices) in enumerate(zip(wanted.tolist(), targets.devices, strict=True)):
            if not devices:
                continue
            others = {other for device in devices for other in tenants[device]} - {row}
            partners = tuple(sorted(self.job(other).name for other in others))
            grant = replace(_granted(devices, place, targets), partners=partners)
            if self.books.grants[row] != grant:
                restarting_s = max(0.0, self.books.since_s[row] - now_s)
                self._grant(row, grant, now_s, restarting_s)
                self.changed.append(row)
        self._check_shares(tenants)

    def _check_shares(self, tenants: dict[int, list[int]]) -> None:
        for device, rows in tenants.items():
            total = sum(grant.share for row in rows if (grant := self.books.grants[row]) is not None)
            if total > 1.0 + 1e-9:
                names = ", ".join(self.job(row).name for row in rows)
                raise FleetError(
                    f"the policy gives device {device} out {total:g} times, to jobs {names}; the shares of one device "
                    "add up to at most 1"
                )

    def job(self, row: int) -> Job:
        """The job of a row."""
        job = self.books.jobs[row]
        assert job is not None
        return job

    def stop(self, row: int, now_s: float) -> None:
        """Take a job's devices away; it waits."""
        self._pause(row, now_s)
        self._lose(row, now_s)

    def _lose(self, row: int, now_s: float) -> None:
        self.books.release(row, now_s)
        self.books.num_preempted[row] += 1

    def _pause(self, row: int, now_s: float) -> None:
        """Devices are free again; on the books the job is as it was until it has others."""
        grant = self.books.grants[row]
        assert grant is not None
        placed_s = float(self.books.placed_s[row])
        if self.notes.spans is not None and now_s > placed_s:
            self.notes.spans.append(Span(self.job(row).name, placed_s, now_s, grant.devices))
        self.free.give(grant.devices)
        self.adaptive.discard(row)

    def finish(self, row: int, now_s: float) -> bool:
        """A job has done its work, or comes to where it changes its pace; whether it has ended."""
        books, job = self.books, self.job(row)
        if books.turn[row] > 0:
            self._report(row, now_s)
            books.left[row] = books.turn[row]
            self._adapt(row)
            return False
        self._pause(row, now_s)
        books.release(row, now_s)
        self.notes.in_use(now_s, self.site.num_devices - self.free.total)
        self.notes.ended(
            job.name,
            job.virtual_cluster,
            (
                job.arrival_s,
                books.first_start_s[row],
                now_s,
                books.attained_device_s[row],
                books.num_preempted[row],
                float("inf") if job.deadline_s is None else job.deadline_s,
            ),
        )
        books.remove(row)
        return True

    def _refuse(self, row: int, reason: str, now_s: float) -> None:
        job = self.job(row)
        if self.books.grants[row] is not None:
            self.stop(row, now_s)
        self.notes.refused.append((job.name, reason))
        self.books.remove(row)


_ANY = np.full(4096, -1)


def _whole(targets: Targets) -> bool:
    """Whether jobs get devices for themselves alone, and nothing else."""
    extras = (targets.share, targets.batch_size, targets.cpus, targets.memory_bytes)
    given = [device for devices in targets.devices or () for device in devices]
    return all(extra is None for extra in extras) and len(set(given)) == len(given)


def _granted(devices: tuple[int, ...], place: int, targets: Targets) -> Grant:
    return Grant(
        devices,
        1.0 if targets.share is None else float(targets.share[place]),
        0 if targets.batch_size is None else int(targets.batch_size[place]),
        0.0 if targets.cpus is None else float(targets.cpus[place]),
        0.0 if targets.memory_bytes is None else float(targets.memory_bytes[place]),
    )
