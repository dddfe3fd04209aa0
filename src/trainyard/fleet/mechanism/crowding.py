"""Interference: jobs that have devices for themselves and share the rest of a machine, and so slow each other."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.fleet.errors import FleetError


@dataclass(frozen=True)
class Crowding:
    """Devices of a node that work at full speed beside each other.

    When more of them are in use, all of them share what the node has, such as processors or a link to the network, in
    equal parts. What a job does to itself in this way is in the speed that was measured of it.

    Attributes
    ----------
    devices : that are not slowed on one node; infinite for no interference.
    only_places : whether devices are no more than places for processes, as are those of type ``local``: jobs that share
        one do not slow each other, and the shares that they got mean nothing.
    """

    devices: float = float("inf")
    only_places: bool = False

    def __post_init__(self) -> None:
        if not self.devices > 0:
            raise FleetError(f"a node has more than 0 devices that are not slowed, got {self.devices}")

    @property
    def is_there(self) -> bool:
        return self.devices < float("inf")

    def speed(self, own: int, used: int) -> float:
        """Speed of a job, in proportion to what it would be alone on the node.

        Parameters
        ----------
        own, used : devices of the node that the job has, and that anybody has.
        """
        return max(1.0, own / self.devices) / max(1.0, used / self.devices)
