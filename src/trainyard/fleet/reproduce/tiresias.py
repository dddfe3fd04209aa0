"""Tiresias: what the authors' simulator prints for its two-dimensional queues, and those of ElasticFlow and Pollux."""

from __future__ import annotations

from trainyard.fleet.replicas.tiresias import tiresias_program
from trainyard.fleet.reproduce.programs.elasticflow import TRACE, deadlines_table, in_slots
from trainyard.fleet.reproduce.programs.pollux import jobs_table, tiresias_run
from trainyard.fleet.reproduce.programs.tiresias import cluster_table, sixty_jobs_table
from trainyard.fleet.workload.readers.elasticflow import read_elasticflow

_QUEUES = tiresias_program()

TABLES = (
    sixty_jobs_table({"dlas-gpu": (_QUEUES, 190.683, 3271.0)}),
    cluster_table({"dlas-gpu": (_QUEUES, 15623.572, 2952852.0)}),
    deadlines_table("dlas-gpu", 56, lambda folder: in_slots(read_elasticflow(folder / TRACE))),
    jobs_table("tiresias", 3469.69375, tiresias_run, 1e-6),
)
