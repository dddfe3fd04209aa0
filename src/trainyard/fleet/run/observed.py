"""Rates and notes of jobs that run for real: their progress is observed, and is not kept for ever."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.fleet.mechanism.rates import Rates
from trainyard.fleet.records import Recorder
from trainyard.fleet.workload.job import Grant


class Observed(Rates):
    """Rates of real jobs: of trainings nothing is predicted, as that could take longer than a step of theirs."""

    def _rate(self, row: int, grant: Grant) -> float:
        """Return the work per second of a command, which may report no progress; 0 for a training."""
        return super()._rate(row, grant) if self.table.job(row).command is not None else 0.0

    def adapt(self, rows: Sequence[int]) -> None:
        """Do nothing: real jobs adapt themselves."""


class NoNotes(Recorder):
    """Takes no notes of jobs that are over: for a run without an end they would fill the memory."""

    def __init__(self) -> None:
        super().__init__(keep_spans=False)

    def ended(self, *_: object) -> None:
        """Nothing is noted."""

    def turned_away(self, *_: object) -> None:
        """Nothing is noted."""

    def uses(self, *_: object) -> None:
        """Nothing is noted."""
