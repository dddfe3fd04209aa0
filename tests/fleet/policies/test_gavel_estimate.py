"""The estimator of Gavel: rows that are completed, references that stand for jobs, and what runs lose by it."""

from __future__ import annotations

import numpy as np
import pytest
from shared_data import DATA, needs_data

from trainyard.fleet.errors import FleetError
from trainyard.fleet.policies.gavel import estimate
from trainyard.fleet.policies.gavel.estimate import completed, most_similar
from trainyard.fleet.policies.gavel.objectives import MaxMinFairness
from trainyard.fleet.policies.gavel.policy import SpaceSharing
from trainyard.fleet.records import FleetRun
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.readers.gavel import read_gavel
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import training_job
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster

GAVEL = DATA / "cluster" / "gavel"


def test_a_row_follows_from_half_of_it() -> None:
    """Rows of rank three: what was not measured is as in the sum of directions that fits the rest."""
    rng = np.random.default_rng(0)
    rows = rng.random((12, 3)) @ rng.random((3, 36)) / 3
    truth = np.full(12, 1 / 12) @ rows
    found = completed(rows, truth, rng.random(36) < 0.5)
    assert found == pytest.approx(truth, rel=0.02)
    # What is not measured is not looked at.
    measured = rng.random(36) < 0.5
    blind = np.where(measured, truth, np.nan)
    np.testing.assert_array_equal(completed(rows, blind, measured), completed(rows, truth, measured))


def test_of_equal_rows_the_nearest_is_itself() -> None:
    rows = np.random.default_rng(1).random((8, 24))
    assert [most_similar(rows, 0.5 * row) for row in rows] == list(range(8))
    assert most_similar(np.zeros((2, 3)), np.ones(3)) == 0


def run(space_sharing: SpaceSharing) -> FleetRun:
    trace = GAVEL / "traces" / "generated" / "seed0_lam3600_1gpu.trace"
    jobs = list(read_gavel(trace, GAVEL / "simulation_throughputs.json"))[:120]
    cluster = Cluster.of_pools([("v100", 1, 3), ("p100", 1, 3), ("k80", 1, 3)])
    return simulate_fleet(jobs, cluster, MaxMinFairness(space_sharing=space_sharing), place="anywhere")


@pytest.mark.slow
@needs_data(GAVEL)
@pytest.mark.long
def test_estimates_are_nearly_as_good_as_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the paper finds of its estimator: space sharing loses little of what it gains."""
    alone, known, estimated = (run(how) for how in (False, True, "estimated"))
    gained_s = alone.mean_completion_s - known.mean_completion_s
    assert gained_s > 0.2 * alone.mean_completion_s
    assert estimated.finish_s.tolist() != known.finish_s.tolist()
    assert alone.mean_completion_s - estimated.mean_completion_s > 0.75 * gained_s
    # With few references, pairs come together that cannot run so; that is found out.
    monkeypatch.setattr(estimate, "_MOST_REFERENCES", 8)
    assert run("estimated").mean_completion_s < alone.mean_completion_s
    # Where all kinds are references, nothing is estimated.
    monkeypatch.setattr(estimate, "_MOST_REFERENCES", 1000)
    np.testing.assert_array_equal(run("estimated").finish_s, known.finish_s)


def test_nothing_is_measured_on_types_that_a_job_may_not_use() -> None:
    training = Training("gpt-tiny", 4, 100)
    jobs = [training_job(f"job{i}", 0.0, 1, training, device_types=("H100",)) for i in range(2)]
    cluster = parse_cluster("1x1xH100+1x1xmycard")  # of which nobody knows how fast it is
    assert len(simulate_fleet(jobs, cluster, MaxMinFairness(space_sharing="estimated")).names) == 2


def test_what_it_can_be() -> None:
    with pytest.raises(FleetError, match="True, False or \"estimated\", got 'guessed'"):
        MaxMinFairness(space_sharing="guessed")  # type: ignore[arg-type]
