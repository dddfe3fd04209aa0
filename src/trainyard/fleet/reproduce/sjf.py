"""Shortest job first: the least mean of jobs that come at once, and the mean response time of a queue."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from trainyard.fleet.policies.queues import sjf
from trainyard.fleet.reproduce.programs.tiresias import sixty_jobs
from trainyard.fleet.reproduce.queueing import ONE_DEVICE, response_table, shortest_first_s
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import declared_job
from trainyard.published import PaperTable, Row


def _rows() -> Iterator[Row]:
    lengths_s = [job.work for job in sixty_jobs()]
    jobs = [declared_job(str(n), 0.0, 1, length_s) for n, length_s in enumerate(lengths_s)]
    least_s = sum(accumulate(sorted(lengths_s))) / len(jobs)
    yield Row("60 jobs", least_s, simulate_fleet(jobs, ONE_DEVICE, sjf()).mean_completion_s)


TABLES = (
    PaperTable(
        'W. E. Smith, "Various Optimizers for Single-Stage Production", 1956: shortest first has the least mean',
        "mean completion time, s",
        "simulated: the lengths of Tiresias' 60 jobs, all there at once, on one device",
        _rows,
        tolerance=1e-9,
    ),
    response_table("The formula of Phipps, 1956, M/G/1 with the shortest job first", sjf(), shortest_first_s),
)
