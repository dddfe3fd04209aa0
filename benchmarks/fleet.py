"""Jobs per second of the fleet simulator by policy, and seconds of large decisions.

Run `python benchmarks/fleet.py [FOLDER]`. FOLDER holds public traces and measured tables (`pollux/traces/philly.csv`,
`pollux/workloads`, `pollux/traces/<application>`, `elasticflow-traces/raw`, `gavel/simulation_throughputs.json`,
`gavel/traces/physical_cluster`, `sia/traces`, `sia/workloads`). Without it jobs are drawn from published distributions,
and Pollux and Sia, which need measured applications, and the authors' trace of Gavel are left out.
FIFO is next to a plain simulator, on heapq and lists, that finds the same times.
Seconds are processor seconds of one thread; every policy runs a part of the workload first, so that nothing is compiled.

Jobs come to a cluster on which hardly anybody waits, and to one that they keep busy: there FIFO, which nobody overtakes,
has thousands waiting. Of 2,048 jobs that come at once, several decisions are timed, as rounds go on: in the first nobody
knows anything and nobody has devices yet.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from record import finish, parser

from trainyard.fleet.allocation import Allocation
from trainyard.fleet.catalog import parse_policy
from trainyard.fleet.policy_wrapper import PolicyWrapper
from trainyard.fleet.records import FleetRun
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.snapshot import Snapshot
from trainyard.fleet.workload.generate import gavel_jobs, philly_jobs
from trainyard.fleet.workload.job import Job, by_arrival
from trainyard.fleet.workload.read import read_workload
from trainyard.fleet.workload.readers.gavel import read_gavel, read_throughputs
from trainyard.fleet.workload.readers.pollux import read_pollux
from trainyard.hardware.cluster import Cluster

_EVENT_POLICIES = ("fifo", "sjf", "srtf", "las", "tiresias")
_GAVEL_POLICIES = (
    "gavel_max_min", "gavel_fifo", "gavel_makespan", "gavel_finish_time", "gavel_cost", "gavel_throughput",
    "gavel_water_filling", "gavel_hierarchical",
)  # fmt: skip
_ROOMY = Cluster.uniform(300, 8)
_GAVEL_CLUSTER = Cluster.of_pools([("v100", 36, 1), ("p100", 36, 1), ("k80", 36, 1)])
_TESTBED_CLUSTER = Cluster.of_pools([("v100", 1, 8), ("p100", 1, 16), ("k80", 1, 24)])
_LARGE_GAVEL_CLUSTER = Cluster.of_pools([("v100", 86, 8), ("p100", 85, 8), ("k80", 85, 8)])
_POLLUX_CLUSTER, _LARGE_POLLUX_CLUSTER = (Cluster.uniform(nodes, 4, "T4") for nodes in (16, 512))
_SIA_CLUSTER = Cluster.of_pools([("aws", 6, 4), ("dgx-ext", 2, 8), ("rtx", 3, 8)])
_LARGE_SIA_CLUSTER = Cluster.of_pools([("aws", 256, 4), ("dgx-ext", 64, 8), ("rtx", 64, 8)])
# A run that is shorter counts as the fastest of three: a shared machine may be half as fast for a second.
_SHORT_S = 2.0
# So many that the simulator goes over to compiled code, where there is some.
_FIRST_JOBS = 6000


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes
    ----------
    events, rounds, at_once : jobs of a workload of each kind at most; None for all of a trace.
    decisions : about jobs that come at once.
    """

    events: int | None = None
    rounds: int = 400
    at_once: int = 2048
    decisions: int = 6


_SMALLEST = Sizes(60, 4, 8, 2)


class DecidedError(Exception):
    """All decisions that were wanted are made."""


@dataclass
class FirstDecisions(PolicyWrapper):
    """A policy that is stopped after some decisions, and how long each took."""

    wanted: int
    seconds: list[float] = field(default_factory=list)

    def decide(self, snapshot: Snapshot, state: Any) -> tuple[Allocation, Any]:
        began = time.process_time()
        decided = super().decide(snapshot, state)
        self.seconds.append(time.process_time() - began)
        if len(self.seconds) == self.wanted:
            raise DecidedError
        return decided


