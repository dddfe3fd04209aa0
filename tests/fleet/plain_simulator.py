"""A simulator of queues that shares nothing with the product: slow, small, and easy to check by reading it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby

INF = float("inf")


@dataclass
class Ran:
    """A job: when it comes, devices, seconds; then what became of it."""

    number: int
    arrival_s: float
    size: int
    length_s: float
    limit_s: float = INF
    left_s: float = field(init=False)
    devices: list[tuple[int, int]] = field(default_factory=list)
    start_s: float = INF
    end_s: float = INF

    def __post_init__(self) -> None:
        self.left_s = self.length_s

    @property
    def service(self) -> float:
        return (self.length_s - self.left_s) * self.size


Key = Callable[[Ran], tuple[float, ...]]


def consolidated(size: int, free: list[tuple[int, int]], width: int) -> list[tuple[int, int]] | None:
    """Whole nodes first, and what is left over on the fullest that suffices; devices are (node, place)."""
    nodes = [list(group) for _, group in groupby(sorted(free), key=lambda device: device[0])]
    whole = [node for node in nodes if len(node) == width][: size // width]
    if len(whole) < size // width:
        return None
    found = [device for node in whole for device in node]
    if rest := size % width:
        others = [node for node in nodes if node not in whole and len(node) >= rest]
        if not others:
            return None
        found += min(others, key=len)[:rest]
    return found


def by_count(size: int, free: list[tuple[int, int]], width: int) -> list[tuple[int, int]] | None:
    """Wherever devices are free."""
    return sorted(free)[:size] if len(free) >= size else None


def decide(
    jobs: list[Ran], key: Key, place: Callable[..., list[tuple[int, int]] | None], nodes: int, width: int
) -> None:
    """Who fits by number in the order of urgency keeps its devices; the others are placed, the most urgent first."""
    order, left, keeps = sorted(jobs, key=key), nodes * width, set[int]()
    for job in order:
        if job.size <= left:
            left -= job.size
            keeps.add(job.number)
    held = {job.number: job.devices for job in order if job.devices}
    on = {number: devices for number, devices in held.items() if number in keeps}

    def free() -> list[tuple[int, int]]:
        taken = {device for devices in on.values() for device in devices}
        return [(n, d) for n in range(nodes) for d in range(width) if (n, d) not in taken]

    for at, job in enumerate(order):
        if job.number in on:
            continue
        if job.number in held and not set(held[job.number]) - set(free()):
            on[job.number] = held[job.number]
            continue
        found = place(job.size, free(), width)
        if found is None:
            found = _taken_away(
                job, [o.number for o in order[at + 1 :] if o.number in on], on, free, place, width
            )
        if found is not None:
            on[job.number] = found
    for job in order:
        job.devices = on.get(job.number, [])


def _taken_away(job, others, on, free, place, width):  # type: ignore[no-untyped-def]
    """Devices for a job that finds no place, of the least urgent of the others that run."""
    lent: dict[int, list[tuple[int, int]]] = {}
    found = None
    for number in reversed(others):
        lent[number] = on.pop(number)
        if (found := place(job.size, free(), width)) is not None:
            break
    wanted = [node for node, _ in found or ()]
    on |= lent
    if found is None:
        return None
    lost: dict[int, list[tuple[int, int]]] = {}

    def fits() -> bool:
        there = [node for node, _ in free()]
        return all(there.count(node) >= wanted.count(node) for node in wanted)

    for number in lent:  # the least urgent first
        if not fits() and {node for node, _ in on[number]} & set(wanted):
            lost[number] = on.pop(number)
    for number in reversed(lost):
        on[number] = lost[number]
        if not fits():
            del on[number]
    there = sorted(free())
    return [
        device
        for node in sorted(set(wanted))
        for device in [d for d in there if d[0] == node][: wanted.count(node)]
    ]


def run(
    jobs: list[Ran],
    nodes: int,
    width: int,
    key: Key,
    *,
    preempts: bool,
    blocks: bool,
    by_node: bool,
    easy: bool = False,
    limit: float = INF,
) -> None:
    """To the end of all jobs.

    Parameters
    ----------
    limit : of service, at which the order may change.
    """
    place, coming, here, now_s = (
        consolidated if by_node else by_count,
        sorted(jobs, key=lambda j: j.arrival_s),
        [],
        0.0,
    )
    while coming or here:
        times = [coming[0].arrival_s] if coming else []
        for job in here:
            if job.devices:
                times.append(now_s + job.left_s)
                if job.service < limit < INF:
                    times.append(now_s + (limit - job.service) / job.size)
        passed_s, now_s = min(times) - now_s, min(times)
        for job in here:
            if job.devices:
                job.left_s -= passed_s
                if job.left_s <= 0:
                    job.end_s = now_s
        here = [job for job in here if job.end_s == INF]
        while coming and coming[0].arrival_s <= now_s:
            here.append(coming.pop(0))
        if preempts:
            decide(here, key, place, nodes, width)
        else:
            _fill(here, key, place, nodes, width, blocks, easy, now_s)
        for job in here:
            if job.devices:
                job.start_s = min(job.start_s, now_s)


def _fill(here, key, place, nodes, width, blocks, easy, now_s):  # type: ignore[no-untyped-def]
    taken = {device for job in here for device in job.devices}
    free = [(n, d) for n in range(nodes) for d in range(width) if (n, d) not in taken]
    start_s, spare = (
        INF,
        None,
    )  # when the first job that waits will find a place, and what is free then beside that
    for job in sorted((job for job in here if not job.devices), key=key):
        found = place(job.size, free, width)
        if found is None:
            if blocks:
                break
            if easy and spare is None:
                first, (start_s, spare) = job, _reserved(job, here, free, place, width, now_s)
            continue
        if spare is not None and now_s + job.limit_s > start_s:
            left = list(spare)
            for node, _ in found:
                left.remove(next(device for device in left if device[0] == node))
            if place(first.size, left, width) is None:
                continue
            spare = left
        job.devices = found
        job.start_s = now_s
        free = [device for device in free if device not in found]


def _reserved(first, here, free, place, width, now_s):  # type: ignore[no-untyped-def]
    spare, running = list(free), [job for job in here if job.devices]
    for end_s in sorted({max(now_s, job.start_s + job.limit_s) for job in running}):
        spare += [
            device
            for job in running
            if max(now_s, job.start_s + job.limit_s) == end_s
            for device in job.devices
        ]
        if place(first.size, spare, width) is not None:
            return end_s, spare
    return INF, spare
