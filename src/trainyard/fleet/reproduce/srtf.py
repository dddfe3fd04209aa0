"""Shortest remaining time first: what Tiresias' simulator prints, its paper's example, and a queue."""

from __future__ import annotations

from trainyard.fleet.policies.queues import srtf
from trainyard.fleet.reproduce.programs.tiresias import cluster_table, sixty_jobs_table, three_jobs_table
from trainyard.fleet.reproduce.queueing import response_table, shortest_remaining_s

_BY_TIME, _BY_DEVICE_TIME = srtf(steady=True), srtf(by_device_time=True, steady=True)

TABLES = (
    sixty_jobs_table(
        {"shortest": (_BY_TIME, 192.117, 3271.0), "shortest-gpu": (_BY_DEVICE_TIME, 195.9, 3315.0)}
    ),
    cluster_table(
        {
            "shortest": (_BY_TIME, 14468.591, 2952852.0),
            "shortest-gpu": (_BY_DEVICE_TIME, 14329.190, 2952852.0),
        }
    ),
    three_jobs_table("shortest remaining service first", srtf(by_device_time=True), 9.3),
    response_table(
        "The formula of Schrage and Miller, 1966, M/G/1 with the shortest remaining time first",
        srtf(),
        shortest_remaining_s,
    ),
)
