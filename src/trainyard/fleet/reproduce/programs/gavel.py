"""A small trace of Gavel's, and what the authors' program prints for it.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020;
stanford-futuredata/gavel at c4fa400, ``scheduler/traces/physical_cluster/small_test.trace`` with the throughputs of
``simulation_throughputs.json`` on two devices of each type, rounds of 360 s, ``simulate_scheduler_with_trace.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.policies.gavel.policy import Gavel
from trainyard.fleet.policies.gavel.problem import Problem
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import Job
from trainyard.fleet.workload.readers.gavel import GavelProfile, Throughputs, read_gavel
from trainyard.hardware.cluster import Cluster
from trainyard.published import Files, PaperTable, Row

Floats = NDArray[np.float64]

TYPES = ("v100", "p100", "k80")
# Steps per second on each type, by job type and devices.
_SPEEDS = {
    ("Transformer (batch size 128)", 2): (10.06924, 5.087429, 1.657472),
    ("Recommendation (batch size 8192)", 1): (2.84151, 5.548441, 2.698783),
    ("Transformer (batch size 256)", 1): (1.595141, 1.677696, 0.458331),
    ("ResNet-18 (batch size 32)", 2): (94.24893, 57.51886, 13.18037),
    ("ResNet-50 (batch size 16)", 1): (11.39613, 9.05299, 2.30052),
    ("LM (batch size 10)", 1): (81.65163, 77.08468, 23.79443),
    ("LM (batch size 5)", 1): (109.1666, 90.77591, 25.4855),
    ("Transformer (batch size 128)", 1): (5.446105, 3.073535, 0.9815827),
    ("CycleGAN", 1): (4.426088, 2.402668, 0.5047706),
    ("Transformer (batch size 16)", 1): (11.06409, 9.537249, 5.467379),
    ("LM (batch size 5)", 2): (185.7238, 76.9219, 32.38551),
    ("Transformer (batch size 64)", 1): (8.617759, 5.091831, 1.752227),
    ("LM (batch size 40)", 1): (45.23737, 35.76638, 11.49965),
    ("ResNet-50 (batch size 32)", 1): (7.787265, 4.888324, 1.236569),
    ("ResNet-18 (batch size 16)", 1): (32.35338, 35.8692, 4.795295),
}
# Which of these a job is, and its steps; all are there at once.
_JOBS = (
    (0, 346), (1, 36), (2, 102), (3, 3948), (4, 170), (5, 8601), (6, 10027), (7, 346), (8, 295), (9, 770),
    (10, 10027), (11, 574), (12, 4303), (13, 595), (5, 8601), (14, 1019), (9, 770), (14, 1019), (1, 36),
    (14, 1817),
)  # fmt: skip
_FILES = Files(
    ("traces/physical_cluster/max_min_fairness.trace", "simulation_throughputs.json"),
    "git clone https://github.com/stanford-futuredata/gavel",
    "gavel/scheduler",
)
_PROGRAM = "The authors' program of Gavel, OSDI 2020"


def small_trace() -> Iterator[Job]:
    """The 20 jobs."""
    alone = {kind: {job: speed[i] for job, speed in _SPEEDS.items()} for i, kind in enumerate(TYPES)}
    throughputs, jobs = Throughputs(alone, {}), tuple(_SPEEDS)
    for number, (which, steps) in enumerate(_JOBS):
        job_type, size = jobs[which]
        profile = GavelProfile(throughputs, job_type)
        yield Job(f"{number}:{job_type}", 0.0, size, float(steps), profile, device_types=TYPES)


def problem(speed: Floats, room: tuple[int, ...], **given: Floats | tuple[str, ...]) -> Problem:
    """Jobs of one device each, of which all that a policy may know is stated; the rest is alike."""
    jobs, kinds = speed.shape
    alike = {
        "scale_factors": np.ones(jobs),
        "weight": np.ones(jobs),
        "left": np.full(jobs, 1000.0),
        "age_s": np.zeros(jobs),
        "time_left_s": np.full(jobs, np.inf),
    }
    return Problem(
        throughputs=speed,
        devices_of_type=np.array(room),
        serial=np.arange(jobs),
        device_types=TYPES[:kinds],
        able=speed > 0,
        **{**alike, **given},  # type: ignore[arg-type]
    )


def small_problem() -> Problem:
    """The kinds of jobs of the small trace that take one device, one job of each, on two devices of each type."""
    return problem(np.array([speed for (_, size), speed in _SPEEDS.items() if size == 1]), (2, 2, 2))


def fractions(policy: Gavel, given: Problem) -> Floats:
    """Return the fractions of each job on each type, before the first round."""
    found: Floats = policy.fractions(given, policy.start_with)[0].alone
    return found


def small_table(policy: Gavel, name: str, completion_s: float, makespan_s: float) -> PaperTable:
    """Compare with the program on its small trace, under a policy by its name there."""

    def rows() -> Iterator[Row]:
        cluster = Cluster.of_pools([(kind, 1, 2) for kind in TYPES])
        run = simulate_fleet(small_trace(), cluster, policy, place="anywhere")
        yield Row("mean completion time", completion_s, run.mean_completion_s)
        yield Row("makespan", makespan_s, run.makespan_s)

    return PaperTable(
        f"{_PROGRAM}, {name}, 20 jobs on two V100, two P100 and two K80",
        "s",
        "simulated by the rules of the program, the same jobs, devices and rounds",
        rows,
        tolerance=0.01,
    )


def large_table(policies: Mapping[str, tuple[Gavel, float]]) -> PaperTable:
    """Compare with the program on the trace of its evaluation of max-min fairness: policies by their names there."""

    def rows(folder: Path) -> Iterator[Row]:
        jobs = list(read_gavel(folder / _FILES.paths[0], folder / _FILES.paths[1]))
        cluster = Cluster.of_pools([("v100", 1, 8), ("p100", 1, 16), ("k80", 1, 24)])
        for name, (policy, completion_s) in policies.items():
            yield Row(
                name, completion_s, simulate_fleet(jobs, cluster, policy, place="anywhere").mean_completion_s
            )

    return PaperTable(
        f"{_PROGRAM}, max_min_fairness.trace on 8 V100, 16 P100 and 24 K80",
        "mean completion time, s",
        "simulated by the rules of the program, the same jobs, devices and rounds",
        rows,
        tolerance=0.01,
        files=_FILES,
    )
