"""A policy of your own: users share the cluster evenly, and what they had before counts half as much with every hour."""

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

    def start(self, cluster: Cluster) -> tuple[float, np.ndarray]:
        return 0.0, np.zeros(0)  # when it decided last, and devices that users had until then, on average

    def decide(self, snapshot: Snapshot, state: tuple[float, np.ndarray]):
        then_s, recent = state
        kept = 0.5 ** ((snapshot.now_s - then_s) / self.half_life_s)
        # For every job the number of its user, and for every number a name.
        user, names = snapshot.group("user"), snapshot.groups("user")
        has = np.bincount(user, snapshot.held, len(names))
        recent = kept * np.append(recent, np.zeros(len(names) - len(recent))) + (1 - kept) * has
        # Devices of the user of every job, of late and for jobs of theirs that came before it.
        before = recent[user] + earlier(user, snapshot.num_devices)
        waiting = np.flatnonzero(snapshot.held == 0)
        why = Reasons(waiting, lambda i: f"{names[user[i]]} had {recent[user[i]]:.1f} devices of late")
        queue, again_s = Queue(np.argsort(before, kind="stable")), snapshot.now_s + self.quantum_s
        return Allocation(queue, ask_again_s=again_s, reasons=why), (snapshot.now_s, recent)


def earlier(user: np.ndarray, num_devices: np.ndarray) -> np.ndarray:
    """Devices that earlier jobs of the same user ask for, of every job."""
    order = np.argsort(user, kind="stable")
    total = np.cumsum(num_devices[order]) - num_devices[order]
    first = np.searchsorted(user[order], user[order])  # the first job of the same user
    found = np.empty_like(total)
    found[order] = total - total[first]
    return found
