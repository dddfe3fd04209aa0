"""Counts of the steps of an engine, by how many tokens each computes."""

from __future__ import annotations

from bisect import bisect_left

from trainyard.serve.run.outputs import STEP_TOKENS

__all__ = ["StepCounts"]


class StepCounts:
    """Counts steps.

    Attributes
    ----------
    num_tokens : that all steps computed.
    """

    def __init__(self) -> None:
        self._counts = [0] * (len(STEP_TOKENS) + 1)
        self.num_tokens = 0

    def add(self, num_tokens: int) -> None:
        """Count a step that computed so many tokens."""
        self._counts[bisect_left(STEP_TOKENS, num_tokens)] += 1
        self.num_tokens += num_tokens

    @property
    def cumulative(self) -> tuple[int, ...]:
        """How many steps computed at most as many tokens as each of `STEP_TOKENS`, and then all of them."""
        total, found = 0, []
        for count in self._counts:
            total += count
            found.append(total)
        return tuple(found)
