"""Jobs that run for real: how far they are is seen; nobody has to foretell it, nor to remember it for ever."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.fleet.mechanism.rates import Rates
from trainyard.fleet.records import Recorder
from trainyard.fleet.workload.job import Grant


class Observed(Rates):
    """Knows where jobs run, and foretells nothing of trainings: that could take longer than a step of theirs."""

    def _rate(self, row: int, grant: Grant) -> float:
        """Work per second of a command, which may never tell how far it is; 0 for others."""
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
