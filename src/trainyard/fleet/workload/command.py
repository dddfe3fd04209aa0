"""Commands that jobs may run instead of a training of level 1: any program that can be stopped and started again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trainyard.fleet.errors import FleetError

PER_DEVICE, PER_NODE = "device", "node"
GRACE_S = 30.0
"""Seconds that a command has to save, where its job says nothing."""

# What starts the processes of a node itself.
_LAUNCHER = re.compile(r"(^|[\s/;&|])(torchrun|accelerate\s+launch|torch\.distributed\.(run|launch))(\s|$)")


@dataclass(frozen=True)
class Command:
    """A line of a shell that a job runs.

    It is stopped by SIGTERM and started again on other devices, so it has to save what it has done, and to go on from
    there. The job has ended when the command returns 0.

    Attributes
    ----------
    line : of the shell ``sh``.
    folder : where it is started, an absolute path that all nodes see.
    processes : "device" starts it once for each device, with a ``RANK`` of its own; "node" once on each node.
    grace_s : seconds from SIGTERM until what is left of it is killed.
    steps : that it does in all, if it reports its progress; 0 if it does not.
    """

    line: str
    folder: str
    processes: str = PER_DEVICE
    grace_s: float = GRACE_S
    steps: int = 0

    @property
    def epoch_steps(self) -> int:
        """Steps that count as an epoch, whose mean loss it tells: a hundredth of all."""
        return max(1, self.steps // 100)

    def to_dict(self) -> dict[str, Any]:
        """Plain form, for files; ``from_dict`` reads it back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Command:
        """Read the plain form.

        Raises
        ------
        FleetError
            If a field is unknown or missing.
        """
        try:
            return cls(**given)
        except TypeError as error:
            raise FleetError(f"not a command: {error}") from error


def usual_processes(line: str) -> str:
    """Return for what a command is started once where its job does not say: a launcher starts all processes of a node."""
    return PER_NODE if _LAUNCHER.search(line) else PER_DEVICE
