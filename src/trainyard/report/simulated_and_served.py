"""A table of what was simulated beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from trainyard.report.tables import make_table
from trainyard.report.units import seconds_text

if TYPE_CHECKING:
    from trainyard.serve.run.simulated_and_served import SimulatedAndServed

__all__ = ["errors_table"]


def errors_table(title: str, found: Sequence[SimulatedAndServed]) -> Table:
    """A row for each policy: mean and 99th percentile, simulated and measured, and the relative error."""
    columns = ("policy", "", "simulated", "served", "error")
    rows = []
    for each in found:
        errors = each.errors()
        for name in ("ttft", "tpot", "e2e"):
            ours, measured = (getattr(run.summary, name) for run in (each.simulated, each.served))
            for what in ("mean", "p99"):
                both = (seconds_text(getattr(of, f"{what}_s")) for of in (ours, measured))
                rows.append((each.name, f"{name.upper()} {what}", *both, f"{errors[f'{name}_{what}']:+.1%}"))
    return make_table(title, columns, tuple(rows))
