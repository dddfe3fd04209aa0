"""A policy of your own: users share the cluster evenly, and what they had before counts half as much with every hour."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from trainyard.fleet.allocation import Allocation, Queue, Reasons
from trainyard.fleet.site import Site
from trainyard.fleet.snapshot import Snapshot


@dataclass(frozen=True)
class Past:
    """What lasts from one decision to the next; of users, devices that they had of late in the mean, and were dealt."""

    now_s: float = 0.0
    recent: Mapping[str, float] = field(default_factory=dict)
    dealt: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Shares:
    """The next job is that of the user with the fewest devices, now and of late; a user's own jobs run as they came."""

    half_life_s: float = 3600.0
    quantum_s: float = 600.0
    needs = frozenset()  # nothing that has to be measured or declared
    preempts = True

    def start(self, site: Site) -> Past:
        site.require_one_type("Shares")
        return Past()

    def decide(self, snapshot: Snapshot, state: Past) -> tuple[Allocation, Past]:
        users = [job.user for job in snapshot.jobs]
        kept = 0.5 ** ((snapshot.now_s - state.now_s) / self.half_life_s)
        recent = {
            user: kept * state.recent.get(user, 0.0) + (1 - kept) * state.dealt.get(user, 0)
            for user in dict.fromkeys([*state.recent, *users])
        }
        queues = {user: [i for i, other in enumerate(users) if other == user] for user in sorted(set(users))}
        order, dealt, asked, free = [], Counter(), snapshot.num_devices.tolist(), snapshot.site.num_devices
        while queues:
            user = min(queues, key=lambda user: recent[user] + dealt[user])
            job = queues[user].pop(0)
            if asked[job] <= free:
                order.append(job)
                dealt[user] += asked[job]
                free -= asked[job]
            queues = {user: jobs for user, jobs in queues.items() if jobs}
        waiting = np.setdiff1d(np.arange(len(users)), order)
        told = {user: f"{user} has {dealt[user]} devices, {recent[user]:.1f} of late" for user in users}
        allocation = Allocation(
            Queue(np.array(order, np.int64)),
            ask_again_s=snapshot.now_s + self.quantum_s if len(waiting) else float("inf"),
            reasons=Reasons(waiting, lambda i: told[users[i]]),
        )
        return allocation, Past(snapshot.now_s, recent, dict(dealt))
