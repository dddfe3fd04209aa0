"""Tables of jobs: what cannot be read of them is an error of the fleet."""

from __future__ import annotations

from typing import ClassVar

from trainyard.fleet.errors import FleetError
from trainyard.reading import left_out, table


class RowError(left_out.RowError, FleetError):
    """A row of a trace that cannot be read."""


class Table(table.Table):
    """A trace of one row per job, or of several."""

    error: ClassVar[type[ValueError]] = FleetError
    row_error: ClassVar[type[left_out.RowError]] = RowError
