"""First in, first out: what Tiresias' simulator prints, and the mean response time of a queue."""

from __future__ import annotations

from trainyard.fleet.policies.queues import fifo
from trainyard.fleet.reproduce.programs.tiresias import cluster_table, sixty_jobs_table
from trainyard.fleet.reproduce.queueing import first_come_s, response_table

_FIRST_FIT = fifo(backfill=True)

TABLES = (
    sixty_jobs_table({"fifo": (fifo(), 200.817, 3335.0), "fjf": (_FIRST_FIT, 190.683, 3271.0)}),
    cluster_table({"fifo": (fifo(), 20218.322, 2952852.0), "fjf": (_FIRST_FIT, 16163.587, 2952852.0)}),
    response_table("The formula of Pollaczek and Khinchine, 1930 to 1932, M/G/1", fifo(), first_come_s),
)
