"""What it costs that jobs start, stop and move."""

from __future__ import annotations

from dataclasses import dataclass, fields

from trainyard.fleet.errors import FleetError
from trainyard.reading.limits import LONGEST_S


@dataclass(frozen=True)
class Costs:
    """What changes cost.

    Attributes
    ----------
    restart_s : time in which a job that ran before and gets devices again, or others, does no work: checkpoint, move,
        warm up.
    start_s : the same for a job that starts for the first time.
    together_s : how much longer both last for each other job that starts at the same moment: they load and read at once;
        for one that starts meanwhile, in proportion to what is left.
    """

    restart_s: float = 0.0
    start_s: float = 0.0
    together_s: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0 <= (value := getattr(self, field.name)) <= LONGEST_S:
                raise FleetError(f"{field.name} is a time from 0 to {LONGEST_S:g} seconds, got {value:g}")
            object.__setattr__(
                self, field.name, float(value)
            )  # whole numbers would be compiled for once more
