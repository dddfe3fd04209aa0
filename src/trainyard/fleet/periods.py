"""Times after which something happens again: neither so short that nothing else gets done, nor for ever."""

from __future__ import annotations

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
