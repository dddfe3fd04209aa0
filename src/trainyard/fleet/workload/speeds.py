"""A profile that is a plain table: work per second by device type, number of devices, and over how many nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.job import Grant, Job, Spot, spot_of
from trainyard.hardware.cluster import Cluster
from trainyard.reading import shown

_FORM = "TYPE:DEVICES=WORK_PER_S, or TYPE:DEVICES/NODES=WORK_PER_S"


@dataclass(frozen=True)
class Speeds:
    """How fast a job runs on what.

    Attributes
    ----------
    per_s : (device type, devices, work per second). Devices between two numbers that are there are idle; a type that is
        not there cannot run the job.
    spread : (device type, devices, nodes, work per second), where it is another over at least so many nodes.
    """

    per_s: tuple[tuple[str, int, float], ...]
    spread: tuple[tuple[str, int, int, float], ...] = ()

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        entries = (*((kind, n, 1, rate) for kind, n, rate in self.per_s), *self.spread)
        usable = [
            (n, nodes, rate)
            for kind, n, nodes, rate in entries
            if kind == spot.device_type and n <= spot.num_devices and nodes <= spot.num_nodes
        ]
        return grant.share * max(usable)[2] if usable else 0.0

    @property
    def rates(self) -> tuple[float, ...]:
        """All of the work per second."""
        return (*(rate for _, _, rate in self.per_s), *(rate for *_, rate in self.spread))

    def __str__(self) -> str:
        """As ``parse`` reads it: ``V100:1=5.1 V100:2=9.8 V100:2/2=7.3``."""
        near = (f"{kind}:{n}={rate!r}" for kind, n, rate in self.per_s)
        return " ".join((*near, *(f"{kind}:{n}/{nodes}={rate!r}" for kind, n, nodes, rate in self.spread)))

    @classmethod
    def parse(cls, text: str) -> Speeds:
        """Read ``TYPE:DEVICES=WORK_PER_S`` and ``TYPE:DEVICES/NODES=WORK_PER_S``, several of them separated by spaces.

        Raises
        ------
        FleetError
            If it does not read so.
        """
        near: list[tuple[str, int, float]] = []
        spread: list[tuple[str, int, int, float]] = []
        for part in text.split():
            kind, _, rest = part.rpartition(":")
            where, _, rate_text = rest.partition("=")
            count_text, is_spread, nodes_text = where.partition("/")
            try:
                count, nodes, rate = int(count_text), int(nodes_text) if is_spread else 1, float(rate_text)
            except ValueError:
                count = nodes = 0
                rate = 0.0
            if not kind or not 1 <= nodes <= count or not 0 <= rate < float("inf"):
                raise FleetError(f"speed {shown(part)} is not {_FORM}; write for example V100:4=18.5")
            if is_spread:
                spread.append((kind, count, nodes, rate))
            else:
                near.append((kind, count, rate))
        if not near:
            raise FleetError("no speeds given; write for example V100:1=5.1 V100:2=9.8")
        return cls(tuple(near), tuple(spread))

    @classmethod
    def of(cls, measured: Iterable[tuple[Spot, float]]) -> Speeds:
        """From work per second in places, those of a type and number on the fewest nodes first, as `spots` has them."""
        near: dict[tuple[str, int], float] = {}
        spread: list[tuple[str, int, int, float]] = []
        for spot, rate in measured:
            place = spot.device_type, spot.num_devices
            if place in near:
                spread.append((*place, spot.num_nodes, rate))
            else:
                near[place] = rate
        return cls(tuple((*place, rate) for place, rate in near.items()), tuple(spread))


def spots(cluster: Cluster, num_devices: Iterable[int]) -> Iterator[Spot]:
    """Where so many devices of each type can lie: on as few nodes as can hold them, then evenly on more and more.

    Numbers that a type has not are left out.
    """
    counts = sorted(set(num_devices))
    for kind in cluster.device_types:
        sizes = sorted((node.num_devices for node in cluster.nodes if node.device_type == kind), reverse=True)
        for count in counts:
            if count > sum(sizes):
                break
            fewest, rest = list[int](), count
            while rest:
                fewest.append(min(rest, sizes[len(fewest)]))
                rest -= fewest[-1]
            yield spot_of(kind, tuple(fewest))
            for nodes in range(len(fewest) + 1, min(count, len(sizes)) + 1):
                if count % nodes == 0 and sizes[nodes - 1] >= count // nodes:
                    yield spot_of(kind, (count // nodes,) * nodes)


def tabulated(job: Job, cluster: Cluster, num_devices: Iterable[int]) -> Job:
    """The same job with its speeds on a cluster written down; what depends on more than type, number and nodes is lost.

    Parameters
    ----------
    num_devices : for which it is asked, of each type that has so many.

    Raises
    ------
    FleetError
        If it runs on none of them.
    """
    speeds = (
        (spot, job.profile.work_per_s(spot, Grant(tuple(range(spot.num_devices)))))
        for spot in spots(cluster, num_devices)
    )
    known = [(spot, rate) for spot, rate in speeds if rate > 0]
    if not known:
        raise FleetError(
            f"job {job.name!r} runs on none of the device types and numbers given; name some on which it runs"
        )
    return replace(job, profile=Speeds.of(known))
