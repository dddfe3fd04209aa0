"""AntMan: guaranteed jobs as if alone, opportunistic ones on what they leave idle."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.fleet.policies.antman import AntMan
from trainyard.fleet.reproduce.priorities import priority_table
from trainyard.fleet.reproduce.queueing import ONE_DEVICE
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import declared_job
from trainyard.published import PaperTable, Row


def _pairs() -> Iterator[Row]:
    for busy in (0.2, 0.4, 0.6, 0.8):
        jobs = [
            declared_job("guaranteed", 0, 1, 100, busy),
            declared_job("opportunistic", 0, 1, 100, guaranteed=False),
        ]
        run = simulate_fleet(jobs, ONE_DEVICE, AntMan())
        ended_s = dict(zip(run.names, run.finish_s.tolist(), strict=True))
        yield Row(f"guaranteed, busy for {busy:.0%}", 100.0, ended_s["guaranteed"])
        # In the first 100 s it has 1 - busy of the device, and then all of it.
        yield Row(f"opportunistic, beside {busy:.0%}", 100.0 * (1 + busy), ended_s["opportunistic"])


TABLES = (
    PaperTable(
        "Xiao et al., OSDI 2020, its claim: guaranteed jobs as if alone, opportunistic ones in the time they leave",
        "end, s",
        "simulated: two jobs of 100 s on one device; theirs follows from the claim by arithmetic",
        _pairs,
        tolerance=1e-6,
    ),
    priority_table(AntMan()),
)
