"""Gavel's max-min fairness: what the authors' program prints, and what Shockwave's does."""

from __future__ import annotations

from trainyard.fleet.replicas.gavel import MaxMinProgram
from trainyard.fleet.reproduce.programs import shockwave
from trainyard.fleet.reproduce.programs.gavel import large_table, small_table

_AWARE = MaxMinProgram()

TABLES = (
    small_table(_AWARE, "max_min_fairness_perf", 276.897, 769.659),
    large_table(
        {
            "max_min_fairness": (MaxMinProgram(aware=False), 19989.255),
            "max_min_fairness_perf": (_AWARE, 14622.820),
        }
    ),
    shockwave.TABLE,
)