def plain_fifo(jobs: Sequence[Job], num_devices: int) -> list[float]:
    """When jobs end that run in the order of their arrival, on any devices."""
    free, now_s = num_devices, 0.0
    ends_s: list[float] = []
    running: list[tuple[float, int]] = []
    for job in jobs:
        now_s = max(now_s, job.arrival_s)
        while running and (running[0][0] <= now_s or free < job.num_devices):
            end_s, size = heapq.heappop(running)
            now_s, free = max(now_s, end_s), free + size
        free -= job.num_devices
        heapq.heappush(running, (now_s + job.work, job.num_devices))
        ends_s.append(now_s + job.work)
    return ends_s


def timed(run: Callable[[], FleetRun]) -> tuple[FleetRun, float]:
    began = time.process_time()
    found = run()
    return found, time.process_time() - began


def measure(name: str, jobs: Sequence[Job], cluster: Cluster, place: str | None = None) -> dict[str, float]:
    """One policy on a workload."""
    scheduler = scheduler_of(name, place)
    scheduler.simulate(jobs[:30] if scheduler.rounds else jobs[:_FIRST_JOBS], cluster)
    run, seconds = timed(lambda: scheduler.simulate(jobs, cluster))
    for _ in range(2 if seconds < _SHORT_S else 0):
        seconds = min(seconds, timed(lambda: scheduler.simulate(jobs, cluster))[1])
    return {
        "num_jobs": len(jobs),
        "jobs_per_s": len(jobs) / seconds,
        "decisions_per_s": run.num_decisions / seconds,
        "mean_completion_s": run.mean_completion_s,
    }


def next_to_plain(jobs: Sequence[Job], cluster: Cluster) -> dict[str, float]:
    """FIFO next to the plain simulator."""
    began = time.process_time()
    ends_s = plain_fifo(jobs, cluster.num_devices)
    plain_s = time.process_time() - began
    simulate_fleet(jobs[:_FIRST_JOBS], cluster, parse_policy("fifo"), place="anywhere")
    run, seconds = timed(lambda: simulate_fleet(jobs, cluster, parse_policy("fifo"), place="anywhere"))
    if not np.allclose(np.sort(run.finish_s), np.sort(ends_s)):
        raise AssertionError("the plain simulator and ours disagree")
    return {"plain_jobs_per_s": len(jobs) / plain_s, "jobs_per_s": len(jobs) / seconds}


