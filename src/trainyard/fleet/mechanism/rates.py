"""Rates of jobs on their devices, from profiles, chance, and other jobs on the same nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from trainyard.fleet.jobs.job_table import Bools, Ints, JobTable
from trainyard.fleet.mechanism import transitions
from trainyard.fleet.mechanism.crowding import Crowding
from trainyard.fleet.mechanism.hazards import Fate
from trainyard.fleet.mechanism.seen_rates import SeenRates
from trainyard.fleet.workload.job import Adaptive, Grant, Spot, spot_of
from trainyard.hardware.cluster import Cluster


class Rates:
    """Keeps the rates in the job table right while jobs start, adapt themselves and crowd each other.

    Attributes
    ----------
    are_uneven : whether jobs may run slower than their profiles say.
    adaptive : rows of the running jobs that adapt themselves.
    """

    def __init__(self, cluster: Cluster, table: JobTable, fate: Fate, crowding: Crowding) -> None:
        self.cluster, self.table, self.fate, self.crowding = cluster, table, fate, crowding
        self._node_of: list[int] = cluster.node_of.tolist()
        self.are_uneven = fate.hazards.straggler_share > 0 or crowding.is_there
        # Where they do, the parts of its speed that a running job has, as a straggler and beside the others.
        self._drawn: dict[int, float] = {}
        self._crowded: dict[int, float] = {}
        self.adaptive: set[int] = set()
        self._seen = SeenRates(cluster, table)

    def started(self, started: Ints, whole: bool) -> None:
        """Find out how fast jobs run that have just started.

        Parameters
        ----------
        whole : whether their grants are of whole devices and say nothing else.
        """
        if self.are_uneven:
            for row in started.tolist():
                self._drawn[row], self._crowded[row] = self.fate.speed(), 1.0
        may_be_seen = whole and not self.are_uneven
        rows = (self._seen.run(started) if may_be_seen else started).tolist()
        for row in rows:
            grant = self.table.grants[row]
            assert grant is not None
            transitions.run(self.table.data, row, self._rate(row, grant))
        self.adapt(rows)
        if may_be_seen and rows:
            self._seen.note(np.array([row for row in rows if row not in self.adaptive], np.int64))

    def left(self, rows: Ints) -> None:
        """Jobs have lost their devices, or ended."""
        if self.adaptive:
            self.adaptive.difference_update(rows.tolist())

    def regranted(self, row: int, grant: Grant, now_s: float) -> None:
        """A job goes on with the devices that it has, at another rate."""
        transitions.settle(self.table.data, row, now_s)
        self.table.grants[row] = grant
        transitions.run(self.table.data, row, self._rate(row, grant))
        self.adapt([row])

    def spot(self, grant: Grant) -> Spot:
        """Return the locality of a grant."""
        nodes = [self._node_of[device] for device in grant.devices]
        counts = (len(nodes),) if nodes[0] == nodes[-1] else tuple(Counter(nodes).values())
        return spot_of(self.cluster.nodes[nodes[-1]].device_type, counts)

    def _rate(self, row: int, grant: Grant) -> float:
        """Work per second; of a job that adapts itself it is found out later."""
        profile = self.table.job(row).profile
        if isinstance(profile, Adaptive):
            return 0.0
        return self._part(row) * profile.work_per_s(self.spot(grant), self._felt(grant))

    def _felt(self, grant: Grant) -> Grant:
        """A grant as the job feels it: where nobody divides devices, as if it had them alone."""
        return grant._replace(share=1.0) if self.crowding.only_places and grant.share != 1.0 else grant

    def _part(self, row: int) -> float:
        return self._drawn[row] * self._crowded[row] if self.are_uneven else 1.0

    def adapt(self, rows: Sequence[int]) -> None:
        """Adapt the jobs that tune themselves to the devices that they have now."""
        for row in rows:
            if isinstance(self.table.job(row).profile, Adaptive):
                self._adapt(row)
                self.adaptive.add(row)

    def _adapt(self, row: int) -> None:
        table, job, grant = self.table, self.table.job(row), self.table.grants[row]
        assert isinstance(job.profile, Adaptive)
        assert grant is not None
        done = job.work - float(table.left[row])
        rate = job.profile.rate(self.spot(grant), self._felt(grant), done, table.reports[row])
        if self._part(row) != 1.0:
            rate = replace(rate, work_per_s=self._part(row) * rate.work_per_s)
        table.adaptive_rates[row] = rate
        left = max(0.0, job.work - rate.until)
        transitions.run_until(table.data, row, float(rate.work_per_s), left)

    def hear(self, now_s: float, has: Bools) -> list[int]:
        """Let the running jobs that adapt themselves report and do so; those that still restart have nothing to say.

        Parameters
        ----------
        has : by partition, whether its jobs are heard.

        Returns
        -------
        Their rows.
        """
        if not self.adaptive:
            return []
        since_s, partition = self.table.since_s, self.table.partition
        rows = sorted(row for row in self.adaptive if since_s[row] < now_s and has[partition[row]])
        self.hear_from(rows, now_s)
        return rows

    def hear_from(self, rows: Iterable[int], now_s: float) -> None:
        """Let some of the jobs that adapt themselves report, and do so."""
        for row in rows:
            self._report(row, now_s)
            self._adapt(row)

    def turn(self, row: int, now_s: float) -> None:
        """A job comes to where it changes its rate by itself."""
        self._report(row, now_s)
        self.table.left[row] = self.table.turn[row]
        self._adapt(row)

    def _report(self, row: int, now_s: float) -> None:
        """Note the work that a job did until now, and its latest report."""
        rate = self.table.adaptive_rates.get(row)
        transitions.settle(self.table.data, row, now_s)
        if rate is not None:
            self.table.reports[row] = rate.report

    def crowd(self, now_s: float) -> list[int]:
        """Let jobs that run slow each other as much as they do now.

        Returns
        -------
        Rows of those that go on at another rate.
        """
        node_of = self._node_of
        running = [(row, grant) for row in self.table.active.tolist() if (grant := self.table.grants[row])]
        used = Counter(node_of[device] for device in {d for _, grant in running for d in grant.devices})
        changed = []
        for row, grant in running:
            own = Counter(node_of[device] for device in grant.devices)
            part = min(self.crowding.speed(own[node], used[node]) for node in own)
            if part != self._crowded[row]:
                # What it takes to start is work, too.
                transitions.stretch_start(self.table.data, row, now_s, self._crowded[row] / part)
                self._crowded[row] = part
                self.regranted(row, grant, now_s)
                changed.append(row)
        return changed
