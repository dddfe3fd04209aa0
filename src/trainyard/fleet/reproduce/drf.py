"""Dominant resource fairness: the example of the paper, and the same by its linear program with weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from trainyard.fleet.policies.drf import drf
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import declared_job
from trainyard.hardware.parse import parse_cluster
from trainyard.published import PaperTable, Row

# CPUs and gigabytes of a task of each user.
_DEMANDS = {"A": (1.0, 4.0), "B": (3.0, 1.0)}


def _tasks(scale: int, weights: dict[str, float]) -> Counter[str]:
    """Tasks that run at once on 9 CPUs and 18 GB, times a scale; each takes one of many devices."""
    jobs = [
        declared_job(f"{user}{number}", 0.0, 1, 1.0, user=user, cpus=cpus, memory_bytes=memory * 1e9)
        for number in range(10 * scale)
        for user, (cpus, memory) in _DEMANDS.items()
    ]
    cluster = parse_cluster(f"1x{20 * scale}@{9 * scale}cpu,{18 * scale}GB")
    run = simulate_fleet(jobs, cluster, drf(weights=tuple(weights.items())))
    return Counter(
        name[0] for name, start_s in zip(run.names, run.first_start_s, strict=True) if start_s == 0
    )


def _example() -> Iterator[Row]:
    tasks = _tasks(1, {})
    yield Row("tasks of A", 3, tasks["A"])
    yield Row("tasks of B", 2, tasks["B"])
    yield Row("dominant share of A, of memory", 2 / 3, 4 * tasks["A"] / 18)
    yield Row("dominant share of B, of CPUs", 2 / 3, 3 * tasks["B"] / 9)


def _weighted() -> Iterator[Row]:
    # 4 x / 18 = 2 (3 y / 9) and x + 3 y = 9 where the CPUs are full, or 4 x + y = 18 where the memory is.
    tasks = _tasks(20, {"A": 2.0})
    yield Row("tasks of A of weight 2", 20 * 54 / 13, tasks["A"])
    yield Row("tasks of B of weight 1", 20 * 18 / 13, tasks["B"])


TABLES = (
    PaperTable(
        "Ghodsi et al., NSDI 2011, sections 4.1 and 4.2, figure 3 and table 1: 9 CPUs and 18 GB",
        "tasks, or a share of the cluster",
        "simulated: the same tasks as jobs of one device each, with more devices than they can use",
        _example,
    ),
    PaperTable(
        "Ghodsi et al., NSDI 2011, section 4.3, weighted DRF: the equations of section 4.1 with a weight, by hand",
        "tasks",
        "simulated: the example on a cluster 20 times as large, with weight 2 for user A",
        _weighted,
        tolerance=0.03,
    ),
)
