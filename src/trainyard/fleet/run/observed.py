"""Jobs that run for real: how far they are is seen, and nobody has to foretell how fast they are."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.fleet.mechanism.paces import Paces
from trainyard.fleet.workload.job import Grant


class Observed(Paces):
    """Knows where jobs run, and foretells nothing: that could take longer than a step of theirs."""

    def _rate(self, row: int, grant: Grant) -> float:
        return 0.0

    def adapt(self, rows: Sequence[int]) -> None:
        """They do so themselves."""
