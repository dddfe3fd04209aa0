"""What daemons' jobs are compared with."""

from __future__ import annotations

import pytest
from daemons import STEPS

from trainyard.fleet.run.drive import run_fleet
from trainyard.fleet.run.local import LocalEngine
from trainyard.fleet.run.patience import Patience
from trainyard.fleet.setting import setting_of
from trainyard.fleet.site import Site
from trainyard.fleet.workload.training import Training, training_job


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of the training, alone."""
    site = Site.parse("1x1xlocal")
    engine = LocalEngine(site, tmp_path_factory.mktemp("alone"))
    job = training_job("alone", 0.0, 1, Training("gpt-tiny", 4, STEPS))
    run_fleet([job], site, setting_of("fifo").policy, engine, patience=Patience(limit_s=300))
    return engine.home("alone").losses()
