"""Slots in which jobs end as planned, as in the program that the authors of ElasticFlow published.

Something happens when a job comes, when one is planned to end, and when the policy wants to decide; what happens within a
slot of the last decision counts from its end on. At every decision all jobs that run lose time: little where some job has
had just these devices since the last renewal. A job ends where its plan says, even with work left, and else at the
decision at which its work is seen to be done; the end that counts is the one that the plan gave as its own.

References
----------
D. Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning", ASPLOS 2023;
pkusys/ElasticFlow at 04a0109, ``scheduler.py --schedule=ef-accessctrl --scheme=elastic`` and ``utils.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.allocation import Placed
from trainyard.fleet.rounds.rounds import Rounds

_LARGE = 256
"""A cluster of so many devices takes longer to start jobs."""


class PlacedUntil(Placed):
    """Jobs with their devices, and when each is planned to be done.

    Attributes
    ----------
    done_s : of each.
    """

    done_s: NDArray[np.float64]


@dataclass(frozen=True)
class PlannedEnds(Rounds):
    """A decision whenever something happens, but not within ``round_s`` of the last one.

    Attributes
    ----------
    renewed_every : decisions after which all devices are new to all jobs.
    """

    round_s: float = 60.0
    renewed_every: int = 60

    def pause_s(self, num_devices: int, site_size: int, known: bool, renews: bool) -> float:
        """Time in which a job does no work after a decision.

        Parameters
        ----------
        site_size : devices of the cluster.
        known : whether some job has had just its devices since the last renewal.
        renews : whether this decision is one.
        """
        large = site_size >= _LARGE
        least_s = 7.0 if large else 2.0
        if known:
            return least_s
        renewal_s = (47.0 if large else 27.0) if renews else 0.0
        return least_s + renewal_s + 2.0 * (math.log2(num_devices) + 1.0)

    @property
    def only_simulated(self) -> bool:
        """They are: jobs end before their work is done."""
        return True
