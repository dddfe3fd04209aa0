"""What the simulator of Pollux' authors prints for the baselines of its evaluation, beside ours.

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021; petuum/adaptdl,
branch osdi21-artifact, ``simulator/simulator.py``, with rounds of a minute and 30 s for every start.

Its baselines leave jobs the batch sizes that their owners chose. Tiresias leaves them their gangs, too; Optimus gives
them any number of devices, but NCF one. The schedulers are told how long a step takes, where a device alone always takes
two passes for it, and how many steps the epochs took that were measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.periods import Rounds
from trainyard.fleet.policy import Policy
from trainyard.fleet.records import FleetRun
from trainyard.fleet.replicas.optimus import OptimusInPollux
from trainyard.fleet.replicas.tiresias_in_pollux import TiresiasInPollux
from trainyard.fleet.reproduce.programs.whole_seconds import whole_seconds
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.application import Application, SelfTuned, elastic, tuned
from trainyard.fleet.workload.goodput import Batch, divided
from trainyard.fleet.workload.job import Adaptive, Grant, Job, Rate, Spot
from trainyard.fleet.workload.readers.pollux import read_applications, read_pollux
from trainyard.fleet.workload.readers.table import Table
from trainyard.hardware.cluster import Cluster
from trainyard.published import Files, PaperTable, Row

Floats = NDArray[np.float64]

_WORKLOAD, _TRACES = "workloads/workload-6.csv", "traces"
_CLUSTER = Cluster.uniform(16, 4, "T4")
_ON_ONE_DEVICE = "ncf"


@dataclass(frozen=True, eq=False)
class Kept(Adaptive):
    """A job that keeps its batch size; its epochs take whole seconds.

    Attributes
    ----------
    steps : at that batch size, by the end of every epoch, when it was measured.
    """

    application: Application
    batch_size: int
    steps: Floats

    def rate(self, spot: Spot, grant: Grant, done: float, report: Any) -> Rate:
        batch = divided(self.batch_size, spot.num_devices, self.application.limits)
        size = batch.local * batch.num_passes * spot.num_devices
        return whole_seconds(self.application, size, self._step_s(spot, batch), done, report)

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        """What its scheduler is told: steps per second."""
        always_two = self.application.limits._replace(smallest=0)
        return 1.0 / self._step_s(spot, divided(self.batch_size, spot.num_devices, always_two))

    def rest_s(self, spot: Spot, grant: Grant, done: float, work: float) -> float:
        """What its scheduler is told: time for the steps that are left."""
        ends, steps = np.append(0.0, self.application.epoch_ends), np.append(0.0, self.steps)
        left = float(np.interp(work, ends, steps) - np.interp(done, ends, steps))
        return left / self.work_per_s(spot, grant)

    def _step_s(self, spot: Spot, batch: Batch) -> float:
        # Nodes are next to each other in the order in which the program fills them, those with most devices free first.
        compute_s, step_s = self.application.step_s(tuple(sorted(spot.per_node, reverse=True)), batch.local)
        return step_s + (batch.num_passes - 1) * compute_s


def in_gangs(folder: Path) -> Iterator[Job]:
    """The program's jobs under Tiresias, from its folder."""
    return tuned(read_pollux(folder / _WORKLOAD), read_applications(folder / _TRACES))


def resizable(folder: Path) -> Iterator[Job]:
    """The program's jobs under Optimus."""
    for job in elastic(read_pollux(folder / _WORKLOAD), read_applications(folder / _TRACES)):
        yield replace(job, max_devices=1) if job.model == _ON_ONE_DEVICE else job


def _kept(folder: Path, jobs: Iterable[Job]) -> Iterator[Job]:
    """Jobs whose epochs take whole seconds."""
    for job in jobs:
        assert isinstance(job.profile, SelfTuned)
        app, size = job.profile.application, job.profile.batch_size
        yield replace(job, profile=Kept(app, size, _steps(folder / _TRACES / app.name, size)))


@lru_cache(maxsize=64)
def _steps(folder: Path, batch_size: int) -> Floats:
    """Steps at a batch size by the end of every epoch; between batch sizes that were measured, in proportion."""
    runs = {
        int(path.stem.split("-")[1]): [row.number("iteration") for row in Table(path, ("iteration",)).rows()]
        for path in folder.glob("validation-*.csv")
    }
    sizes = sorted(runs)
    by_epoch = zip(*(runs[size] for size in sizes), strict=False)
    return np.array([np.interp(batch_size, sizes, steps) for steps in by_epoch])


def as_in_pollux(
    jobs: Iterable[Job], policy: Policy, place: str = "consolidated", round_s: float = 60.0
) -> FleetRun:
    """Jobs on the program's cluster, with its rounds and its starts."""
    return simulate_fleet(
        jobs, _CLUSTER, policy, place=place, rounds=Rounds(round_s), costs=Costs(30.0, 30.0)
    )


def tiresias_run(folder: Path) -> FleetRun:
    """The program's jobs under its Tiresias, which has two queues."""
    queues = TiresiasInPollux(thresholds=(16 * 3600.0,))
    return as_in_pollux(_kept(folder, in_gangs(folder)), queues, "emptiest")


def optimus_run(folder: Path) -> FleetRun:
    """The program's jobs under its Optimus."""
    return as_in_pollux(_kept(folder, resizable(folder)), OptimusInPollux())


def jobs_table(
    policy: str, theirs: float, run: Callable[[Path], FleetRun], tolerance: float, *, is_slow: bool = False
) -> PaperTable:
    """The mean completion time of the program's jobs.

    Parameters
    ----------
    policy : the program's name for it.
    run : simulates them, from the folder of the program.
    """

    def rows(folder: Path) -> Iterator[Row]:
        yield Row("160 jobs", theirs, run(folder).mean_completion_s)

    return PaperTable(
        f"The authors' simulator of Pollux, OSDI 2021, workload-6 on 16 nodes of 4 T4, policy {policy}",
        "mean completion time, s",
        "simulated by the rules of the program, the same jobs, measurements and nodes",
        rows,
        tolerance=tolerance,
        is_slow=is_slow,
        files=Files(
            (_TRACES, _WORKLOAD),
            "git clone --branch osdi21-artifact https://github.com/petuum/adaptdl",
            "adaptdl/simulator",
        ),
    )
