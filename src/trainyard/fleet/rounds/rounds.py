"""Rounds: decisions are made, and take effect, only every so often."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.periods import check_period
from trainyard.fleet.rounds.round_scheduler import RoundScheduler


@dataclass(frozen=True)
class Rounds:
    """Decisions are made, and take effect, only every ``round_s`` seconds from time 0 on."""

    round_s: float

    def __post_init__(self) -> None:
        check_period("a round", self.round_s)

    def scheduler(self, allocator: Allocator) -> RoundScheduler:
        """The clock of a run in these rounds."""
        return RoundScheduler(self.round_s, allocator)

    @property
    def only_simulated(self) -> bool:
        """Whether jobs do in them what no real job does, nor one that may fail or is slowed by others."""
        return False
