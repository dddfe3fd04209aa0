"""Simulators of shares and quotas that share nothing with the product: one node, slow, and easy to check by reading."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby

INF = float("inf")


@dataclass(eq=False)
class Ran:
    """A job: when it comes, devices, seconds, whose it is and what else it asks for; then when it ran."""

    number: int
    arrival_s: float
    size: int
    length_s: float
    account: str = ""
    user: str = ""
    cpus: float = 0.0
    memory: float = 0.0
    left_s: float = field(init=False)
    spans: list[tuple[float, float]] = field(default_factory=list)
    since_s: float | None = None

    def __post_init__(self) -> None:
        self.left_s = self.length_s

    @property
    def runs(self) -> bool:
        return self.since_s is not None

    @property
    def start_s(self) -> float:
        return self.spans[0][0]

    @property
    def end_s(self) -> float:
        return self.spans[-1][1]


Decide = Callable[[float, list[Ran], list[Ran]], Iterable[Ran]]
"""Of all jobs that are there and all that ever came, those that run from now on."""


def run(jobs: list[Ran], decide: Decide, period_s: float = INF) -> None:
    """To the end of all jobs; while some wait, a decision is made a period after the last one at the latest."""
    coming, came, now_s, wake_s = sorted(jobs, key=lambda job: job.arrival_s), list[Ran](), 0.0, INF
    while coming or any(job.left_s > 0 for job in came):
        here = [job for job in came if job.left_s > 0]
        times = [job.since_s + job.left_s for job in here if job.since_s is not None]
        now_s = min([*times, *(job.arrival_s for job in coming[:1]), wake_s])
        for job in here:
            if job.since_s is not None and job.since_s + job.left_s <= now_s:
                stop(job, now_s)
        while coming and coming[0].arrival_s <= now_s:
            came.append(coming.pop(0))
        here = [job for job in came if job.left_s > 0]
        on = set(decide(now_s, here, came))
        for job in here:
            if job.runs and job not in on:
                stop(job, now_s)
            elif not job.runs and job in on:
                job.since_s = now_s
        wake_s = now_s + period_s if len(on) < len(here) else INF


def stop(job: Ran, now_s: float) -> None:
    assert job.since_s is not None
    job.left_s -= now_s - job.since_s
    job.spans.append((job.since_s, now_s))
    job.since_s = None


def in_order(order: list[Ran], running: list[Ran], num_devices: int, backfill: bool) -> list[Ran]:
    """Those that run, and those that start in an order: the first without a place ends it, or is passed over."""
    on, left = list(running), num_devices - sum(job.size for job in running)
    for job in order:
        if job.size <= left:
            on.append(job)
            left -= job.size
        elif not backfill:
            break
    return on


def used(job: Ran, now_s: float, half_life_s: float) -> float:
    """Device time that a job has used, as it counts now: the integral of devices times what counts of each moment."""
    spans = [*job.spans, *([(job.since_s, now_s)] if job.since_s is not None else [])]
    if half_life_s == INF:
        return job.size * sum(b - a for a, b in spans)
    return sum(
        job.size
        * half_life_s
        / math.log(2)
        * (0.5 ** ((now_s - b) / half_life_s) - 0.5 ** ((now_s - a) / half_life_s))
        for a, b in spans
    )


def level(own: float, all_shares: float, usage: float, all_usage: float) -> float:
    return (own / all_shares) / (usage / all_usage) if usage else INF


def fair_tree(
    now_s: float, came: list[Ran], half_life_s: float, accounts: dict[str, float], users: dict[str, float]
) -> dict[tuple[str, str], int]:
    """Rank of every user, from the root of the tree down; equal users have one rank, equal accounts are merged."""
    usage = dict[tuple[str, str], float]()
    for job in came:
        owner = job.account, job.user
        usage[owner] = usage.get(owner, 0.0) + used(job, now_s, half_life_s)
    by_account = {
        account: {user: spent for (name, user), spent in usage.items() if name == account}
        for account in {account for account, _ in usage}
    }
    sums = {account: sum(spent.values()) for account, spent in by_account.items()}
    all_shares = sum(accounts.get(account, 1.0) for account in sums)
    of_account = {
        account: level(accounts.get(account, 1.0), all_shares, spent, sum(sums.values()))
        for account, spent in sums.items()
    }
    ranks = dict[tuple[str, str], int]()
    for _, tied in groupby(
        sorted(of_account, key=lambda name: -of_account[name]), key=of_account.__getitem__
    ):
        children = list[tuple[float, tuple[str, str]]]()
        for account in tied:
            spent = by_account[account]
            shares = sum(users.get(user, 1.0) for user in spent)
            children += [
                (-level(users.get(user, 1.0), shares, spent[user], sums[account]), (account, user))
                for user in spent
            ]
        for _, equal in groupby(sorted(children), key=lambda child: child[0]):
            rank = len(ranks)
            ranks |= {owner: rank for _, owner in equal}
    return ranks


def fill(waiting: list[Ran], running: list[Ran], node: tuple[float, float, float], weights: dict[str, float]):  # type: ignore[no-untyped-def]
    """Algorithm 1 of DRF: a task of the user with the smallest dominant share, until one does not fit."""

    def demand(job: Ran) -> tuple[float, float, float]:
        cpus, memory = job.cpus or job.size * node[1] / node[0], job.memory or job.size * node[2] / node[0]
        return float(job.size), cpus, memory

    def consumed(jobs: Iterable[Ran]) -> list[float]:
        return [sum(column) for column in zip((0.0, 0.0, 0.0), *map(demand, jobs), strict=True)]

    def share(user: str) -> float:
        own = consumed(job for job in on if job.user == user)
        return max(held / there for held, there in zip(own, node, strict=True)) / weights.get(user, 1.0)

    on, waiting = list(running), sorted(waiting, key=lambda job: job.number)
    while waiting:
        job = min(waiting, key=lambda job: (share(job.user), job.number))
        if any(all_of > there for all_of, there in zip(consumed([*on, job]), node, strict=True)):
            break
        on.append(job)
        waiting.remove(job)
    return on


def counted(order: list[Ran], in_use: dict[str, int], quotas: dict[str, int], most: float) -> list[Ran]:
    """Jobs within quotas, then those that borrow at most so many devices for their account; ``in_use`` is changed."""
    within, beyond, borrowing = list[Ran](), list[Ran](), list[Ran]()
    for job in order:
        fits = in_use[job.account] + job.size <= quotas[job.account]
        (within if fits else beyond).append(job)
        in_use[job.account] += job.size * fits
    for job in beyond:
        in_all, own = sum(in_use.values()) + job.size, in_use[job.account] + job.size
        if in_all <= sum(quotas.values()) and own <= quotas[job.account] + most:
            borrowing.append(job)
            in_use[job.account] += job.size
    return within + borrowing
