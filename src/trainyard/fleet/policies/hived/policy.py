"""HiveD: virtual clusters whose cells are as good as a cluster of their own.

References
----------
H. Zhao et al., "HiveD: Sharing a GPU Cluster for Deep Learning with Guarantees", OSDI 2020. Section 3: virtual clusters
of cells; cells are bound when they are used (algorithm 1); opportunistic jobs on what is idle, which leave when a
guaranteed job comes; priorities in a virtual cluster.

Fidelity: simplified

Notes
-----
The scheduler inside a virtual cluster is the one of the authors' program, with its pinned cells, its gangs of workers,
and jobs that go on without a guarantee when one of higher priority takes their cells ("lazy preemption"). As there, a job
takes cells of jobs of lower priority in the order of the cells, whichever of these jobs is the least urgent; one that has
to leave may take cells of a less urgent one, which leaves, too. Preemption takes no time here, so what the program does
while it waits for jobs to stop has no counterpart. Cells of nodes that are away are not bound until these are back; which
nodes a single job may have, as Kubernetes suggests to the program, nobody says here. A job that does not fit in its
virtual cluster even when that is empty is refused; there it waits for ever. A job on a node that a new configuration no
longer has starts anew; there it runs on, and is not counted.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.fleet.allocation import Allocation, Placed
from trainyard.fleet.errors import FleetError
from trainyard.fleet.policies.hived.bindings import OPPORTUNISTIC, Bindings, Bound
from trainyard.fleet.policies.hived.config import read_hived
from trainyard.fleet.policies.hived.request import HIGHEST, Request
from trainyard.fleet.policies.hived.virtual import Ints, Layout, Quotas
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.fleet.traits import Traits
from trainyard.hardware.cluster import Cluster


@dataclass(frozen=True, eq=False)
class State:
    """Memory from one decision to the next.

    Attributes
    ----------
    bound : virtual cells and jobs.
    requests : of all jobs, by serial number.
    possible : requests that fit when nobody else is there.
    failed : requests that did not fit, and why; nothing that they could use has been freed since.
    away : nodes that could not be used.
    """

    bound: Bound
    requests: Mapping[int, Request]
    possible: frozenset[Request]
    failed: Mapping[Request, str]
    away: frozenset[int] = frozenset()


@dataclass(frozen=True)
class HiveD:
    """The policy.

    Attributes
    ----------
    layout : cells and virtual clusters. By default nodes and what halving makes of them, of the cluster that it runs on.
    quotas : of that default: (virtual cluster, devices of a cell, cells). Without any, all jobs are of one.
    """

    layout: Layout | None = None
    quotas: Quotas = ()
    needs: frozenset[Need] = field(default=frozenset({"guaranteed", "priority"}), init=False)
    preempts: bool = field(default=True, init=False)

    @property
    def traits(self) -> Traits:
        """Cells are gangs, and may be pinned."""
        return Traits(places=True, supports=frozenset({"gang", "pinned cell"}))

    def start(self, cluster: Cluster) -> State:
        """No job is known.

        Raises
        ------
        FleetError
            If the layout is of another cluster.
        """
        layout = self.layout or Layout.of_cluster(cluster, self.quotas)
        shapes = [[(n.device_type, n.num_devices) for n in c.nodes] for c in (layout.cluster, cluster)]
        if shapes[0] != shapes[1]:
            raise FleetError(
                f"the virtual clusters are on {layout.cluster.name!r} ({layout.cluster.num_devices} devices), the jobs "
                f"on {cluster.name!r} ({cluster.num_devices} devices); take the `cluster` of the layout"
            )
        return State(Bound.none(layout), {}, frozenset(), {})

    def decide(self, snapshot: Snapshot, state: State) -> tuple[Allocation, State]:
        """Let running jobs go on unless a job with a better right wants their cells."""
        return _Decision(snapshot, state).made()


def hived(config: str = "", quotas: Quotas = ()) -> HiveD:
    """The policy, from a configuration file of HiveD or OpenPAI, or from quotas on the nodes of any cluster.

    Raises
    ------
    FleetError
        If the file cannot be read, both are given, or quotas are something else.
    """
    if not (isinstance(quotas, tuple) and all(map(_is_quota, quotas))):
        raise FleetError(
            f"quotas of hived are tuples of a virtual cluster, devices of a cell, and cells, such as (('a', 8, 1),); got "
            f"{quotas!r}"
        )
    if config and quotas:
        raise FleetError(
            "the configuration says which virtual clusters there are; give `config` or `quotas`, not both"
        )
    return HiveD(read_hived(Path(config)) if config else None, quotas)


def _is_quota(value: Any) -> bool:
    if not (isinstance(value, tuple) and len(value) == 3 and isinstance(value[0], str)):
        return False
    return all(type(number) is int and number > 0 for number in value[1:])


class _Decision:
    """One decision: take back the cells of jobs that left, let running jobs go on, and try the waiting ones."""

    def __init__(self, snapshot: Snapshot, state: State) -> None:
        self.snapshot, self.layout = snapshot, state.bound.layout
        self.lost = ~snapshot.cluster.is_usable[self.layout.device_at]
        self.bindings, self.possible = Bindings(state.bound, self.lost), set(state.possible)
        self.failed = dict(state.failed) if state.away == snapshot.cluster.away else {}
        self.serials: list[int] = snapshot.serial.tolist()
        self.number = {serial: i for i, serial in enumerate(self.serials)}
        self._end_those_that_left(state.requests)
        self.requests = {
            serial: state.requests.get(serial) or Request.of(snapshot.job(i), self.layout)
            for i, serial in enumerate(self.serials)
        }
        self.waiting: list[tuple[int, int]] = []  # a heap: of higher priority first, then by arrival

    def made(self) -> tuple[Allocation, State]:
        """Return the allocation and the memory for the next decision."""
        for i in self._running_elsewhere():
            self._adopt(i)
        reasons, refused = self._try_waiting()
        order = sorted(self.number[serial] for serial in self.bindings.jobs)
        devices = [self.bindings.jobs[self.serials[i]].devices for i in order]
        placed = Placed(np.array(order, np.int64), devices)
        allocation = Allocation(placed, reasons=reasons, refused=refused)
        bound, away = self.bindings.frozen(), self.snapshot.cluster.away
        return allocation, State(bound, self.requests, frozenset(self.possible), self.failed, away)

    def _end_those_that_left(self, requests: Mapping[int, Request]) -> None:
        """Jobs that ended, and those that were on nodes that are lost."""
        for serial, held in list(self.bindings.jobs.items()):
            if serial not in self.number or self.lost[list(held.places)].any():
                self.bindings.end(serial)
                self._freed(requests[serial])

    def _running_elsewhere(self) -> list[int]:
        """Numbers of jobs that run, and not because this policy said so: of higher priority first, then by arrival."""
        running = np.flatnonzero(self.snapshot.is_running).tolist()
        unknown = [i for i in running if self.serials[i] not in self.bindings.jobs]
        return sorted(unknown, key=lambda i: (-self.requests[self.serials[i]].priority, i))

    def _try_waiting(self) -> tuple[dict[int, str], dict[int, str]]:
        """Jobs that wait are tried in order of priority, then of arrival; one that does not fit holds up nobody.

        Returns
        -------
        Why jobs still wait, and why others will never run, by their numbers.
        """
        for serial in self.requests.keys() - self.bindings.jobs.keys():
            self._wait(serial)
        reasons: dict[int, str] = {}
        refused: dict[int, str] = {}
        while self.waiting:
            serial = heapq.heappop(self.waiting)[1]
            request = self.requests[serial]
            if request not in self.failed:
                reason = self._place(serial, request)
                if not reason:
                    continue
                self.failed[request] = reason
            told = reasons if request in self.possible else refused
            told[self.number[serial]] = self.failed[request]
        return reasons, refused

    def _wait(self, serial: int) -> None:
        heapq.heappush(self.waiting, (-self.requests[serial].priority, serial))

    def _freed(self, request: Request) -> None:
        """A job with such a request has left: others of its virtual cluster, or opportunistic ones, may fit now."""
        if self.lost.any():
            self.failed = {}  # it may have been on one of the cells that are left for anybody
            return
        self.failed = {r: why for r, why in self.failed.items() if r.is_guaranteed and r.part != request.part}

    def _place(self, serial: int, request: Request) -> str:
        """Find cells for a job; those that have to leave them wait. Returns why there are none, if so."""
        if request not in self.possible:
            wrong = request.impossible(self.layout)
            if wrong:
                return wrong
            self.possible.add(request)
        if request.is_guaranteed:
            return self._place_guaranteed(serial, request)
        places = request.fit(self.layout, np.where(self.lost, HIGHEST, self.bindings.priority))
        if places is None:
            return f"the cluster has no idle {request.cells}"
        self.bindings.start(serial, places, OPPORTUNISTIC)
        return ""

    def _place_guaranteed(self, serial: int, request: Request) -> str:
        """Place a job in its virtual cluster, whose cells are bound to physical ones (algorithm 1)."""
        blocked = np.zeros(self.layout.first_virtual[-1], np.bool_)
        while True:
            taken = np.where(blocked, HIGHEST, self.bindings.virtual_priority())
            virtual = request.fit(self.layout, taken)
            if virtual is None:
                there = " on nodes that are there" if blocked.any() else ""
                return f"virtual cluster {request.owner!r} has no free {request.cells}{there}"
            lost = self._bind(serial, request, virtual)
            if not len(lost):
                return ""
            # These would come to lie on lost nodes: try without them.
            blocked |= np.isin(self.layout.virtual_node, self.layout.virtual_node[lost])

    def _bind(self, serial: int, request: Request, virtual: list[int]) -> Ints:
        """Give a job virtual places, unless some would come to lie on lost ones; returns those."""
        before = Bindings(self.bindings.frozen(), self.lost) if self.lost.any() else self.bindings
        left = self._preempt(virtual)
        left += self.bindings.guarantee(serial, virtual, request.priority)
        lost: Ints = np.array(virtual)[self.lost[list(self.bindings.jobs[serial].places)]]
        if len(lost):
            self.bindings = before
            return lost
        for other in left:
            self._freed(self.requests[other])
            self._wait(other)
        return lost

    def _preempt(self, virtual: list[int]) -> list[int]:
        """Take virtual places from jobs of lower priority: some go on without a guarantee, the rest, returned, leave."""
        left: list[int] = []
        for other in self.bindings.holders(virtual):
            self._freed(self.requests[other])
            if self.snapshot.job(self.number[other]).yields:
                self.bindings.give_up(other)
            else:
                self.bindings.end(other)
                left.append(other)
        return left

    def _adopt(self, i: int) -> None:
        """A job that another policy started, or this one under other virtual clusters, goes on where it is.

        Its guarantee it keeps only if its virtual cluster has the cells.
        """
        serial, grant = self.serials[i], self.snapshot.grants[i]
        assert grant is not None
        request = self.requests[serial]
        place_of = self.layout.device_at.argsort()
        places = sorted(place_of[list(grant.devices)].tolist())
        if np.any(self.bindings.holder[places] >= 0):
            return
        mine = [n for n, cell in enumerate(self.layout.virtual_cells) if request.can_use(cell, self.layout)]
        kept = None
        if request.is_guaranteed:
            kept = self.bindings.adopted(serial, places, request.priority, mine)
        if kept is None:
            self.bindings.start(serial, places, OPPORTUNISTIC)
        else:
            self.bindings = kept
