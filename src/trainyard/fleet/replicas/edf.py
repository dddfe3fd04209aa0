"""Earliest deadline first as in the program of ElasticFlow's authors, who compare with it.

It gives a job the largest number of devices that it was measured on, even where it is slower than on fewer.

D. Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning", ASPLOS 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.fleet.policies.edf import EDF
from trainyard.fleet.scaling import Scaling, scaling
from trainyard.fleet.snapshot import Snapshot


@dataclass(frozen=True)
class EDFInElasticFlow(EDF):
    """The policy."""

    def scaling(self, snapshot: Snapshot, number: int) -> Scaling:
        """On any number of devices that it was measured on."""
        return scaling(snapshot, number, False)
