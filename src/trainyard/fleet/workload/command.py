"""Commands that jobs run instead of a training of level 1: any program that can be stopped and started again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trainyard.fleet.errors import FleetError

PER_DEVICE, PER_NODE = "device", "node"
"""Values of `Command.processes`."""
GRACE_S = 30.0
"""Seconds that a command has to save, by default."""

# Programs that start the processes of a node themselves.
_LAUNCHER = re.compile(r"(^|[\s/;&|])(torchrun|accelerate\s+launch|torch\.distributed\.(run|launch))(\s|$)")


@dataclass(frozen=True)
class Command:
    """A line of a shell that a job runs.

    SIGTERM stops the command, and it is started again on other devices: it has to save its work and go on from there. The
    job ends when the command returns 0.

    Attributes
    ----------
    line : of the shell ``sh``.
    folder : absolute path of the folder where the command is started; all nodes see it.
    processes : "device" starts the command once for each device, with a ``RANK`` of its own; "node" once on each node.
    grace_s : seconds from SIGTERM until all processes that are left are killed.
    steps : all steps of the command, if it reports its progress; 0 if it does not.
    """

    line: str
    folder: str
    processes: str = PER_DEVICE
    grace_s: float = GRACE_S
    steps: int = 0

    @property
    def epoch_steps(self) -> int:
        """Steps whose mean loss is one value of the loss curve: a hundredth of all."""
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


def default_processes(line: str) -> str:
    """Return ``processes`` of a command whose job does not say: a launcher starts the processes of a node itself."""
    return PER_NODE if _LAUNCHER.search(line) else PER_DEVICE
