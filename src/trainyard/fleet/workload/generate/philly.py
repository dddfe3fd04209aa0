"""Jobs like those of Microsoft's Philly.

Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", USENIX ATC 2019, and its
public trace: 117,325 jobs from 2017-08-07 to 2017-12-22. Its figure 2 shows run times by four classes of gangs: 1, 2-4,
5-8, and more than 8 GPUs; their quantiles, the sizes of gangs, the virtual clusters, and the hours of the day are counted
in the 82,247 jobs of it that Pollux' authors published. Run times depend on the class; all else is drawn independently,
and days of the week are alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from trainyard.fleet.workload.generate.draw import Quantiles, Shares, arrivals_s
from trainyard.fleet.workload.job import Job, declared_job

MEAN_GAP_S = 138 * 86400 / 117325
SIZES = {1: 76627, 2: 1818, 4: 1870, 8: 1643, 12: 7, 16: 199, 24: 7, 32: 67, 64: 6, 128: 3}
CLUSTERS = {
    "6214e9": 41226, "11cb48": 16091, "6c71a0": 9953, "b436b2": 7423, "103959": 1934, "ee9e8c": 1511, "0e4a51": 1435,
    "ed69ec": 1137, "7f04ca": 723, "2869ce": 422, "e13805": 374, "23dbec": 8, "51b7ef": 4, "925e2b": 3, "795a4c": 3,
}  # fmt: skip
HOURS = (
    4367, 3374, 3835, 3780, 2400, 3950, 5732, 7159, 3802, 3447, 3510, 2979, 2567, 2415, 2185, 2224, 3021, 2289, 2744,
    2496, 3483, 3142, 3885, 3461,
)  # fmt: skip
PARTS = (0, 0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95, 0.99, 0.999, 1)
LENGTHS_S: Mapping[int, Sequence[float]] = {
    1: (1, 52, 62, 76, 122, 215, 600, 1117, 1728, 2464, 2716, 3754, 8512, 19137, 135399, 865709, 3256045),
    4: (2, 11, 15, 19, 21, 25, 85, 367, 5583, 25424, 45388, 79258, 166120, 233082, 747317, 2171244, 2750674),
    8: (
        1, 125, 216, 785, 1876, 4011, 12382, 23683, 65014, 140721, 173248, 203050, 351982, 525618, 1060498, 2656479,
        4628226,
    ),
    128: (
        1, 35, 72, 345, 566, 890, 3167, 21137, 53750, 73311, 104218, 158991, 247972, 443240, 922629, 1612502, 1710643,
    ),
}  # fmt: skip
"""Quantiles at ``PARTS``, by the largest gang of the class."""


def philly_jobs(
    num_jobs: int, seed: int = 0, *, mean_gap_s: float = MEAN_GAP_S, most_devices: int = 128
) -> Iterator[Job]:
    """Draw jobs; gangs larger than ``most_devices`` are not drawn."""
    rng = np.random.default_rng(seed)
    sizes = Shares.of({n: count for n, count in SIZES.items() if n <= most_devices})
    clusters = Shares.of(CLUSTERS)
    lengths_s = {most: Quantiles.of(PARTS, values) for most, values in LENGTHS_S.items()}
    coming_s = arrivals_s(rng, mean_gap_s, HOURS)
    for number in range(num_jobs):
        size = sizes.draw(rng)
        length_s = lengths_s[min(most for most in lengths_s if size <= most)].draw(rng)
        cluster = clusters.draw(rng)
        yield declared_job(f"philly-{number}", next(coming_s), size, length_s, virtual_cluster=cluster)
