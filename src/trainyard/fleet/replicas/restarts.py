"""Rounds after which a job restarts for as long as its model takes to.

So do the simulators of Sia's authors: what a restart costs is measured of every application. A job that goes on with as
many devices of the same type on every node as before does not restart, wherever these are.

References
----------
S. Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling", SOSP 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.periods import Rounds
from trainyard.fleet.rounds.round_scheduler import RoundScheduler
from trainyard.fleet.workload.job import Spot


@dataclass(frozen=True)
class Restarts(Rounds):
    """Rounds in which jobs take their own time to start.

    Attributes
    ----------
    by_model : time in which a job of a model does no work after a start or a restart; of others it is 0. What the run
        charges every job comes on top.
    """

    by_model: Mapping[str, float] = field(default_factory=dict)

    @property
    def own_clock(self) -> Callable[[Allocator], RestartScheduler]:
        """Factory of the scheduler that leads a run through these rounds."""
        return partial(RestartScheduler, self)


class RestartScheduler(RoundScheduler):
    """The clock of a run in such rounds."""

    def __init__(self, rounds: Restarts, allocator: Allocator) -> None:
        super().__init__(rounds.round_s, allocator)
        self._by_model = rounds.by_model
        # Where every job ran in the last round, by its serial number.
        self._spots: dict[int, Spot] = {}

    def open(self, now_s: float) -> list[int]:
        """Let the round begin, with restarts where jobs lie otherwise than in the last one."""
        changed, before, self._spots = super().open(now_s), self._spots, {}
        for row in self.table.active.tolist():
            if (grant := self.table.grants[row]) is None:
                continue
            serial, spot = int(self.table.serial[row]), self.allocator.rates.spot(grant)
            self._spots[serial] = spot
            if before.get(serial) != spot:
                self.allocator.set_back(row, 0.0, now_s, self._by_model.get(self.table.job(row).model, 0.0))
                changed.append(row)
        return changed
