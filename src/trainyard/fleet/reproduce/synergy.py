"""Synergy: the mean completion times that the authors' simulator prints for a hundred jobs.

Mohan et al., "Looking Beyond GPUs for DNN Scheduling on Multi-Tenant Clusters", OSDI 2022; msr-fiddle/synergy at 1bb2bed,
``simulator/deploy_trace/static_100job_6_3_1100.0``; how models depend on CPUs and memory is in ``simulator/models``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from trainyard.fleet.periods import Rounds
from trainyard.fleet.policies.synergy import Synergy
from trainyard.fleet.records import FleetRun
from trainyard.fleet.replicas.synergy import SynergyProgram
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import Grant, Job, Profile, Spot
from trainyard.fleet.workload.readers.synergy import MEMORY_GB, Sensitivity, SynergyProfile
from trainyard.hardware.cluster import Cluster, Node
from trainyard.published import PaperTable, Row

_ROUND_S = 300.0
_NODES = Cluster("4 nodes", (Node.named("V100", 8, 24, 500e9),) * 4)
# Of a model: seconds of an iteration at the proportional share; speed relative to that by CPUs per GPU, at all memory;
# the most of it at the proportional share of memory. Below that share, everything that reads images or sound is at 0.1.
_INSENSITIVE = (1.0,) * 9
_IMAGES = (0.3, 0.66, 1.0, 1.25, 1.53, 1.75, 2.0)
_MODELS: dict[str, tuple[float, tuple[float, ...], float]] = {
    "alexnet": (0.6, (*_IMAGES, 2.94, 2.94), 2.0),
    "shufflenet": (0.615, (*_IMAGES, 2.89, 2.89), 2.0),
    "res18": (0.64, (0.37, 0.72, 1.0, 1.3, 1.53, 1.75, 2.4, 2.4, 2.4), 2.4),
    "res50": (0.78, (0.4, 0.74, 1.0, *(1.15,) * 6), 1.15),
    "mobilenet": (0.71, (0.37, 0.72, 1.0, 1.3, 1.49, *(1.55,) * 4), 1.55),
    "deepspeech": (0.757, (0.3, 0.66, *(1.0,) * 7), 1.0),
    "gnmt": (0.12, _INSENSITIVE, 1.0),
    "transformer": (0.67, _INSENSITIVE, 1.0),
    "lstm": (0.011, _INSENSITIVE, 1.0),
}
_JOBS = """
alexnet 3349 gnmt 26435 deepspeech 11905 res18 30857 res50 2605 transformer 9066 mobilenet 4224
shufflenet 10819 lstm 669922 alexnet 31717 res18 40888 gnmt 22617 deepspeech 29266 res50 3039
mobilenet 35288 transformer 39629 shufflenet 28999 alexnet 11273 lstm 2293308 res18 38676 res50 2703
gnmt 30786 deepspeech 4283 mobilenet 5068 shufflenet 7146 transformer 4587 alexnet 27330 res18 12053
lstm 924454 res50 5827 mobilenet 35883 gnmt 76486 deepspeech 35830 shufflenet 3321 alexnet 5857
transformer 24830 res18 34269 res50 6049 lstm 2130732 mobilenet 4715 shufflenet 5649 gnmt 124966
deepspeech 4153 alexnet 39985 res18 3304 transformer 12009 res50 6430 mobilenet 6434 lstm 2200804
shufflenet 45859 alexnet 16623 gnmt 54442 deepspeech 10965 res18 8067 res50 21871 transformer 31970
mobilenet 4032 shufflenet 46065 lstm 751117 alexnet 4496 res18 10264 gnmt 53619 deepspeech 5287
res50 20661 mobilenet 39194 transformer 3235 shufflenet 47716 alexnet 9682 lstm 993941 res18 3984
res50 8627 gnmt 117869 deepspeech 4081 mobilenet 14349 shufflenet 6324 transformer 10000 alexnet 10412
res18 4973 lstm 668447 res50 4039 mobilenet 11428 gnmt 127171 shufflenet 31874 deepspeech 11695
alexnet 4288 transformer 10837 res18 18054 res50 26554 lstm 465382 mobilenet 7832 shufflenet 14542
gnmt 16544 deepspeech 5474 alexnet 35459 res18 8328 transformer 5378 res50 20385 mobilenet 19419
lstm 193796 shufflenet 45340
"""
"""Models and iterations, on one GPU each, all there at once."""


def _sensitivity(model: str) -> Sensitivity:
    iteration_s, by_cpus, most = _MODELS[model]
    starved = 1.0 if by_cpus is _INSENSITIVE else 0.1
    enough = len(MEMORY_GB) - 2
    relative = tuple((starved, min(speed, most), *(speed,) * enough) for speed in by_cpus)
    return Sensitivity(iteration_s, relative, 1.0, 0)


@dataclass(frozen=True)
class _WholeIterations:
    """A job that does a whole number of iterations in a round, as in the authors' simulator."""

    profile: Profile

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        return math.floor(_ROUND_S * self.profile.work_per_s(spot, grant) + 1e-6) / _ROUND_S


def static_run(jobs: Iterable[Job], policy: Synergy) -> FleetRun:
    """Jobs that are all there at first, on the program's nodes, in its rounds.

    The program begins a second after they came, in their order.
    """
    there = [replace(job, arrival_s=0.0, profile=_WholeIterations(job.profile)) for job in jobs]
    return simulate_fleet(there, _NODES, policy, rounds=Rounds(_ROUND_S))


def printed_hours(run: FleetRun) -> float:
    """Mean completion time of such a run, from the lines that the program prints, with hours to two places.

    There, jobs end with a round, and the first round begins a second after they came.
    """
    ends_s = np.ceil(run.finish_s / _ROUND_S - 1e-9) * _ROUND_S + 1
    return float(np.round(ends_s / 3600, 2).mean())


def _rows() -> Iterator[Row]:
    words = _JOBS.split()
    profiles = {model: SynergyProfile(_sensitivity(model), 1) for model in _MODELS}
    jobs = [
        Job(str(number), 0.0, 1, float(iterations), profiles[model])
        for number, (model, iterations) in enumerate(zip(words[::2], words[1::2], strict=True))
    ]
    for label, allocation, hours in (("proportional (fair)", "fair", 5.6310), ("tune", "tune", 5.0818)):
        policy = SynergyProgram(allocation=allocation)  # type: ignore[arg-type]
        yield Row(f"first come first served, {label}", hours, printed_hours(static_run(jobs, policy)))


TABLES = (
    PaperTable(
        "The authors' simulator of Synergy, OSDI 2022, 100 jobs on four nodes of 8 GPUs, 24 CPUs and 500 GB",
        "mean completion time, h",
        "simulated, the same jobs, nodes and rounds",
        _rows,
        tolerance=1e-9,
    ),
)
