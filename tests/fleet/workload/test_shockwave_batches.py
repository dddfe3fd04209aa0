"""Jobs of Shockwave change their batch size as they train, and with it how long an epoch takes."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest
from shared_data import DATA, needs_data

from trainyard.fleet.periods import Rounds
from trainyard.fleet.policies.queues import fifo
from trainyard.fleet.replicas.gavel import MaxMinProgram
from trainyard.fleet.reproduce.programs import shockwave
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import Grant, Job, spot_of
from trainyard.fleet.workload.readers.gavel import Throughputs
from trainyard.fleet.workload.readers.shockwave import ShockwaveProfile
from trainyard.fleet.workload.readers.shockwave_batches import regimes, steps_per_epoch
from trainyard.hardware.cluster import Cluster

# Twice the batch takes 1.25 times as long.
SPEEDS = {(f"LM (batch size {size})", 1): 10.0 * 0.8**n for n, size in enumerate((5, 10, 20, 40, 80))}


def lm(mode: str, batch_size: int, epochs: int) -> Job:
    job_type = f"LM (batch size {batch_size})"
    profile = ShockwaveProfile(Throughputs({"v100": SPEEDS}, {}), job_type, mode=mode)
    return Job("0:" + job_type, 0.0, 1, float(epochs * steps_per_epoch("LM", batch_size)), profile)


def epoch_s(batch_size: int) -> float:
    return steps_per_epoch("LM", batch_size) / SPEEDS[f"LM (batch size {batch_size})", 1]


@pytest.mark.parametrize(
    ("model", "batch_size", "devices", "mode", "sizes"),
    [
        ("LM", 10, 1, "static", ((0, 10),)),
        ("LM", 10, 1, "gns", ((0, 10), (11, 20), (21, 40), (41, 80))),
        ("LM", 10, 8, "gns", ((0, 10),)),  # nobody measured it there
        ("ResNet-18", 16, 1, "gns", ((0, 16), (31, 32), (41, 64), (51, 128), (71, 256))),
        ("Recommendation", 1024, 1, "gns", ((0, 1024), (21, 2048), (51, 4096), (91, 8192))),
        ("LM", 10, 1, "accordion", ((0, 10), (10, 80))),
        ("LM", 80, 1, "accordion", ((0, 80),)),
        (
            "ResNet-18", 64, 2, "accordion",
            ((0, 64), (10, 256), (150, 64), (160, 256), (250, 64), (260, 256)),
        ),
        ("Recommendation", 2048, 1, "accordion", ((0, 2048), (40, 8192))),
        ("Transformer", 16, 1, "accordion", ((0, 16),)),
        ("CycleGAN", 1, 1, "gns", ((0, 1),)),
        ("LM", 0, 1, "accordion", ((0, 0),)),  # of a job that names none
    ],
)  # fmt: skip
def test_batch_sizes(
    model: str, batch_size: int, devices: int, mode: str, sizes: tuple[tuple[int, int], ...]
) -> None:
    assert regimes(model, batch_size, devices, mode) == sizes


def test_the_regimes_of_a_resnet_50_come_again_and_again() -> None:
    sizes = regimes("ResNet-50", 32, 1, "accordion")
    assert sizes[:5] == ((0, 32), (10, 128), (30, 32), (40, 128), (60, 32))


@pytest.mark.parametrize(
    ("mode", "epochs_s"),
    [
        ("static", 50 * epoch_s(10)),
        ("accordion", 10 * epoch_s(10) + 40 * epoch_s(80)),
        ("gns", 11 * epoch_s(10) + 10 * epoch_s(20) + 20 * epoch_s(40) + 9 * epoch_s(80)),
    ],
)
def test_a_job_takes_as_long_as_its_epochs(mode: str, epochs_s: float) -> None:
    job, cluster = lm(mode, 10, 50), Cluster.of_pools([("v100", 1, 1)])
    assert simulate_fleet([job], cluster, fifo()).finish_s.tolist() == pytest.approx([epochs_s])
    profile = job.profile
    assert isinstance(profile, ShockwaveProfile)
    assert profile.rest_s(spot_of("v100", (1,)), Grant((0,)), 0.0, job.work) == pytest.approx(epochs_s)


def test_where_no_larger_batch_was_measured_it_keeps_its_speed() -> None:
    job = lm("accordion", 10, 50)
    only = {kind: rate for kind, rate in SPEEDS.items() if "80" not in kind[0]}
    assert isinstance(job.profile, ShockwaveProfile)
    job = replace(job, profile=replace(job.profile, throughputs=Throughputs({"v100": only}, {})))
    run = simulate_fleet([job], Cluster.of_pools([("v100", 1, 1)]), fifo())
    assert run.finish_s.tolist() == pytest.approx([50 * epoch_s(10)])


def test_in_rounds_of_whole_steps_it_changes_when_one_ends() -> None:
    """Rounds of 150 epochs at the first batch size: the first change of ``gns`` comes when the first one is over."""
    job, rounds = lm("gns", 10, 200), Rounds(150 * epoch_s(10))
    policy = MaxMinProgram(aware=False)
    run = simulate_fleet([job], Cluster.of_pools([("v100", 1, 1)]), policy, rounds=rounds)
    assert run.finish_s.tolist() == pytest.approx([150 * epoch_s(10) + 50 * epoch_s(80)], rel=1e-3)


@needs_data(DATA)
def test_as_the_authors_program() -> None:
    """Max-min fairness in their simulator."""
    with (DATA / "reference" / "fleet" / "others.csv").open() as file:
        (theirs_s,) = (float(r["value"]) for r in csv.DictReader(file) if r["simulator"] == "shockwave")
    folder = DATA / "cluster" / "shockwave"
    (trace,) = (folder / "traces").glob("120_*.trace")
    found_s = shockwave.makespan_s(trace, folder / "tacc_throughputs.json")
    assert found_s == pytest.approx(theirs_s, rel=0.01)
