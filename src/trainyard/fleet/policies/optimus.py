"""Optimus: one more device to the job whose predicted end comes nearest by it, again and again.

Of every job two things are learnt. Its loss after ``k`` units of work is fitted as ``1 / (b0 k + b1) + b2``, which tells
when it will have converged. The time of a unit of work on ``w`` devices is fitted as ``a0 / w + a1 + a2 w``, first to
short trials on a few numbers of devices, then also to what the job does while it runs. No coefficient is negative.

References
----------
Y. Peng, Y. Bao, Y. Chen, C. Wu, C. Guo, "Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters",
EuroSys 2018. Section 3.1: convergence; 3.2: speed; 4.1: marginal gains; 4.2: placement.

Notes
-----
The paper gives jobs parameter servers and workers. Jobs here exchange gradients among their devices, each of which is
both: in its model of synchronous training there are as many servers as workers, ``w``, and only the three terms above are
left. A gang that cannot be resized gets its devices or none. A job whose devices do not change in number stays where
it is. One whose end cannot be told yet is taken to need as much time as the others on average; so are trainings of which
level 1 predicts the speed, in simulation: only when they run for real do they have losses, of which they tell the mean
from checkpoint to checkpoint. For devices of one type.

Fidelity: simplified. Left out: parameter servers, and with them asynchronous training, the division of parameters among
servers and that of data among workers (section 5); stragglers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from trainyard.fleet.allocation import Allocation, Placed, Reasons
from trainyard.fleet.errors import require_one_type
from trainyard.fleet.place.keep import keeping
from trainyard.fleet.snapshot import Floats, Ints, Need, Snapshot
from trainyard.fleet.traits import Traits
from trainyard.fleet.workload.goodput import Report
from trainyard.fleet.workload.job import Grant
from trainyard.hardware.cluster import Cluster

_NUM_TRIALS = 5
_FEWEST_LOSSES = 3
_NUM_LEVELS = 40  # values of b2 that are tried


History = tuple[float, Mapping[int, "Seen"]]
"""When the last decision was, and what was known then, by serial number of the job."""


@dataclass(frozen=True)
class Seen:
    """Measurements of a job.

    Attributes
    ----------
    unit_s : seconds of a unit of work, by devices.
    done, num_devices, num_starts : at the last decision; no devices if it did no work then.
    """

    unit_s: Mapping[int, float]
    done: float = 0.0
    num_devices: int = 0
    num_starts: int = 0


@dataclass(frozen=True)
class Optimus:
    """The scheduler of Optimus; for rounds of ``interval_s``.

    Attributes
    ----------
    interval_s : time between two decisions, the length of the rounds.
    threshold : a job has converged when an epoch lessens its loss by less than this part of its largest.
    young : factor on the gain of jobs whose end cannot be told yet.
    """

    interval_s: float = 600.0
    threshold: float = 1e-3
    young: float = 0.95
    preempts: bool = field(default=True, init=False)

    @property
    def needs(self) -> frozenset[Need]:
        """Trials show how fast a job is."""
        return frozenset({"speed", "reports"})

    @property
    def traits(self) -> Traits:
        """A round is the time between two decisions."""
        return Traits(round_s=self.interval_s, places=True)

    def start(self, cluster: Cluster) -> History:
        """Nothing is known.

        Raises
        ------
        FleetError
            If there are several types of devices.
        """
        require_one_type(cluster, "Optimus")
        return (0.0, MappingProxyType({}))

    def decide(self, snapshot: Snapshot, state: History) -> tuple[Allocation, History]:
        """Learn speed and rest of each job (section 3), choose its number of devices (4.1), and place them (4.2)."""
        serial = snapshot.serial.tolist()
        then_s, known = state
        seen = [known.get(s) or Seen({}) for s in serial]
        seen, gain = self.gains(snapshot, seen, then_s)
        counts = _allocated(snapshot, gain)
        places = _placed(snapshot, counts, self.place)
        devices = keeping(snapshot.cluster, places, snapshot.grants)
        again_s, reasons = snapshot.now_s + self.interval_s, Reasons(np.flatnonzero(counts == 0), _why)
        allocation = Allocation(Placed(np.arange(len(counts)), devices), again_s, reasons=reasons)
        return allocation, (snapshot.now_s, MappingProxyType(dict(zip(serial, seen, strict=True))))

    def gains(
        self, snapshot: Snapshot, seen: list[Seen], then_s: float
    ) -> tuple[list[Seen], Callable[[int, int], float]]:
        """Return the measurements of each job with the latest, and the gain of one more device, see `_marginal_gains`.

        Parameters
        ----------
        then_s : the time of the last decision.
        """
        seen = [_measured(snapshot, i, then_s, seen[i]) for i in range(len(seen))]
        return seen, self._marginal_gains(snapshot, seen)

    def place(self, free: Ints, wanted: int) -> dict[int, int]:
        """Devices of each node for a job, of those that are free."""
        return evenly(free, wanted)

    def _marginal_gains(self, snapshot: Snapshot, seen: Sequence[Seen]) -> Callable[[int, int], float]:
        """Section 4.1: time that one more device saves a job, by the job and the devices that it would have before."""
        curves = [speed_curve(tuple(s.unit_s.items())) for s in seen]
        left = [
            work_left(report.losses, float(done), self.threshold) if isinstance(report, Report) else None
            for report, done in zip(snapshot.reports, snapshot.done, strict=True)
        ]
        alone_s = [work * curve.sum() for work, curve in zip(left, curves, strict=True) if work is not None]
        mean_s = float(np.mean(alone_s)) if alone_s else 1.0

        def gain(job: int, num: int) -> float:
            work, curve = left[job], curves[job]
            saved_s = unit_seconds(curve, num) - unit_seconds(curve, num + 1)
            if work is not None:
                return work * saved_s
            return self.young * mean_s / max(float(curve.sum()), 1e-300) * saved_s

        return gain


def _why(job: int) -> str:
    return "every job before it has its least devices, and no more are free"


def _measured(snapshot: Snapshot, number: int, then_s: float, seen: Seen) -> Seen:
    """Return what is known with the work since the last decision; of a new job, with trials."""
    unit_s = dict(seen.unit_s) or _tried(snapshot, number)
    done, num_starts = float(snapshot.done[number]), int(snapshot.num_starts[number])
    num = seen.num_devices
    if num and num_starts == seen.num_starts and done > seen.done:
        found = (snapshot.now_s - then_s) / (done - seen.done)
        # A unit of work takes another time as gradients change: trials are brought to the present level.
        level = found / unit_s[num] if num in unit_s else 1.0
        unit_s = {size: known * level for size, known in unit_s.items()} | {num: found}
    works = snapshot.is_running[number] and not snapshot.is_restarting[number]
    return Seen(unit_s, done, int(snapshot.held[number]) if works else 0, num_starts)


def _tried(snapshot: Snapshot, number: int) -> dict[int, float]:
    """Seconds of a unit of work in short trials on a few numbers of devices."""
    job, unit_s = snapshot.job(number), dict[int, float]()
    most = min(job.most_devices, snapshot.cluster.num_devices)
    sizes = np.unique(np.geomspace(job.least_devices, max(most, job.least_devices), _NUM_TRIALS).round())
    for size in sizes.astype(int).tolist():
        speed = snapshot.speed(number, Grant(tuple(range(size))))
        if speed > 0:
            unit_s[size] = 1.0 / speed
    return unit_s


@lru_cache(maxsize=1 << 12)
def speed_curve(unit_s: tuple[tuple[int, float], ...]) -> Floats:
    """a0, a1, a2 of section 3.2, by least squares without negative coefficients."""
    from scipy.optimize import nnls

    if not unit_s:
        return np.zeros(3)
    num, seconds = np.array(unit_s, np.float64).T
    scale = seconds.max()
    found: Floats = nnls(np.stack((1 / num, np.ones_like(num), num), 1), seconds / scale)[0] * scale
    return found


def unit_seconds(curve: Floats, num: int) -> float:
    """Seconds of a unit of work on a number of devices, by its speed curve."""
    return float(curve[0] / num + curve[1] + curve[2] * num)


def work_left(losses: tuple[tuple[float, float], ...], done: float, threshold: float) -> float | None:
    """Section 3.1: work until an epoch lessens the loss by less than the threshold; None where too little is known."""
    if len(losses) < _FEWEST_LOSSES:
        return None
    b0, b1, epoch = loss_curve(losses)
    if b0 <= 0:
        return epoch
    # 1 / u - 1 / (u + b0 epoch) = threshold, with u = b0 k + b1.
    step = b0 * epoch
    u = (-step + (step**2 + 4 * step / threshold) ** 0.5) / 2
    return max(float((u - b1) / b0) - done, epoch)


@lru_cache(maxsize=1 << 12)
def loss_curve(losses: tuple[tuple[float, float], ...]) -> tuple[float, float, float]:
    """b0 and b1 of section 3.1 for losses in parts of the largest, and the work of an epoch.

    Given b2, the others follow from linear least squares. A loss beyond the four around it gives way to their middle.
    """
    from scipy.optimize import nnls

    work, loss = np.array(losses, np.float64).T
    if len(loss) > 4:
        near = np.stack((loss[:-4], loss[1:-3], loss[3:-1], loss[4:]))
        outside = (loss[2:-2] > near.max(0)) | (loss[2:-2] < near.min(0))
        loss[2:-2] = np.where(outside, near[1:3].mean(0), loss[2:-2])
    loss, unit = loss / max(loss.max(), 1e-300), work[-1]
    best, found = np.inf, np.zeros(2)
    for level in np.linspace(0.0, loss.min(), _NUM_LEVELS, endpoint=False):
        above = loss - level
        # Weighted so that errors are those of the loss, not of its inverse.
        weight = above**2
        b = nnls(np.stack((work / unit, np.ones_like(work)), 1) * weight[:, None], weight / above)[0]
        error = float(np.square(1 / np.maximum(b[0] * work / unit + b[1], 1e-300) - above).sum())
        if error < best:
            best, found = error, b
    return float(found[0] / unit), float(found[1]), float(np.median(np.diff(work, prepend=0.0)))


def _allocated(snapshot: Snapshot, gain: Callable[[int, int], float]) -> Ints:
    """Section 4.1: the least devices to everybody, by arrival; then one to the job that gains most, while any gains."""
    sizes = [(job.least_devices, job.most_devices) for job in snapshot.jobs]
    counts, free = np.zeros(len(sizes), np.int64), snapshot.cluster.num_devices
    for job, (least, _) in enumerate(sizes):
        if least <= free:
            counts[job] = least
            free -= least
    growing = [job for job, (least, most) in enumerate(sizes) if 0 < counts[job] < most and free]
    heap = [(-gain(job, int(counts[job])), job) for job in growing]
    heapq.heapify(heap)
    while free and heap and heap[0][0] < 0:
        job = heap[0][1]
        counts[job] += 1
        free -= 1
        if counts[job] < sizes[job][1]:
            heapq.heapreplace(heap, (-gain(job, int(counts[job])), job))
        else:
            heapq.heappop(heap)
    return counts


def _placed(
    snapshot: Snapshot, counts: Ints, place: Callable[[Ints, int], dict[int, int]]
) -> list[dict[int, int]]:
    """Devices of each node for every job, small jobs first; who keeps his number keeps his place."""
    free, found = snapshot.cluster.devices_per_node.copy(), [dict[int, int]() for _ in counts]
    stays = (counts == snapshot.held) & (counts > 0)
    for job in np.flatnonzero(stays).tolist():
        grant = snapshot.grants[job]
        assert grant is not None
        nodes, num = np.unique(snapshot.cluster.node_of[list(grant.devices)], return_counts=True)
        found[job] = dict(zip(nodes.tolist(), num.tolist(), strict=True))
        free[nodes] -= num
    for job in np.argsort(counts, kind="stable").tolist():
        if counts[job] and not stays[job]:
            found[job] = place(free, int(counts[job]))
            for node, num in found[job].items():
                free[node] -= num
    return found


def evenly(free: Ints, wanted: int) -> dict[int, int]:
    """Section 4.2, theorem 1: as few nodes as can hold a job evenly, those with most devices free."""
    order = np.argsort(-free, kind="stable")
    for num in range(1, min(wanted, int((free > 0).sum())) + 1):
        share = wanted // num + (np.arange(num) < wanted % num)
        if np.all(free[order[:num]] >= share):
            return dict(zip(order[:num].tolist(), share.tolist(), strict=True))
    return fullest(free, wanted)


def fullest(free: Ints, wanted: int) -> dict[int, int]:
    """All free devices of the nodes with most of them, as many nodes as it takes."""
    found: dict[int, int] = {}
    for node in np.argsort(-free, kind="stable").tolist():
        count = min(wanted, int(free[node]))
        if count:
            found[node] = count
            wanted -= count
    return found
