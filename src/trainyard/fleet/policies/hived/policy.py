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
and jobs that go on without a guarantee when one of higher priority takes their cells ("lazy preemption"). Preemption
takes no time here, so what the program does while it waits for jobs to stop has no counterpart. Cells of nodes that are
away are not bound until these are back; which nodes a single job may have, as Kubernetes suggests to the program, nobody
says here. A job that does not fit in its virtual cluster even when that is empty is refused; there it waits for ever. A
job on a node that a new configuration no longer has starts anew; there it runs on, and is not counted.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.fleet.allocation import Allocation, Placed
from trainyard.fleet.policies.hived.bindings import OPPORTUNISTIC, Bindings, Bound
from trainyard.fleet.policies.hived.config import read_hived
from trainyard.fleet.policies.hived.request import HIGHEST, Request
from trainyard.fleet.policies.hived.virtual import Ints, Layout, Quotas
from trainyard.fleet.site import FleetError, Site
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.fleet.traits import Traits


@dataclass(frozen=True, eq=False)
class State:
    """What is remembered.

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
    layout : cells and virtual clusters. By default nodes and what halving makes of them, of the site that it runs on.
    quotas : of that default: (virtual cluster, devices of a cell, cells). Without any, all jobs are of one.
    """

    layout: Layout | None = None
    quotas: Quotas = ()
    needs: frozenset[Need] = field(default=frozenset(), init=False)
    preempts: bool = field(default=True, init=False)

    @property
    def traits(self) -> Traits:
        """Cells are gangs, and may be pinned."""
        return Traits(places=True, heeds=frozenset({"gang", "pinned cell"}))

    def start(self, site: Site) -> State:
        """No job is known.

        Raises
        ------
        FleetError
            If the layout is of another cluster.
        """
        layout = self.layout or Layout.of_site(site, self.quotas)
        shapes = [[(h.device_type, h.num_devices) for h in s.hosts] for s in (layout.site, site)]
        if shapes[0] != shapes[1]:
            raise FleetError(
                f"the virtual clusters are on {layout.site.name!r} ({layout.site.num_devices} devices), the jobs on "
                f"{site.name!r} ({site.num_devices} devices); take the `site` of the layout"
            )
        return State(Bound.none(layout), {}, frozenset(), {})

    def decide(self, snapshot: Snapshot, state: State) -> tuple[Allocation, State]:
        """Whoever runs goes on, unless one with a better right wants its cells."""
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
    """One decision."""

    def __init__(self, snapshot: Snapshot, state: State) -> None:
        self.snapshot, self.layout = snapshot, state.bound.layout
        self.lost = ~snapshot.site.is_usable[self.layout.device_at]
        self.books, self.possible = Bindings(state.bound, self.lost), set(state.possible)
        self.failed = dict(state.failed) if state.away == snapshot.site.away else {}
        self.serials: list[int] = snapshot.serial.tolist()
        self.number = {serial: i for i, serial in enumerate(self.serials)}
        known = state.requests
        for serial, held in list(self.books.jobs.items()):
            if serial not in self.number or self.lost[list(held.places)].any():
                self.books.end(serial)
                self._freed(known[serial])
        self.requests = {
            serial: known.get(serial) or Request.of(snapshot.job(i), self.layout)
            for i, serial in enumerate(self.serials)
        }

    def made(self) -> tuple[Allocation, State]:
        """Jobs that wait are tried in order of priority, then of arrival; one that does not fit holds up nobody."""
        running = [
            (-self.requests[self.serials[i]].priority, i)
            for i in np.flatnonzero(self.snapshot.is_running).tolist()
            if self.serials[i] not in self.books.jobs
        ]
        for _, i in sorted(running):
            self._adopt(i)
        waiting = [
            (-r.priority, serial) for serial, r in self.requests.items() if serial not in self.books.jobs
        ]
        heapq.heapify(waiting)
        reasons: dict[int, str] = {}
        refused: dict[int, str] = {}
        while waiting:
            serial = heapq.heappop(waiting)[1]
            request = self.requests[serial]
            reason = self.failed.get(request)
            if reason is None:
                reason = self.failed[request] = self._try(serial, request, waiting)
                if not reason:
                    del self.failed[request]
                    continue
            (reasons if request in self.possible else refused)[self.number[serial]] = reason
        order = sorted(self.number[serial] for serial in self.books.jobs)
        devices = [self.books.jobs[self.serials[i]].devices for i in order]
        allocation = Allocation(
            Placed(np.array(order, np.int64), devices),
            reasons=reasons,
            refused=refused,
        )
        state = State(
            self.books.frozen(), self.requests, frozenset(self.possible), self.failed, self.snapshot.site.away
        )
        return allocation, state

    def _freed(self, request: Request) -> None:
        """A job with such a request has left: others of its virtual cluster, or opportunistic ones, may fit now."""
        if self.lost.any():
            self.failed = {}  # it may have been on one of the cells that are left for anybody
            return
        self.failed = {r: why for r, why in self.failed.items() if r.is_guaranteed and r.part != request.part}

    def _try(self, serial: int, request: Request, waiting: list[tuple[int, int]]) -> str:
        """Place a job; those that have to leave wait. Returns why not, if not."""
        if request not in self.possible:
            wrong = request.impossible(self.layout)
            if wrong:
                return wrong
            self.possible.add(request)
        if not request.is_guaranteed:
            places = request.fit(self.layout, np.where(self.lost, HIGHEST, self.books.priority))
            if places is None:
                return f"the cluster has no idle {request.cells}"
            self.books.start(serial, places, OPPORTUNISTIC)
            return ""
        blocked = np.zeros(self.layout.first_virtual[-1], np.bool_)
        while True:
            taken = np.where(blocked, HIGHEST, self.books.virtual_priority())
            virtual = request.fit(self.layout, taken)
            if virtual is None:
                there = " on nodes that are there" if blocked.any() else ""
                return f"virtual cluster {request.owner!r} has no free {request.cells}{there}"
            lost = self._bind(serial, request, virtual, waiting)
            if not len(lost):
                return ""
            # These would come to lie on lost nodes: try without them.
            blocked |= np.isin(self.layout.virtual_node, self.layout.virtual_node[lost])

    def _bind(
        self, serial: int, request: Request, virtual: list[int], waiting: list[tuple[int, int]]
    ) -> Ints:
        """Give a job virtual places, unless some would come to lie on lost ones; returns those."""
        before = Bindings(self.books.frozen(), self.lost) if self.lost.any() else self.books
        left: list[int] = []
        for other in self.books.holders(virtual):
            self._freed(self.requests[other])
            if self.snapshot.job(self.number[other]).yields:
                self.books.give_up(other)
            else:
                self.books.end(other)
                left.append(other)
        left += self.books.guarantee(serial, virtual, request.priority)
        lost: Ints = np.array(virtual)[self.lost[list(self.books.jobs[serial].places)]]
        if len(lost):
            self.books = before
            return lost
        for other in left:
            self._freed(self.requests[other])
            heapq.heappush(waiting, (-self.requests[other].priority, other))
        return lost

    def _adopt(self, i: int) -> None:
        """A job that another policy started, or this one under other virtual clusters, goes on where it is.

        Its guarantee it keeps only if its virtual cluster has the cells.
        """
        serial, grant = self.serials[i], self.snapshot.grants[i]
        assert grant is not None
        request = self.requests[serial]
        place_of = self.layout.device_at.argsort()
        places = sorted(place_of[list(grant.devices)].tolist())
        if np.any(self.books.holder[places] >= 0):
            return
        mine = [n for n, cell in enumerate(self.layout.virtual_cells) if request.can_use(cell, self.layout)]
        kept = None
        if request.is_guaranteed:
            kept = self.books.adopted(serial, places, request.priority, mine)
        if kept is None:
            self.books.start(serial, places, OPPORTUNISTIC)
        else:
            self.books = kept
