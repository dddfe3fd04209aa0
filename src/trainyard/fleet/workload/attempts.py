"""Attempts of jobs as they were recorded: when a job had devices, and how many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trainyard.reading.limits import MOST_DEVICES
from trainyard.reading.rows import Row

__all__ = ["Attempt", "attempts_text", "joined", "read_attempts"]

_FORM = (
    "START:END for each attempt, in seconds, the first first, separated by spaces; START:END*DEVICES where it had "
    "another number of devices"
)


class Attempt(NamedTuple):
    """A time for which a job had devices without interruption.

    Attributes
    ----------
    start_s, end_s : counted as the job's ``arrival_s``; the end is None for a job of one attempt of which only the start
        was recorded, and which ran for its length.
    num_devices : that it had.
    """

    start_s: float
    num_devices: int
    end_s: float | None = None

    def shifted(self, by_s: float) -> Attempt:
        """The same attempt with its times counted from an earlier moment."""
        return Attempt(
            self.start_s + by_s, self.num_devices, None if self.end_s is None else self.end_s + by_s
        )


def joined(parts: Sequence[Sequence[tuple[float, float, int]]]) -> tuple[Attempt, ...]:
    """Attempts of a job from those of its parts: what overlaps is one attempt, with the devices of all parts together.

    Parameters
    ----------
    parts : of each component of a job, which has its own devices: start, end and devices of every attempt. Of attempts
        of one component that overlap, which can only be a fault of clocks, the last says how many devices it had.
    """
    found: list[tuple[float, float, int]] = []
    together: dict[int, int] = {}
    for start_s, end_s, part, num_devices in sorted(
        (start_s, end_s, part, num_devices)
        for part, own in enumerate(parts)
        for start_s, end_s, num_devices in own
    ):
        if not found or start_s >= found[-1][1]:
            together = {}
            found.append((start_s, end_s, 0))
        together[part] = num_devices
        first_s, last_s, _ = found[-1]
        found[-1] = first_s, max(last_s, end_s), sum(together.values())
    return tuple(Attempt(start_s, num_devices, end_s) for start_s, end_s, num_devices in found)


def read_attempts(row: Row, size: int) -> tuple[Attempt, ...]:
    """Attempts of a job in Trainyard's own form, by its fields ``attempts`` or ``started_s``.

    Parameters
    ----------
    size : devices that the job asks for.

    Raises
    ------
    RowError
        If there are both, or the attempts are not one after the other.
    """
    if "attempts" not in row.fields:
        return (Attempt(row.number("started_s"), size),) if "started_s" in row.fields else ()
    if "started_s" in row.fields:
        raise row.error("started_s", "nothing where attempts say when the job started")
    found = tuple(_attempt(row, text, size) for text in row.fields["attempts"].split())
    times_s = [time_s for each in found for time_s in (each.start_s, each.end_s or 0.0)]
    if not found or times_s != sorted(times_s):
        raise row.error("attempts", _FORM)
    return found


def _attempt(row: Row, text: str, size: int) -> Attempt:
    times, _, devices = text.partition("*")
    start, _, end = times.partition(":")
    field = row._replace(fields={"start": start, "end": end, "devices": devices or str(size)})
    try:
        start_s, end_s = field.number("start"), field.number("end")
        return Attempt(start_s, field.count("devices", 0, MOST_DEVICES), end_s)
    except row.row_error as error:
        raise row.error("attempts", _FORM) from error


def attempts_text(attempts: Sequence[Attempt], size: int) -> dict[str, float | str]:
    """The fields by which Trainyard's own form says the attempts of a job."""
    if not attempts:
        return {}
    if attempts[0].end_s is None:
        return {"started_s": attempts[0].start_s}
    return {
        "attempts": " ".join(
            f"{each.start_s!r}:{each.end_s!r}" + f"*{each.num_devices}" * (each.num_devices != size)
            for each in attempts
        )
    }
