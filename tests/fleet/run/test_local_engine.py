"""Real trainings under real policies on this machine: all end, and their losses are those of undisturbed runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.fleet.policies.antman import AntMan
from trainyard.fleet.policies.gandiva import Gandiva
from trainyard.fleet.policies.queues import srtf
from trainyard.fleet.policy import Policy
from trainyard.fleet.rounds import Rounds
from trainyard.fleet.run.drive import Patience, run_fleet
from trainyard.fleet.run.local import LocalEngine
from trainyard.fleet.run.training import Predicted, Training, training_job
from trainyard.fleet.site import FleetError, Site
from trainyard.fleet.workload.job import Job
from trainyard.job.run.data import FixedData
from trainyard.zoo import build

SITE = Site.uniform(2, 2)
TRAINING = Training("gpt-tiny", 4, 12, checkpoint_every=4)


def data() -> FixedData:
    return FixedData(build("gpt-tiny", 4).batch)


def engine(folder: Path, names: list[str]) -> LocalEngine:
    return LocalEngine(dict.fromkeys(names, TRAINING), dict.fromkeys(names, data()), folder)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of the training, alone on one device."""
    alone = engine(tmp_path_factory.mktemp("alone"), ["alone"])
    job = training_job("alone", 0.0, 1, TRAINING, Predicted({1: 20.0}))
    run_fleet([job], SITE, srtf(), alone, patience=Patience(limit_s=120))
    return alone.losses("alone")


def workload() -> list[Job]:
    """Eight jobs for four devices; the last ones are guaranteed, short or wide."""
    speeds = Predicted({1: 10.0, 2: 12.0, 4: 14.0})
    sizes = (2, 1, 4, 1, 2, 1, 1, 2)
    return [
        training_job(f"job{i}", 0.4 * i, n, TRAINING, speeds, guaranteed=i % 2 == 0, busy=0.5)
        for i, n in enumerate(sizes)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "rounds"),
    [(srtf(), None), (Gandiva(quantum_s=8.0, pack=False), Rounds(8.0)), (AntMan(), None)],
    ids=["srtf", "gandiva", "antman"],
)
def test_eight_jobs_end_with_the_losses_of_undisturbed_ones(
    policy: Policy, rounds: Rounds | None, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    jobs = workload()
    local = engine(tmp_path, [job.name for job in jobs])
    run = run_fleet(jobs, SITE, policy, local, rounds=rounds, patience=Patience(limit_s=500))
    assert sorted(run.names) == [job.name for job in jobs]
    for job in jobs:
        assert local.losses(job.name) == pytest.approx(undisturbed, rel=1e-5)


@pytest.mark.slow
def test_a_job_that_cannot_run_is_given_up(tmp_path: Path) -> None:
    wrong = Training("gpt-tiny", 4, 8, strategies="gpipe(stages=64)")
    local = LocalEngine({"a": wrong}, {"a": data()}, tmp_path)
    job = training_job("a", 0.0, 1, wrong, Predicted({1: 1.0}))
    with pytest.raises(FleetError, match="'a' failed 2 times, the last time with: PlanError"):
        run_fleet([job], SITE, srtf(), local, patience=Patience(max_failures=1, limit_s=60))


def test_a_batch_must_divide() -> None:
    with pytest.raises(FleetError, match="4 rows does not divide over 3 devices; ask for one of 1, 2, 4"):
        training_job("a", 0.0, 3, TRAINING, Predicted({}))