def large_decisions(name: str, jobs: Sequence[Job], cluster: Cluster, sizes: Sizes) -> dict[str, float]:
    """Processor seconds of decisions about 2,048 jobs that all come at once."""
    copies = range(-(-sizes.at_once // len(jobs)))
    many = [replace(job, name=f"{job.name}-{i}", arrival_s=0.0) for i in copies for job in jobs]
    at_once = many[: sizes.at_once]
    scheduler = scheduler_of(name)
    for wanted in (1, sizes.decisions):  # the first compiles and loads
        timed = FirstDecisions(scheduler.policy, wanted)
        with suppress(DecidedError):
            replace(scheduler, policy=timed).simulate(at_once, cluster)
    return {
        "num_jobs": len(at_once),
        "num_devices": cluster.num_devices,
        "first_s": timed.seconds[0],
        "mean_s": sum(timed.seconds) / len(timed.seconds),
        "slowest_s": max(timed.seconds),
    }


def event_workloads(folder: Path | None) -> dict[str, tuple[list[Job], Cluster]]:
    """Jobs of Philly and of ElasticFlow's ten clusters, or drawn like the first; and a cluster that they keep busy."""
    if folder is None:
        return {"like philly": (list(philly_jobs(20_000)), Cluster.uniform(64, 8))}
    files = sorted((folder / "elasticflow-traces" / "raw").glob("*.csv"))
    ten = [replace(job, name=f"{file.stem}-{job.name}") for file in files for job in read_workload(file)]
    return {
        "philly": (list(read_workload(folder / "pollux" / "traces" / "philly.csv")), Cluster.uniform(64, 8)),
        "elasticflow": (list(by_arrival(ten)), Cluster.uniform(160, 8)),
    }


def round_jobs(folder: Path | None, num_jobs: int, mean_gap_s: float) -> list[Job]:
    """Jobs as Gavel's simulator draws them, with its throughputs; jobs like Philly's where they are not there."""
    if folder is None:
        return list(philly_jobs(num_jobs, mean_gap_s=mean_gap_s, most_devices=8))
    throughputs = read_throughputs(folder / "gavel" / "simulation_throughputs.json")
    return list(gavel_jobs(num_jobs, throughputs, 0, mean_gap_s=mean_gap_s))


def testbed_jobs(folder: Path) -> list[Job]:
    """The authors' own trace of Gavel."""
    trace = folder / "gavel" / "traces" / "physical_cluster" / "max_min_fairness.trace"
    return list(read_gavel(trace, folder / "gavel" / "simulation_throughputs.json"))


def pollux_jobs(folder: Path) -> list[Job]:
    """The first workload of Pollux."""
    return list(read_pollux(folder / "pollux" / "workloads" / "workload-1.csv", folder / "pollux" / "traces"))


def sia_jobs(folder: Path) -> list[Job]:
    """The first workload of Sia, whose jobs run on three types of devices."""
    trace = folder / "sia" / "workloads" / "philly" / "workload-1.csv"
    return list(read_pollux(trace, folder / "sia" / "traces", device_types=_SIA_CLUSTER.device_types))


def main() -> None:
    """Measure, print and record."""
    options = parser(__doc__)
    options.add_argument("folder", type=Path, nargs="?", metavar="FOLDER")
    given = options.parse_args()
    folder, sizes = given.folder, _SMALLEST if given.smallest else Sizes()
    results: dict[str, dict[str, float]] = {}

    def note(name: str, found: dict[str, float]) -> None:
        results[name] = found
        print(f"{name}: " + ", ".join(f"{key} {value:,.3g}" for key, value in found.items()), flush=True)

    workloads = event_workloads(folder)
    for trace, (all_jobs, busy) in workloads.items():
        jobs = all_jobs[: sizes.events]
        note(f"fifo next to a plain simulator, {trace}", next_to_plain(jobs, _ROOMY))
        for name in _EVENT_POLICIES:
            note(f"events, {trace}, {name}", measure(name, jobs, _ROOMY))
            note(f"events, {trace}, {name}, busy cluster", measure(name, jobs, busy))
    gavel = round_jobs(folder, sizes.rounds, 1200.0)
    for name in _GAVEL_POLICIES:
        note(f"rounds, {name}", measure(name, gavel, _GAVEL_CLUSTER, place="anywhere"))
    if folder is not None:
        for name in _GAVEL_POLICIES:
            note(
                f"rounds, the authors' trace, {name}",
                measure(name, testbed_jobs(folder)[: sizes.rounds], _TESTBED_CLUSTER, place="anywhere"),
            )
    many = round_jobs(folder, sizes.at_once, 1.0)
    for name in _GAVEL_POLICIES:
        note(f"large decisions, {name}", large_decisions(name, many, _LARGE_GAVEL_CLUSTER, sizes))
    if folder is not None:
        for name, jobs, cluster, large in (
            ("pollux", pollux_jobs(folder), _POLLUX_CLUSTER, _LARGE_POLLUX_CLUSTER),
            ("sia", sia_jobs(folder), _SIA_CLUSTER, _LARGE_SIA_CLUSTER),
        ):
            note(f"rounds, {name}", measure(name, jobs[: sizes.rounds], cluster))
            note(f"large decisions, {name}", large_decisions(name, jobs, large, sizes))
    finish("fleet", results, given.smallest)


if __name__ == "__main__":
    main()
