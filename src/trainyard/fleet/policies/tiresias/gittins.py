"""The Gittins index of a job whose length is known only as a distribution.

References
----------
J. Gittins, K. Glazebrook, R. Weber, "Multi-armed Bandit Allocation Indices", Wiley 2011. As Tiresias uses it: J. Gu et
al., NSDI 2019, section 3.2, where attained service is devices times time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def gittins_index(attained: Floats, quantum: Floats | float, samples: Floats) -> Floats:
    """The index of jobs that attained so much, from samples of total service in ascending order; 0 beyond them all.

    Parameters
    ----------
    attained, quantum, samples : device-seconds; ``quantum`` may be infinite.
    """
    sums = np.concatenate(([0.0], samples.cumsum()))
    first = np.searchsorted(samples, attained, "right")
    last = np.searchsorted(samples, attained + quantum, "right")
    within, beyond = last - first, len(samples) - last
    cost = sums[last] - sums[first] - attained * within + np.where(beyond > 0, quantum, 0.0) * beyond
    return np.where(within > 0, within / np.where(within > 0, cost, 1.0), 0.0)
