"""Jobs that are trainings tell schedulers how long their steps take, and are resized by what they tell."""

from __future__ import annotations

import pytest

from trainyard.fleet.periods import Rounds
from trainyard.fleet.policies.pollux.policy import Pollux
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import Grant, Spot, spot_of
from trainyard.fleet.workload.measured_report import updated_report
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import Predicted, on_places, training_job
from trainyard.hardware.cluster import Cluster

TRAINING = Training("gpt-tiny", 8, 60_000)


def test_a_report_tells_computing_from_the_rest() -> None:
    first = updated_report(8, None, Spot("local", 1, 1, (1,)), 0.8)
    both = updated_report(8, first, Spot("local", 2, 1, (2,)), 0.5)
    (alone, pair) = both.timings
    assert (alone.compute_s, alone.step_s, alone.local_batch) == (0.8, 0.8, 8)
    assert (pair.compute_s, pair.step_s, pair.local_batch) == (0.4, 0.5, 4)
    assert both.batch(1, 2).local * 2 == 8  # the batch of a training is fixed


def test_a_report_keeps_the_losses_that_it_has() -> None:
    spot, losses = Spot("local", 1, 1, (1,)), ((600.0, 2.0), (1200.0, 1.0))
    told = updated_report(8, None, spot, 0.8, losses)
    assert told.losses == losses
    assert updated_report(8, told, spot, 0.8).losses == losses


def test_a_long_training_tells_its_loss_a_hundred_times() -> None:
    assert TRAINING.epoch_steps == 600
    assert Training("gpt-tiny", 8, 40).epoch_steps == Training("gpt-tiny", 8, 40).checkpoint_every


@pytest.mark.parametrize(
    ("speeds", "widths"),
    [({1: 10.0, 2: 19.0, 4: 36.0}, [1, 2, 4]), ({1: 10.0, 2: 5.0, 4: 2.5}, [1, 2, 1])],
)
def test_pollux_widens_what_gets_faster_by_it(speeds: dict[int, float], widths: list[int]) -> None:
    """One job on four idle devices is tried on two, and goes to four if that paid, else back."""
    profile = Predicted(TRAINING, speeds)
    job = training_job("a", 0.0, 1, TRAINING, profile, min_devices=1, max_devices=4)
    run = simulate_fleet(
        [job], Cluster.uniform(1, 4, "local"), Pollux(), rounds=Rounds(60.0), keep_spans=True
    )
    assert [len(span.devices) for span in run.spans] == widths


def test_a_prediction_keeps_its_pace() -> None:
    profile = Predicted(TRAINING, {1: 10.0})
    spot, grant = Spot("local", 1, 1, (1,)), Grant((0,), share=0.5)
    rate = profile.rate(spot, grant, 0.0, None)
    assert (rate.work_per_s, rate.until) == (5.0, 60_000.0)
    assert rate.report.timings[0].step_s == pytest.approx(0.1)
    assert profile.rest_s(spot, grant, 59_500.0, 60_000.0) == pytest.approx(100.0)


def test_on_places_every_process_has_its_part_of_a_core() -> None:
    job = training_job("a", 0.0, 2, Training("gpt-tiny", 4, 10))
    half, quarter = (on_places(job, part).profile for part in (0.5, 0.25))
    for num_devices in (1, 2, 4):
        spot, grant = spot_of("local", (num_devices,)), Grant(tuple(range(num_devices)))
        assert half.work_per_s(spot, grant) == pytest.approx(2.0 * quarter.work_per_s(spot, grant))
        assert half.work_per_s(spot, grant) > 0.0
    assert on_places(job, 1.0) is job
