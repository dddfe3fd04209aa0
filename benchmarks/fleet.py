"""Jobs per second of the fleet simulator by policy, and seconds of one large decision.

Run `python benchmarks/fleet.py [FOLDER]`. FOLDER holds public traces and measured tables (`pollux/traces/philly.csv`,
`pollux/workloads`, `pollux/traces/<application>`, `gavel/simulation_throughputs.json`). Without it jobs are drawn from
published distributions, and Pollux and Sia, which need measured applications, are left out. FIFO is next to a plain
simulator, on heapq and lists, that finds the same times. Seconds are processor seconds of one thread; every policy runs
a small workload first, so that nothing is compiled.
"""

from __future__ import annotations

import heapq
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from record import write_record

from trainyard.fleet.catalog import parse_policy
from trainyard.fleet.policy import Need, Policy, Snapshot, Targets
from trainyard.fleet.records import FleetRun
from trainyard.fleet.setting import setting_of
from trainyard.fleet.simulate import simulate_fleet
from trainyard.fleet.site import Site
from trainyard.fleet.workload.application import elastic, tuned
from trainyard.fleet.workload.generate import gavel_jobs, philly_jobs
from trainyard.fleet.workload.job import Job
from trainyard.fleet.workload.read import read_workload
from trainyard.fleet.workload.readers.gavel import read_throughputs
from trainyard.fleet.workload.readers.pollux import read_applications, read_pollux

_EVENT_POLICIES = ("fifo", "sjf", "srtf", "las", "tiresias")
_GAVEL_POLICIES = ("gavel_max_min", "gavel_fifo", "gavel_makespan", "gavel_finish_time", "gavel_cost")
_EVENT_SITE = Site.uniform(300, 8)
_LARGE = Site.uniform(256, 8, "v100")


class DecidedError(Exception):
    """The one decision that was wanted is made."""


@dataclass
class OneDecision:
    """A policy that is stopped after its first decision, and how long that took."""

    policy: Policy
    seconds: float = 0.0

    @property
    def needs(self) -> frozenset[Need]:
        return self.policy.needs

    @property
    def preempts(self) -> bool:
        return self.policy.preempts

    def start(self, site: Site) -> Any:
        return self.policy.start(site)

    def decide(self, snapshot: Snapshot, state: Any) -> tuple[Targets, Any]:
        began = time.process_time()
        self.policy.decide(snapshot, state)
        self.seconds = time.process_time() - began
        raise DecidedError


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


def measure(name: str, jobs: Sequence[Job], site: Site, place: str | None = None) -> dict[str, float]:
    """One policy on a workload."""
    setting = setting_of(name, place)
    setting.simulate(jobs[:30], site)
    run, seconds = timed(lambda: setting.simulate(jobs, site))
    return {
        "num_jobs": len(jobs),
        "jobs_per_s": len(jobs) / seconds,
        "decisions_per_s": run.num_decisions / seconds,
        "mean_completion_s": run.mean_completion_s,
    }


def next_to_plain(jobs: Sequence[Job], site: Site) -> dict[str, float]:
    """FIFO next to the plain simulator."""
    began = time.process_time()
    ends_s = plain_fifo(jobs, site.num_devices)
    plain_s = time.process_time() - began
    run, seconds = timed(lambda: simulate_fleet(jobs, site, parse_policy("fifo"), place="anywhere"))
    if not np.allclose(np.sort(run.finish_s), np.sort(ends_s)):
        raise AssertionError("the plain simulator and ours disagree")
    return {"plain_jobs_per_s": len(jobs) / plain_s, "jobs_per_s": len(jobs) / seconds}


def one_decision(name: str, jobs: Sequence[Job], site: Site) -> dict[str, float]:
    """Processor seconds of a decision about jobs that all come at once."""
    setting, at_once = setting_of(name), [replace(job, arrival_s=0.0) for job in jobs]
    for once in (OneDecision(setting.policy), OneDecision(setting.policy)):  # the first compiles and loads
        with suppress(DecidedError):
            replace(setting, policy=once).simulate(at_once, site)
    return {"num_jobs": len(jobs), "num_devices": site.num_devices, "seconds": once.seconds}


def event_jobs(folder: Path | None) -> list[Job]:
    """The jobs of Philly, or as many drawn like them."""
    if folder is None:
        return list(philly_jobs(20_000))
    return list(read_workload(folder / "pollux" / "traces" / "philly.csv"))


def round_jobs(folder: Path | None, num_jobs: int, mean_gap_s: float) -> list[Job]:
    """Jobs as Gavel's simulator draws them, with its throughputs; jobs like Philly's where they are not there."""
    if folder is None:
        return list(philly_jobs(num_jobs, mean_gap_s=mean_gap_s, most_devices=8))
    throughputs = read_throughputs(folder / "gavel" / "simulation_throughputs.json")
    return list(gavel_jobs(num_jobs, throughputs, 0, mean_gap_s=mean_gap_s))


def adaptive_workloads(folder: Path) -> dict[str, list[Job]]:
    """The first workload of Pollux, by policy."""
    known = read_applications(folder / "pollux" / "traces")
    jobs = list(read_pollux(folder / "pollux" / "workloads" / "workload-1.csv"))
    return {"pollux": list(tuned(jobs, known)), "sia": list(elastic(jobs, known))}


def main() -> None:
    """Measure, print and record."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    results: dict[str, dict[str, float]] = {}

    def note(name: str, found: dict[str, float]) -> None:
        results[name] = found
        print(f"{name}: " + ", ".join(f"{key} {value:,.3g}" for key, value in found.items()), flush=True)

    jobs = event_jobs(folder)
    note("fifo next to a plain simulator", next_to_plain(jobs, _EVENT_SITE))
    for name in _EVENT_POLICIES:
        note(f"events, {name}", measure(name, jobs, _EVENT_SITE))
    pools = Site.of_pools([("v100", 36, 1), ("p100", 36, 1), ("k80", 36, 1)])
    gavel = round_jobs(folder, 400, 1200.0)
    for name in _GAVEL_POLICIES:
        note(f"rounds, {name}", measure(name, gavel, pools, place="anywhere"))
    many = round_jobs(folder, 2048, 1.0)
    for name in _GAVEL_POLICIES:
        note(f"one decision, {name}", one_decision(name, many, _LARGE))
    if folder is not None:
        site = Site.uniform(16, 4)
        for name, adaptive in adaptive_workloads(folder).items():
            note(f"rounds, {name}", measure(name, adaptive, site))
            repeated = [
                replace(job, name=f"{job.name}-{i}")
                for i in range(-(-2048 // len(adaptive)))
                for job in adaptive
            ]
            note(f"one decision, {name}", one_decision(name, repeated[:2048], Site.uniform(512, 4)))
    print(write_record("fleet", results))


if __name__ == "__main__":
    main()
