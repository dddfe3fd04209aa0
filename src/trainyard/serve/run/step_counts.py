"""Counts of the steps of an engine, by their numbers of tokens."""

from __future__ import annotations

from bisect import bisect_left

from trainyard.serve.run.outputs import STEP_TOKENS

__all__ = ["StepCounts"]


class StepCounts:
    """Counts steps by their numbers of tokens.

    Attributes
    ----------
    num_tokens : computed by all steps together.
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
        """Numbers of steps of at most so many tokens, for each of `STEP_TOKENS`; the last one is of all steps."""
        total, found = 0, []
        for count in self._counts:
            total += count
            found.append(total)
        return tuple(found)
