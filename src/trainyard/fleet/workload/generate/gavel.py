"""Jobs of Gavel's simulator, number for number.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020, section 7.1.
Durations on a V100 are 10^U minutes, U uniform from 1.5 to 3 for four jobs of five and from 3 to 4 for the fifth; gangs
are of 1, 2, 4, 8 devices with shares of 70, 10, 15, 5 %; arrivals are a Poisson process. The order of the draws and their
seeds are those of the authors' program, so that its workloads can be had without it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from trainyard.fleet.workload.job import Job
from trainyard.fleet.workload.readers.gavel import REFERENCE, GavelProfile, Throughputs, split_type

TYPES = (
    *((f"ResNet-18 (batch size {b})", True) for b in (16, 32, 64, 128, 256)),
    *((f"ResNet-50 (batch size {b})", True) for b in (16, 32, 64, 128)),
    *((f"Transformer (batch size {b})", True) for b in (16, 32, 64, 128, 256)),
    *((f"LM (batch size {b})", True) for b in (5, 10, 20, 40, 80)),
    *((f"Recommendation (batch size {b})", False) for b in (512, 1024, 2048, 4096, 8192)),
    ("A3C", False),
    ("CycleGAN", False),
)
"""Job types, and whether they run on more than one device."""
SIZES = {1: 0.7, 2: 0.8, 4: 0.95, 8: 1.0}
"""Share of the gangs that have so many devices or fewer."""


def gavel_jobs(
    num_jobs: int,
    throughputs: Throughputs,
    seed: int = 0,
    *,
    mean_gap_s: float,
    multi_device: bool = False,
    most_devices: int = 8,
) -> Iterator[Job]:
    """Draw jobs; the first is there at time 0.

    Parameters
    ----------
    throughputs : Gavel's, from which durations become steps.
    multi_device : whether there are gangs; without, all jobs take one device.
    most_devices : larger gangs are not drawn.
    """
    rng, gaps = random.Random(seed + 2), random.Random(seed + 3)
    most = max(share for size, share in SIZES.items() if size <= most_devices)
    now_s = 0.0
    for number in range(num_jobs):
        if number:
            now_s += -math.log(1.0 - gaps.random()) * mean_gap_s
        drawn = _size(rng.uniform(0, 1) * most)  # by the authors, too, whether it is used or not
        size = drawn if multi_device else 1
        long = rng.random() >= 0.8
        length_s = 60 * 10 ** (rng.uniform(3, 4) if long else rng.uniform(1.5, 3))
        job_type, distributed = rng.choice(TYPES)
        while size > 1 and not distributed:
            job_type, distributed = rng.choice(TYPES)
        steps = max(1.0, float(int(length_s * throughputs.of_gang(REFERENCE, job_type, size))))
        model, batch_size = split_type(job_type)
        yield Job(
            f"{number}:{job_type}", now_s, size, steps, GavelProfile(throughputs, job_type),
            device_types=throughputs.runs_on(job_type, size), model=model, batch_size=batch_size,
        )  # fmt: skip


def _size(draw: float) -> int:
    return next(size for size, share in SIZES.items() if draw < share)
