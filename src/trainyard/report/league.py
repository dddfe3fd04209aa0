"""Several ways to run the same step, ranked: the values behind the league table and the comparison page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.table import Table

from trainyard.report.tables import make_table
from trainyard.report.units import bytes_text, percent_text, seconds_text

__all__ = ["Contender", "league_rows", "league_table", "ranked"]


@dataclass(frozen=True)
class Contender:
    """One way to run the step.

    Attributes
    ----------
    name : the strategies, as they were asked for.
    what : the plan in a few words, or why there is none.
    step_s : predicted seconds of a step; None where there is no plan.
    parts_s : where they go on the device that computes longest, by category; they add up to ``step_s``.
    memory_bytes : on the fullest device at its peak, by kind.
    capacity_bytes : memory of that device.
    fits : whether the peak is below what a plan may use of the capacity.
    shortage : what is missing where it does not fit, and what would help.
    mfu : share of the devices' peak flops that the model's own flops reach; None where there is no plan.
    """

    name: str
    what: str
    step_s: float | None = None
    parts_s: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    capacity_bytes: int = 0
    fits: bool = False
    mfu: float | None = None
    shortage: str = ""

    @property
    def peak_bytes(self) -> int:
        """Memory of the fullest device at its peak, of all kinds together."""
        return sum(self.memory_bytes.values())


def ranked(contenders: Sequence[Contender]) -> tuple[Contender, ...]:
    """Fastest first; then those that do not fit, fastest first; then those without a plan."""
    return tuple(sorted(contenders, key=lambda c: (not c.fits, c.step_s is None, c.step_s or 0.0)))


_COLUMNS = ("strategy", "step", "to best", "MFU", "memory per device", "plan")


def league_rows(contenders: Sequence[Contender]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Columns and rows of the league table: one row per contender, best first, each with how much slower it is."""
    order = ranked(contenders)
    best_s = next((c.step_s for c in order if c.fits and c.step_s), None)
    rows = []
    for place, each in enumerate(order, start=1):
        if each.step_s is None:
            rows.append((each.name, "", "", "", "", each.what))
            continue
        against = f"{each.step_s / best_s:.2f}x" if best_s and each.fits else ""
        memory = f"{bytes_text(each.peak_bytes)} of {bytes_text(each.capacity_bytes)}"
        what = each.what if each.fits else f"does not fit: {each.what}. {each.shortage}".rstrip()
        name = f"{place} {each.name}" if each.fits else each.name
        mfu = "" if each.mfu is None else percent_text(each.mfu)
        rows.append((name, seconds_text(each.step_s), against, mfu, memory, what))
    return _COLUMNS, tuple(rows)


def league_table(title: str, contenders: Sequence[Contender]) -> Table:
    """The same for the terminal.

    Parameters
    ----------
    title
        Stands above the table.
    contenders
        In any order.
    """
    table = make_table(title, *league_rows(contenders))
    table.columns[-1].justify = "left"
    return table
