"""Best evaluations of a run: which checkpoints stay, and when a run stops because nothing gets better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trainyard.reading.arguments import WrongValueError, require_field_types

__all__ = ["EarlyStop", "Evaluated", "KeepBest"]

Evaluated = tuple[int, Mapping[str, float]]
"""Steps done, and loss and metrics by name after them."""


@dataclass(frozen=True)
class _ByMetric:
    """Comparison of evaluations by one value.

    Attributes
    ----------
    metric : its name: ``loss``, or a metric of the model or of the evaluation.
    mode : whether a smaller (``min``) or a larger value (``max``) is better; one that is not a number is never better.
    """

    metric: str = "loss"
    mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        require_field_types(self)
        if self.mode not in ("min", "max"):
            raise WrongValueError(f"unknown mode {self.mode!r}; known: min, max")

    def cost(self, evaluated: Evaluated) -> float:
        """Return the value as a number of which a smaller one is better.

        Raises
        ------
        WrongValueError
            If the evaluation has no value of this name; the message lists the known ones.
        """
        self.require_metric(evaluated[1])
        value = evaluated[1][self.metric]
        return math.inf if math.isnan(value) else value if self.mode == "min" else -value

    def require_metric(self, values: Mapping[str, float]) -> None:
        """Check that an evaluation has the metric.

        Raises
        ------
        WrongValueError
            If it has not; the message lists the metrics that it has.
        """
        if self.metric not in values:
            raise WrongValueError(
                f"the evaluation has no metric {self.metric!r}; it has {', '.join(values)}. Give one of these"
            )


@dataclass(frozen=True)
class KeepBest(_ByMetric):
    """Checkpoints that stay beside the newest ones, by the evaluations after their steps.

    Attributes
    ----------
    num : of the best ones.
    """

    num: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num < 1:
            raise WrongValueError(
                f"at least one best checkpoint is kept, got num={self.num}; or give no KeepBest"
            )

    def steps(self, history: Sequence[Evaluated]) -> list[int]:
        """Return the steps of the best evaluations, the best first; of equal ones the earlier."""
        return [evaluated[0] for evaluated in sorted(history, key=self.cost)[: self.num]]


@dataclass(frozen=True)
class EarlyStop(_ByMetric):
    """End of a run whose evaluations get no better.

    Attributes
    ----------
    patience : evaluations in a row that are no better than the best before them, after which the run ends.
    min_delta : by which a value must be better to count.
    """

    patience: int = 3
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patience < 1 or not self.min_delta >= 0.0:
            raise WrongValueError(
                f"patience is at least 1 and min_delta at least 0, got {self.patience} and {self.min_delta}"
            )

    def reason(self, history: Sequence[Evaluated]) -> str:
        """Return why the run ends after the last evaluation; "" if it goes on."""
        best, num_worse = None, 0
        for evaluated in history:
            if best is None or self.cost(evaluated) < self.cost(best) - self.min_delta:
                best, num_worse = evaluated, 0
            else:
                num_worse += 1
        if best is None or num_worse < self.patience:
            return ""
        return (
            f"stopped early after step {history[-1][0]}: {self.metric} was best after step {best[0]} "
            f"({best[1][self.metric]:.6g}), and no better in {num_worse} evaluations since"
        )
