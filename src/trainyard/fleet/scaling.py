"""How a job scales: what it does in a second on the numbers of devices that it can be given."""

from __future__ import annotations

from typing import NamedTuple

from trainyard.fleet.snapshot import Snapshot
from trainyard.fleet.workload.job import Grant


class Scaling(NamedTuple):
    """Numbers of devices, ascending, and work per second on each."""

    num_devices: tuple[int, ...]
    work_per_s: tuple[float, ...]


def scaling(snapshot: Snapshot, number: int, only_faster: bool = True) -> Scaling:
    """The scaling of a job, by powers of two between its least and most devices; of a rigid job, its gang.

    Parameters
    ----------
    only_faster : leave out numbers of devices on which it is no faster than on fewer.
    """
    job = snapshot.job(number)
    most = min(job.most_devices, snapshot.cluster.whole.num_devices)
    counts = [1 << k for k in range(most.bit_length()) if job.least_devices <= 1 << k <= most]
    kept: list[tuple[int, float]] = []
    for count in counts or [job.least_devices]:
        work_per_s = snapshot.speed(number, Grant(tuple(range(count))))
        if work_per_s > (kept[-1][1] if kept and only_faster else 0.0):
            kept.append((count, work_per_s))
    return Scaling(tuple(count for count, _ in kept), tuple(work_per_s for _, work_per_s in kept))
