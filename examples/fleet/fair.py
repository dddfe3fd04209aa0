"""A policy of your own: users share the cluster evenly, and what they had before counts half as much with every hour."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from trainyard.fleet.allocation import Allocation, Queue, Reasons
from trainyard.fleet.snapshot import Snapshot
from trainyard.hardware.cluster import Cluster


@dataclass(frozen=True)
class Shares:
    """The next job is that of the user with the fewest devices, now and of late; a user's own jobs run as they came."""

    half_life_s: float = 3600.0
    quantum_s: float = 600.0
    needs = frozenset()  # nothing that has to be measured or declared
    preempts = True

    def start(self, cluster: Cluster) -> tuple[float, Counter[str]]:
        return 0.0, Counter()  # when it decided last, and devices that users had until then, on average

    def decide(self, snapshot: Snapshot, state: tuple[float, Counter[str]]):
        then_s, recent = state
        kept = 0.5 ** ((snapshot.now_s - then_s) / self.half_life_s)
        users, has, given = [job.user for job in snapshot.jobs], Counter(), Counter()
        for user, held in zip(users, snapshot.held.tolist(), strict=True):
            has[user] += held
        recent = Counter({user: kept * recent[user] + (1 - kept) * has[user] for user in {**recent, **has}})
        before = []  # devices of the user of every job, of late and for jobs of theirs that came before it
        for user, wanted in zip(users, snapshot.num_devices.tolist(), strict=True):
            before.append(recent[user] + given[user])
            given[user] += wanted
        waiting = np.flatnonzero(snapshot.held == 0)
        why = Reasons(waiting, lambda i: f"{users[i]} had {recent[users[i]]:.1f} devices of late")
        queue, again_s = Queue(np.argsort(before, kind="stable")), snapshot.now_s + self.quantum_s
        return Allocation(queue, ask_again_s=again_s, reasons=why), (snapshot.now_s, recent)
