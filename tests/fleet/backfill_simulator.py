"""A simulator of backfilling that shares nothing with the product: slow, small, and easy to check by reading it.

Nodes are numbers of free devices. A plan is a list of stays: from when until when so many devices of each node are taken.
A moment after now, `_SOON`, is when jobs beyond their limits are taken to end: until then they hold their devices.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

INF = float("inf")
_SOON = 2.0**-20


class Closed(NamedTuple):
    """Nodes that only one user may have for a time; "" for nobody."""

    from_s: float
    until_s: float
    nodes: frozenset[int]
    user: str


class Stay(NamedTuple):
    from_s: float
    until_s: float
    on: list[int]


@dataclass
class Asked:
    """A job, and what became of it."""

    number: int
    arrival_s: float
    size: int
    length_s: float
    limit_s: float
    priority: int = 0
    user: str = ""
    start_s: float = INF
    on: list[int] = field(default_factory=list)

    @property
    def end_s(self) -> float:
        return self.start_s + self.length_s


@dataclass
class Shop:
    """A cluster of equal nodes, and how jobs are placed on it."""

    nodes: int
    width: int
    by_node: bool
    closed: list[Closed]

    def place(self, free: list[int], size: int) -> list[int] | None:
        """Whole nodes and the fullest for the rest, or the fullest that suffices and else the emptiest ones."""
        taken = [0] * self.nodes
        if self.by_node:
            whole, size = divmod(size, self.width)
            for node in [node for node in range(self.nodes) if free[node] == self.width][:whole]:
                taken[node] = self.width
            if sum(taken) < whole * self.width:
                return None
        if size == 0:
            return taken
        suffice = [node for node in range(self.nodes) if not taken[node] and free[node] >= size]
        if suffice:
            taken[min(suffice, key=lambda node: (free[node], node))] = size
            return taken
        if self.by_node or sum(free) < size:
            return None
        for node in sorted(range(self.nodes), key=lambda node: (-free[node], node)):
            taken[node] = min(free[node], size)
            size -= taken[node]
        return taken

    def least_free(self, stays: list[Stay], from_s: float, until_s: float, job: Asked) -> list[int]:
        """Devices of each node that are free all the time, for a job; of no time, at its moment."""
        moments = {from_s} | {stay.from_s for stay in stays if from_s < stay.from_s < until_s}
        shut = {
            node
            for each in self.closed
            if (not each.user or each.user != job.user) and each.from_s < until_s and from_s < each.until_s
            for node in each.nodes
        }
        return [
            0
            if node in shut
            else min(
                self.width - sum(stay.on[node] for stay in stays if stay.from_s <= moment < stay.until_s)
                for moment in moments
            )
            for node in range(self.nodes)
        ]


def run(jobs: list[Asked], shop: Shop, *, conservative: bool, by_priority: bool) -> None:
    """To the end of all jobs."""
    now_s = -1.0
    while waiting := [job for job in jobs if job.start_s == INF]:
        times = [job.arrival_s for job in waiting] + [job.end_s for job in jobs if job.start_s < INF]
        times += [each.until_s for each in shop.closed]
        now_s = min(time for time in times if time > now_s)
        running = [job for job in jobs if job.start_s <= now_s < job.end_s]
        queue = [job for job in waiting if job.arrival_s <= now_s]
        queue.sort(key=lambda job: (-job.priority if by_priority else 0, job.arrival_s, job.number))
        (_conservative if conservative else _easy)(queue, running, shop, now_s)


def _stays(running: list[Asked], now_s: float) -> list[Stay]:
    """What running jobs take."""
    return [Stay(0.0, max(job.start_s + job.limit_s, now_s + _SOON), job.on) for job in running]


def _moments(stays: list[Stay], shop: Shop, now_s: float) -> list[float]:
    """Return when something becomes free."""
    ends_s = {stay.until_s for stay in stays} | {each.until_s for each in shop.closed}
    return sorted(moment for moment in ends_s if now_s < moment < INF)


def _start(job: Asked, on: list[int], now_s: float, running: list[Asked]) -> None:
    job.start_s, job.on = now_s, on
    running.append(job)


def _conservative(queue: list[Asked], running: list[Asked], shop: Shop, now_s: float) -> None:
    reserved: list[Stay] = []
    for job in queue:
        stays = _stays(running, now_s) + reserved
        for from_s in [now_s, *_moments(stays, shop, now_s)]:
            until_s = _begin_s(from_s, now_s) + job.limit_s
            on = shop.place(shop.least_free(stays, from_s, until_s, job), job.size)
            if on is None:
                continue
            if from_s == now_s:
                _start(job, on, now_s, running)
            else:
                reserved.append(Stay(from_s, until_s, on))
            break


def _easy(queue: list[Asked], running: list[Asked], shop: Shop, now_s: float) -> None:
    first, reserved_s = None, INF
    for job in queue:
        until_s = now_s + job.limit_s
        on = shop.place(shop.least_free(_stays(running, now_s), now_s, until_s, job), job.size)
        if on is None:
            if first is None:
                first, reserved_s = job, _first_place_s(job, running, shop, now_s)
            continue
        if first is not None and until_s > reserved_s:
            then = [*_stays(running, now_s), Stay(0.0, until_s, on)]
            if not _has_place(first, then, reserved_s, shop, now_s):
                continue
        _start(job, on, now_s, running)


def _begin_s(moment_s: float, now_s: float) -> float:
    return now_s if moment_s == now_s + _SOON else moment_s


def _has_place(job: Asked, stays: list[Stay], from_s: float, shop: Shop, now_s: float) -> bool:
    """Whether a job has a place at a moment, beside jobs that run, on nodes that are not closed until it is over."""
    free = shop.least_free(stays, from_s, from_s, job)
    begin_s = _begin_s(from_s, now_s)
    never_closed = shop.least_free([], begin_s, begin_s + job.limit_s, job)
    return shop.place([min(pair) for pair in zip(free, never_closed, strict=True)], job.size) is not None


def _first_place_s(job: Asked, running: list[Asked], shop: Shop, now_s: float) -> float:
    stays = _stays(running, now_s)
    return next(
        (moment for moment in _moments(stays, shop, now_s) if _has_place(job, stays, moment, shop, now_s)),
        INF,
    )
