"""A whole workload on a backend, from its first arrival to its last end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from trainyard.compiling import python_first
from trainyard.fleet.errors import FleetError
from trainyard.fleet.periods import Rounds
from trainyard.fleet.policy import Policy
from trainyard.fleet.records import FleetRun
from trainyard.fleet.run.backend import Backend
from trainyard.fleet.run.drive import POLL_S, Driver
from trainyard.fleet.run.event import Event
from trainyard.fleet.run.past import Past
from trainyard.fleet.run.patience import Patience
from trainyard.fleet.workload.job import Job
from trainyard.hardware.cluster import Cluster

__all__ = ["run_fleet"]


@python_first()
def run_fleet(
    jobs: Sequence[Job],
    cluster: Cluster,
    policy: Policy,
    backend: Backend,
    *,
    name: str = "",
    place: str = "consolidated",
    rounds: Rounds | None = None,
    patience: Patience | None = None,
    tell: Callable[[Event], None] = lambda _: None,
) -> FleetRun:
    """Run a workload to its end on a backend.

    Jobs of an earlier, killed run may still run on the backend. They first stop with a checkpoint, and continue from it
    when the policy starts them.

    Parameters
    ----------
    jobs : in the order of arrival, which is waited for.
    tell : hears what happens to jobs, before the backend does.

    Raises
    ------
    FleetError
        If a job fails too often, the run takes too long, or what all jobs need is away for too long; the backend is
        closed in any case.
    """
    patience = patience or Patience()
    driver = Driver(cluster, policy, backend, place=place, rounds=rounds, patience=patience, tell=tell)
    coming = list(jobs)[::-1]
    began_s = time.monotonic()
    try:
        for job in jobs:
            driver.clear(job, Past())
        while coming or driver.names:
            now_s = time.monotonic() - began_s
            if now_s > patience.limit_s:
                raise FleetError(
                    f"the run is not done after {patience.limit_s:g} s; {len(driver.names)} jobs are left: "
                    f"{', '.join(driver.names)}"
                )
            while coming and coming[-1].arrival_s <= now_s:
                driver.submit(coming.pop(), now_s)
            driver.step(now_s)
            if driver.given_up:
                raise FleetError(next(iter(driver.given_up.values())))
            if driver.trouble and now_s > driver.trouble_since_s + patience.lacks_s:
                raise FleetError(f"for {patience.lacks_s:g} s: {driver.trouble}")
            time.sleep(POLL_S)
        return driver.allocator.result(name)
    finally:
        backend.close()
