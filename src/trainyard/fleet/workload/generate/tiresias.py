"""Jobs like the 60 of Tiresias' simulator.

Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019; SymbioticLab/Tiresias,
``60_job.csv``: half of the jobs on one device, a sixth each on 2, 4, and 8; ten models, equally often; the quantiles of
the durations; about 30 s from one arrival to the next, like a Poisson-distributed number. Times are whole seconds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trainyard.fleet.workload.generate.draw import Quantiles
from trainyard.fleet.workload.job import Job, declared_job

SIZES = (1, 1, 1, 2, 4, 8)
MODELS = (
    "vgg19", "vgg16", "vgg11", "resnet152", "resnet101", "resnet50", "inception4", "inception3", "googlenet", "alexnet",
)  # fmt: skip
PARTS = (0, 0.25, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95, 0.98, 1)
LENGTHS_S = (121, 121, 122, 125, 127, 139, 148, 159, 211, 308, 506, 1800)
MEAN_GAP_S = 30.0


def tiresias_jobs(
    num_jobs: int = 60, seed: int = 0, *, mean_gap_s: float = MEAN_GAP_S, most_devices: int = max(SIZES)
) -> Iterator[Job]:
    """Draw jobs; of every 60, sizes and models are in the same numbers as in the original.

    Gangs larger than ``most_devices`` are not drawn.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.permutation(np.resize([size for size in SIZES if size <= most_devices], num_jobs))
    models = rng.permutation(np.resize(np.array(MODELS), num_jobs))
    lengths_s = Quantiles.of(PARTS, LENGTHS_S)
    now_s = 0.0
    for number in range(num_jobs):
        length_s = float(round(lengths_s.draw(rng)))
        yield declared_job(str(number), now_s, int(sizes[number]), length_s, model=str(models[number]))
        now_s += float(rng.poisson(mean_gap_s))
