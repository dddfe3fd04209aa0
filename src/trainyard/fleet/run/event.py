"""What happens to the jobs of a run, as whoever watches it hears it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from trainyard.fleet.workload.job import Grant, Job


class Happening(StrEnum):
    """What can happen to a job."""

    ARRIVES = "arrives"
    STAYS = "stays"  # a driver that was started anew found it running
    RUNS = "runs"
    LEAVES = "leaves"
    FAILS = "fails"
    LOSES_NODE = "loses a node"
    ENDS = "ends"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    GIVEN_UP = "given up"


@dataclass(frozen=True)
class Event:
    """Something that happens to a job. It is told before the backend hears of it, so that it can be written down first.

    Attributes
    ----------
    now_s : when, on the driver's clock.
    grant : what the job gets or keeps, or has had until now.
    why : in words, of a failure, a loss, a refusal, or the end of a lease.
    """

    now_s: float
    job: Job
    what: Happening
    grant: Grant | None = None
    why: str = ""

    @property
    def text(self) -> str:
        """What happens to the job, in words that follow its name."""
        held = () if self.grant is None else self.grant.devices
        devices = f"{_devices(len(held))} {', '.join(map(str, held))}"
        return {
            Happening.ARRIVES: f"arrives and asks for {self.job.num_devices} {_devices(self.job.num_devices)}",
            Happening.STAYS: f"still runs on {devices}",
            Happening.RUNS: f"runs on {devices}",
            Happening.LEAVES: f"leaves {devices}" + (f": {self.why}" if self.why else ""),
            Happening.FAILS: f"fails ({self.why}) and will continue from its checkpoint",
            Happening.LOSES_NODE: f"loses {devices} ({self.why}) and will continue from its checkpoint",
            Happening.ENDS: "ends",
            Happening.CANCELLED: "is cancelled",
            Happening.REFUSED: f"is refused: {self.why}",
            Happening.GIVEN_UP: f"is given up: {self.why}",
        }[self.what]

    def __str__(self) -> str:
        return f"{self.now_s:7.1f} s  {self.job.name} {self.text}"


def _devices(number: int) -> str:
    return "device" if number == 1 else "devices"
