"""What the tests of all backends compare with."""

from __future__ import annotations

import pytest
from backend_trials import LONGEST, trial_training

from trainyard.fleet.policies.queues import srtf
from trainyard.fleet.run.local import LocalBackend
from trainyard.fleet.run.patience import Patience
from trainyard.fleet.run.run_fleet import run_fleet
from trainyard.fleet.workload.training_job import training_job
from trainyard.hardware.cluster import Cluster


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of the training of all trials by step, alone on one device."""
    cluster = Cluster.uniform(1, 1, "local")
    alone = LocalBackend(cluster, tmp_path_factory.mktemp("alone"))
    job = training_job("alone", 0.0, 1, trial_training(LONGEST))
    run_fleet([job], cluster, srtf(), alone, patience=Patience(limit_s=240))
    return alone.directory("alone").losses()
