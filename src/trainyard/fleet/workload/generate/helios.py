"""Jobs like the GPU jobs of SenseTime's Helios.

Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters", SC 2021. Published
are: 1,580,464 GPU jobs of four clusters from April to September 2020; a mean duration of 6,652 s, a median of 206 s, at
most 50 days; 3.72 GPUs on average, in the median 1, at most 2,048.

The shapes are ours, fitted to these numbers: log-normal durations, and sizes that are powers of two with geometric shares
(56 % on one GPU). Size and duration are independent, and so are the arrivals, of the hour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from trainyard.fleet.workload.generate.draw import Shares
from trainyard.fleet.workload.job import Job, declared_job

MEAN_GAP_S = 183 * 86400 / 1580464
MEDIAN_S, MEAN_S, LONGEST_S = 206.0, 6651.7, 50 * 86400.0
MOST_DEVICES = 2048
RATIO = 0.44203
"""Share of a size by that of half of it; with it, sizes have their mean of 3.716."""


def helios_jobs(
    num_jobs: int, seed: int = 0, *, mean_gap_s: float = MEAN_GAP_S, most_devices: int = MOST_DEVICES
) -> Iterator[Job]:
    """Draw jobs; gangs larger than ``most_devices`` are not drawn."""
    rng = np.random.default_rng(seed)
    sizes = Shares.of({2**k: RATIO**k for k in range(most_devices.bit_length())})
    # A log-normal with median m and mean a has the variance 2 log(a / m) of its logarithm.
    spread = math.sqrt(2 * math.log(MEAN_S / MEDIAN_S))
    now_s = 0.0
    for number in range(num_jobs):
        now_s += rng.exponential(mean_gap_s)
        length_s = min(rng.lognormal(math.log(MEDIAN_S), spread), LONGEST_S)
        yield declared_job(f"helios-{number}", now_s, sizes.draw(rng), length_s)
