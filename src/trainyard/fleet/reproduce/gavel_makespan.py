"""Gavel's makespan: what the authors' program prints."""

from __future__ import annotations

from trainyard.fleet.replicas.gavel import MakespanProgram
from trainyard.fleet.reproduce.programs.gavel import small_table

TABLES = (small_table(MakespanProgram(), "min_total_duration_perf", 419.335, 854.284),)
