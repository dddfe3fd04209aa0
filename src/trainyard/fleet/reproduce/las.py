"""Least attained service first: the example of Tiresias' paper, even shares, and the mean response time of a queue."""

from __future__ import annotations

from trainyard.fleet.policies.queues import las
from trainyard.fleet.reproduce.programs.tiresias import three_jobs_table
from trainyard.fleet.reproduce.queueing import least_attained_s, response_table, together_table

TABLES = (
    three_jobs_table("2D-LAS", las(by_device_time=True, quantum_s=1.0), 11.7),
    together_table(las()),
    response_table(
        "The formula of Schrage, 1967, M/G/1 with the least attained service first",
        las(quantum_s=0.05),
        least_attained_s,
        num_jobs=6000,
        loads=(0.3, 0.5),
    ),
)
