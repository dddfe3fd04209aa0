"""Rates that jobs had on devices that lay alike: asked for once, since policies move jobs to and fro all the time."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainyard.compiling import compiled
from trainyard.fleet.jobs.job_table import Ints, JobTable
from trainyard.fleet.mechanism.transitions import run
from trainyard.hardware.cluster import Cluster

_UNEVEN = -1
_NODES = 1 << 32
"""How devices lie that are as many on each of some nodes is one number: so many times the nodes, and those of one."""


class SeenRates:
    """The last rate of every job on every type of device, and how these lay; whole devices and nothing else."""

    def __init__(self, cluster: Cluster, table: JobTable) -> None:
        self.table = table
        self._node_of, self._kind_of = cluster.node_of, cluster.type_of_node[cluster.node_of]
        # Whose they are, by row: another job may have it by now.
        self._serial = np.zeros(0, np.int64)
        self._lay = np.zeros((len(cluster.device_types), 0), np.int64)
        self._rate = np.zeros(self._lay.shape)

    def run(self, rows: Ints) -> Ints:
        """Let jobs that have just started run as fast as they did before; returns rows of the others."""
        found = np.empty(len(rows), np.int64)
        return found[: _run(rows, found, *self._tables())]

    def note(self, rows: Ints) -> None:
        """How fast jobs run now."""
        _note(rows, *self._tables())

    def _tables(self) -> tuple[Any, ...]:
        table = self.table
        more = len(table.serial) - len(self._serial)
        if more:
            self._serial = np.append(self._serial, np.full(more, -1))
            self._lay = np.pad(self._lay, ((0, 0), (0, more)))
            self._rate = np.pad(self._rate, ((0, 0), (0, more)))
        places = table.grants.devices, self._node_of, self._kind_of
        return table.data, *places, self._serial, self._lay, self._rate


@compiled
def _run(rows, found, table, written, node_of, kind_of, serial, lay, rate):  # type: ignore[no-untyped-def]
    num = 0
    for row in rows:
        job = table[row]
        kind = job.held_type
        if serial[row] == job.serial and lay[kind, row] == _lie(row, table, written, node_of, kind_of):
            run(table, row, rate[kind, row])
        else:
            found[num] = row
            num += 1
    return num


@compiled
def _note(rows, table, written, node_of, kind_of, serial, lay, rate):  # type: ignore[no-untyped-def]
    for row in rows:
        job = table[row]
        if serial[row] != job.serial:
            serial[row], lay[:, row] = job.serial, 0
        how = _lie(row, table, written, node_of, kind_of)
        if how != _UNEVEN:
            lay[job.held_type, row], rate[job.held_type, row] = how, job.rate


@compiled
def _lie(row, table, written, node_of, kind_of):  # type: ignore[no-untyped-def]
    """How a job's devices lie, if they are of one type, and as many on each of its nodes, in the order of these."""
    first, count = table[row].first_device, table[row].held
    nodes = 1
    for i in range(first + 1, first + count):
        if kind_of[written[i]] != kind_of[written[first]]:
            return _UNEVEN
        nodes += node_of[written[i]] != node_of[written[i - 1]]
    each = count // nodes
    if each * nodes != count:
        return _UNEVEN
    for i in range(first, first + count):
        start = i - (i - first) % each
        later = start > first and node_of[written[start]] <= node_of[written[start - 1]]
        if later or node_of[written[i]] != node_of[written[start]]:
            return _UNEVEN
    return nodes * _NODES + each
