"""What Tiresias' simulator prints, beside ours.

Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019; SymbioticLab/Tiresias at 959f9b0,
``simulator/run_sim.py --scheme=count``, on its own 60 jobs and on a public trace: the first cluster of Gu et al.,
"ElasticFlow", ASPLOS 2023, as published in microsoft/elasticflow-traces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trainyard.fleet.policy import Policy
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.fleet.workload.readers.table import Table
from trainyard.hardware.cluster import Cluster
from trainyard.published import Files, PaperTable, Row

Printed = Mapping[str, tuple[Policy, float, float]]
"""By the name of the program's schedule: the policy here, and the mean completion time and makespan that it prints."""

_FILES = Files(
    ("cluster01.csv",),
    "git clone https://github.com/microsoft/elasticflow-traces && mkdir raw && "
    "tar -xzf elasticflow-traces/data/raw-traces.tar.gz -C raw --transform 's,.*/,,'",
    "raw",
)
_MOST_DEVICES = 64
"""Larger gangs were left out of the program's input."""
# Devices, submission and length in seconds.
_JOBS = (
    (1, 0, 164), (8, 30, 147), (2, 53, 127), (1, 79, 121), (4, 99, 121), (8, 132, 138), (1, 176, 121),
    (2, 204, 124), (2, 227, 155), (1, 252, 126), (1, 282, 230), (1, 311, 368), (2, 337, 131), (8, 363, 196),
    (1, 401, 121), (1, 434, 180), (4, 471, 143), (2, 504, 122), (1, 531, 189), (1, 554, 125), (1, 583, 536),
    (2, 611, 126), (1, 645, 123), (8, 680, 121), (4, 707, 121), (1, 733, 121), (1, 761, 121), (8, 793, 121),
    (1, 827, 152), (1, 861, 121), (1, 892, 141), (1, 918, 121), (8, 944, 125), (1, 973, 121), (8, 1008, 305),
    (4, 1042, 121), (4, 1067, 123), (1, 1100, 121), (2, 1139, 121), (1, 1165, 121), (1, 1194, 122),
    (2, 1223, 123), (1, 1248, 263), (1, 1274, 209), (1, 1315, 158), (2, 1347, 121), (1, 1381, 121),
    (8, 1414, 121), (8, 1447, 126), (1, 1471, 1800), (4, 1499, 126), (1, 1537, 130), (4, 1580, 121),
    (1, 1612, 121), (4, 1644, 171), (8, 1676, 135), (2, 1701, 133), (4, 1729, 128), (4, 1750, 122),
    (1, 1779, 122),
)  # fmt: skip


def sixty_jobs() -> tuple[Job, ...]:
    """In the order of their arrival."""
    return tuple(
        declared_job(str(number), float(at_s), size, float(length_s))
        for number, (size, at_s, length_s) in enumerate(_JOBS)
    )


def sixty_jobs_table(printed: Printed) -> PaperTable:
    """On the program's own jobs."""
    return PaperTable(
        "The authors' simulator of Tiresias, NSDI 2019, its 60 jobs on 4 nodes of 4 GPUs",
        "s",
        "simulated, the same jobs and nodes",
        lambda: _rows(printed, sixty_jobs(), Cluster.uniform(4, 4)),
        tolerance=1e-5,
    )


def cluster_table(printed: Printed) -> PaperTable:
    """On the public trace."""

    def rows(folder: Path) -> Iterator[Row]:
        return _rows(printed, _cluster_jobs(folder / _FILES.paths[0]), Cluster.uniform(32, 4))

    return PaperTable(
        "The authors' simulator of Tiresias, NSDI 2019, 1,595 jobs of ElasticFlow's first cluster on 32 nodes of 4 GPUs",
        "s",
        "simulated, the same jobs and nodes",
        rows,
        tolerance=1e-5,
        files=_FILES,
    )


def _cluster_jobs(path: Path) -> tuple[Job, ...]:
    """As they were given to the program: from time 0 on, of one moment the shortest and smallest first."""
    numbers = sorted(
        (row.number("submission_time"), row.number("duration"), row.count("num_gpu"))
        for row in Table(path, ("submission_time", "duration", "num_gpu")).rows()
        if 0 < row.count("num_gpu") <= _MOST_DEVICES and row.number("duration") > 0
    )
    first_s = numbers[0][0]
    return tuple(
        declared_job(str(number), at_s - first_s, size, length_s)
        for number, (at_s, length_s, size) in enumerate(numbers)
    )


def _rows(printed: Printed, jobs: Sequence[Job], cluster: Cluster) -> Iterator[Row]:
    for schedule, (policy, completion_s, makespan_s) in printed.items():
        run = simulate_fleet(jobs, cluster, policy, place="anywhere")
        yield Row(f"{schedule}, mean completion time", completion_s, run.mean_completion_s)
        yield Row(f"{schedule}, makespan", makespan_s, run.makespan_s)


def three_jobs_table(label: str, policy: Policy, mean: float) -> PaperTable:
    """The paper's example of two-dimensional service: three jobs on two devices."""
    jobs = [declared_job("1", 0, 2, 2), declared_job("2", 0, 1, 8), declared_job("3", 0, 2, 6)]

    def rows() -> Iterator[Row]:
        yield Row(label, mean, simulate_fleet(jobs, Cluster.uniform(1, 2), policy).mean_completion_s)

    return PaperTable(
        "Gu et al., NSDI 2019, section 3.2, example of three jobs on two GPUs",
        "mean completion time, units of time",
        "simulated, the same jobs",
        rows,
        tolerance=0.005,
    )
