"""Times after which something happens again, such as rounds: neither too short to get anything done, nor for ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainyard.fleet.errors import FleetError
from trainyard.reading.limits import LEAST_PERIOD_S, LONGEST_S


def check_period(what: str, seconds: float, endless: bool = False) -> None:
    """Refuse a time between what happens again and again.

    Parameters
    ----------
    what : lasts so long, such as ``a round``.
    endless : whether it may be infinite, for never.

    Raises
    ------
    FleetError
        If it is too short, too long, or no number.
    """
    if not LEAST_PERIOD_S <= seconds <= LONGEST_S and not (endless and seconds == float("inf")):
        never = ", or inf for never" if endless else ""
        raise FleetError(
            f"{what} lasts from {LEAST_PERIOD_S:g} s to {LONGEST_S:g} s{never}; got {seconds:g} s"
        )


@dataclass(frozen=True)
class Rounds:
    """Decisions are made, and take effect, only every ``round_s`` seconds from time 0 on."""

    round_s: float

    def __post_init__(self) -> None:
        check_period("a round", self.round_s)

    @property
    def own_clock(self) -> Callable[[Any], Any] | None:
        """Factory of a scheduler of rounds with other rules, from the `Allocator` of a run; None for plain rounds."""
        return None

    @property
    def only_simulated(self) -> bool:
        """Whether jobs do in them what no real job does, nor one that may fail or is slowed by others."""
        return False
