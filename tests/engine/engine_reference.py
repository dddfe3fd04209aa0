"""The semantics of `trainyard.engine.tasks` again, slowly: exact fractions, all looked at every time."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction


@dataclass
class Task:
    duration_s: Fraction | int = 0
    predecessors: list[int] = field(default_factory=list)
    resources: list[int] = field(default_factory=list)
    num_bytes: int = 0
    links: list[int] = field(default_factory=list)
    release_s: Fraction | int = 0
    priority: int = 0


def max_min_rates(flows: dict[int, list[int]], capacity: list[int]) -> dict[int, Fraction]:
    """Raise all rates together; a flow stops when one of its links is full."""
    rates: dict[int, Fraction] = {}
    left = {link: Fraction(c) for link, c in enumerate(capacity)}
    while len(rates) < len(flows):
        growing = {f: links for f, links in flows.items() if f not in rates}
        shares = {
            link: left[link] / sum(link in links for links in growing.values())
            for link in left
            if any(link in links for links in growing.values())
        }
        link = min(shares, key=lambda each: shares[each])
        share = shares[link]
        for flow, links in growing.items():
            if link in links:
                rates[flow] = share
                for each in links:
                    left[each] -= share
    return rates


def reference_simulate(
    tasks: list[Task], capacity: list[int] | None = None
) -> tuple[list[Fraction], list[Fraction]]:
    """Start and end of every task."""
    ids = range(len(tasks))
    now = Fraction(0)
    ready: dict[int, Fraction] = {}
    start: dict[int, Fraction] = {}
    end: dict[int, Fraction] = {}
    left = {i: Fraction(tasks[i].num_bytes) for i in ids}
    while len(end) < len(tasks):
        # Everything that ends now ends. The decision is made for all tasks before any end is recorded.
        over = [i for i in start if i not in end and now >= start[i] + tasks[i].duration_s and left[i] == 0]
        end.update(dict.fromkeys(over, now))
        while True:
            new = [
                i
                for i in ids
                if i not in ready
                and now >= tasks[i].release_s
                and all(p in end for p in tasks[i].predecessors)
            ]
            if not new:
                break
            for i in new:
                ready[i] = now
                if not tasks[i].resources and not tasks[i].duration_s and not tasks[i].num_bytes:
                    start[i] = end[i] = now
        # Every ready task claims its resources, in order; it starts if nobody had claimed or occupies one of
        # them.
        claimed = {r for i in start if i not in end for r in tasks[i].resources}
        for i in sorted((i for i in ready if i not in start), key=lambda i: (tasks[i].priority, ready[i], i)):
            if not claimed & set(tasks[i].resources):
                start[i] = now
            claimed |= set(tasks[i].resources)
        # Go to the next instant, moving bytes until then.
        running = [i for i in start if i not in end]
        flows = {i: tasks[i].links for i in running if left[i] > 0 and now >= start[i] + tasks[i].duration_s}
        rates = max_min_rates(flows, capacity or [])
        times = [now + left[i] / rates[i] for i in flows]
        times += [start[i] + tasks[i].duration_s for i in running if i not in flows]
        times += [Fraction(t.release_s) for t in tasks if t.release_s > now]
        if not times:
            break
        until = min(times)
        for i in flows:
            left[i] -= rates[i] * (until - now)
        now = until
    assert len(end) == len(tasks), "the reference is stuck"
    return [start[i] for i in ids], [end[i] for i in ids]
