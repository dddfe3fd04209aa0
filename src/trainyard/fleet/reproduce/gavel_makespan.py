"""Gavel's makespan: what the authors' program prints."""

from __future__ import annotations

from trainyard.fleet.policies.gavel.makespan import makespan
from trainyard.fleet.reproduce.programs.gavel import small_table

TABLES = (small_table(makespan(as_published=True), "min_total_duration_perf", 419.335, 854.284),)
