"""A profile that is a plain table: work per second by device type and number of devices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from trainyard.fleet.site import FleetError
from trainyard.fleet.workload.job import Grant, Job, Spot


@dataclass(frozen=True)
class Speeds:
    """How fast a job runs on what; where that is does not matter.

    Attributes
    ----------
    per_s : (device type, devices, work per second). Devices between two numbers that are there are idle; a type that is
        not there cannot run the job.
    """

    per_s: tuple[tuple[str, int, float], ...]

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        usable = [
            (n, rate) for kind, n, rate in self.per_s if kind == spot.device_type and n <= spot.num_devices
        ]
        return grant.share * max(usable)[1] if usable else 0.0

    def __str__(self) -> str:
        """As ``parse`` reads it: ``V100:1=5.1 V100:2=9.8``."""
        return " ".join(f"{kind}:{n}={rate!r}" for kind, n, rate in self.per_s)

    @classmethod
    def parse(cls, text: str) -> Speeds:
        """Read ``TYPE:DEVICES=WORK_PER_S``, several of them separated by spaces.

        Raises
        ------
        FleetError
            If it does not read so.
        """
        entries = []
        for part in text.split():
            kind, _, rest = part.rpartition(":")
            count, _, rate = rest.partition("=")
            try:
                entry = (kind, int(count), float(rate))
            except ValueError:
                entry = ("", 0, 0.0)
            if not kind or entry[1] < 1 or not 0 <= entry[2] < float("inf"):
                raise FleetError(
                    f"speed {part!r} is not TYPE:DEVICES=WORK_PER_S; write for example V100:4=18.5"
                )
            entries.append(entry)
        if not entries:
            raise FleetError("no speeds given; write for example V100:1=5.1 V100:2=9.8")
        return cls(tuple(entries))


def tabulated(job: Job, device_types: Iterable[str], num_devices: Iterable[int]) -> Job:
    """The same job with its speeds written down; what depends on more than type and number is lost.

    Parameters
    ----------
    device_types, num_devices : on which it is asked, each number on one node.

    Raises
    ------
    FleetError
        If it runs on none of them.
    """
    counts = tuple(num_devices)
    speeds = [
        (kind, n, job.profile.work_per_s(Spot(kind, n, 1, (n,)), Grant(tuple(range(n)))))
        for kind in device_types
        for n in counts
    ]
    known = tuple(entry for entry in speeds if entry[2] > 0)
    if not known:
        raise FleetError(
            f"job {job.name!r} runs on none of the device types and numbers given; name some on which it runs"
        )
    return replace(job, profile=Speeds(known))
