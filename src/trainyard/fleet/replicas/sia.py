"""Sia as its authors' program has it, where that does otherwise than the paper says.

A job that was never run is alike on one device of any type, powers of goodputs are rounded to hundredths, a job that is
younger than a restart takes may change freely, and one that restarts keeps its devices.

Two things are not repeated. The program tries no job on any type: as its script runs it (``--project_throughputs``), it
predicts a type on which a job never ran from one on which it did, by their throughputs on one device. And it expects a
restart to take as long as that of the model does. On the authors' eight philly workloads of 160 jobs, whose restarts take
25 to 250 s by model, jobs take 2,265 s on average; predicted so, 2,408 s, and with both about 2,300 s. Between equal
values fewer devices are chosen, where the program leaves it to its solver: on philly-1 jobs take 1,836 s, and 1,865 to
1,977 s if it is left to chance.

S. Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling", SOSP 2023;
siasosp23/artifacts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainyard.fleet.policies.sia.policy import Configurations, Sia, changes
from trainyard.fleet.snapshot import Bools, Floats, Ints, Snapshot
from trainyard.fleet.workload.goodput import Report

_CLIP = 3000.0
"""The largest power of a goodput."""


@dataclass(frozen=True)
class SiaProgram(Sia):
    """The policy."""

    def goodputs(
        self, snapshot: Snapshot, reports: Sequence[Report | None], configs: Configurations, valid: Bools
    ) -> Floats:
        """Return goodputs; that of a job that never ran is its number of devices."""
        found = super().goodputs(snapshot, reports, configs, valid)
        never_run = np.array([report is not None and report.noise is None for report in reports])
        found[never_run] = np.where(valid[never_run], configs.num_devices, 0.0)
        return found

    def normalized(self, snapshot: Snapshot, configs: Configurations, least: Ints, goodput: Floats) -> Floats:
        """Return normalized goodputs; a restarting job has 0 for every other configuration than its own."""
        found = super().normalized(snapshot, configs, least, goodput)
        found[changes(snapshot, configs) & snapshot.is_restarting[:, None]] = 0.0
        return found

    def restart_factor(self, snapshot: Snapshot) -> Floats:
        """Return the factors; that of a job younger than a restart takes is 1."""
        found = super().restart_factor(snapshot)
        found[snapshot.now_s - snapshot.arrival_s < self.restart_s] = 1.0
        return found

    def powers(self, goodput: Floats) -> Floats:
        """Round the powers to hundredths."""
        return np.minimum(np.round(super().powers(goodput), 2), _CLIP)

    def keeps(self, snapshot: Snapshot) -> Bools:
        """Tell for each job whether it restarts, and so has to keep its configuration."""
        return snapshot.is_restarting
