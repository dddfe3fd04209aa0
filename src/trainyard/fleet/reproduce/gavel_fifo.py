"""Gavel's first in, first out: what the authors' program prints."""

from __future__ import annotations

from trainyard.fleet.replicas.gavel_fifo import FifoProgram
from trainyard.fleet.reproduce.programs.gavel import large_table, small_table

_BLIND = FifoProgram(aware=False)

TABLES = (
    small_table(_BLIND, "fifo", 438.268, 818.677),
    large_table({"fifo": (_BLIND, 35904.574), "fifo_perf": (FifoProgram(), 19526.854)}),
)
