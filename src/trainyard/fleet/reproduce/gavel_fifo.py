"""Gavel's first in, first out: what the authors' program prints."""

from __future__ import annotations

from trainyard.fleet.policies.gavel.fifo import gavel_fifo
from trainyard.fleet.reproduce.programs.gavel import large_table, small_table

_BLIND = gavel_fifo(aware=False, as_published=True)

TABLES = (
    small_table(_BLIND, "fifo", 438.268, 818.677),
    large_table({"fifo": (_BLIND, 35904.574), "fifo_perf": (gavel_fifo(as_published=True), 19526.854)}),
)
