"""Jobs that give way to others: mean response times of both beside the closed form of preemptive priorities."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from trainyard.fleet.policy import Policy
from trainyard.fleet.reproduce.queueing import ONE_DEVICE, below_s, poisson_jobs, shared_s
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.published import PaperTable, Row

_NUM_JOBS, _LOAD = 12000, 0.3


def priority_table(policy: Policy) -> PaperTable:
    """Guaranteed jobs, and opportunistic ones at the same load on the same device."""

    def rows() -> Iterator[Row]:
        above = poisson_jobs(_NUM_JOBS, _LOAD, 1, exponential=True, prefix="guaranteed")
        below = poisson_jobs(_NUM_JOBS, _LOAD, 2, exponential=True, prefix="opportunistic", guaranteed=False)
        run = simulate_fleet(heapq.merge(above, below, key=lambda job: job.arrival_s), ONE_DEVICE, policy)
        for kind, theirs in (("guaranteed", shared_s(_LOAD)), ("opportunistic", below_s(_LOAD, _LOAD))):
            mine = [name.startswith(kind) for name in run.names]
            yield Row(kind, theirs, float(run.completion_s[mine].mean()))

    return PaperTable(
        "Kleinrock, Queueing Systems, Volume 2, 1976, preemptive priorities, M/M/1",
        "mean response time, s, of jobs of 1 s",
        f"simulated: {_NUM_JOBS} jobs of either kind on one device, each at a load of {_LOAD:g}",
        rows,
        tolerance=0.06,
        caveat="the mean of so many jobs still varies by some percent from seed to seed",
        is_slow=True,
    )
