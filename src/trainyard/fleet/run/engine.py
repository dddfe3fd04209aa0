"""What an engine is: it starts and stops trainings on devices, and says how far they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trainyard.fleet.workload.job import Grant


@dataclass(frozen=True)
class Progress:
    """How far a job is.

    Attributes
    ----------
    steps : done and reported.
    ended : whether it has done all of its work.
    failure : why it stopped before, in one sentence; None if it did not.
    """

    steps: int
    ended: bool = False
    failure: str | None = None


class Engine(Protocol):
    """Runs trainings. Jobs are known to it by name before they are started."""

    def start(self, name: str, grant: Grant) -> None:
        """Start a job on devices, or continue it from its newest checkpoint."""
        ...

    def stop(self, name: str) -> None:
        """Stop a job; its devices are free when this returns, and its checkpoints stay."""
        ...

    def progress(self, name: str) -> Progress:
        """How far a job is; it may have been stopped or not started yet."""
        ...

    def close(self) -> None:
        """Stop everything."""
        ...
