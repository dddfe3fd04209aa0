"""The table that level 1 predicts of a model is what it says when asked place by place, and a profile for jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import trainyard as ty
from trainyard.cli import main as cli
from trainyard.fleet.errors import FleetError
from trainyard.fleet.policies.queues import fifo
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import Grant, spot_of
from trainyard.fleet.workload.predict import predicted_job, throughput_table
from trainyard.fleet.workload.read import read_workload
from trainyard.fleet.workload.speeds import Speeds
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import Predicted
from trainyard.hardware.parse import parse_cluster

CLUSTER = parse_cluster("2x2xV100-32G+1x4xA100-80G")
# Where the devices of that cluster can lie, as level 1 writes clusters.
PLACES = {
    ("V100-32G", (1,)): "1x1xV100-32G",
    ("V100-32G", (2,)): "1x2xV100-32G",
    ("V100-32G", (1, 1)): "2x1xV100-32G",
    ("V100-32G", (2, 2)): "2x2xV100-32G",
    ("A100-80G", (1,)): "1x1xA100-80G",
    ("A100-80G", (2,)): "1x2xA100-80G",
    ("A100-80G", (4,)): "1x4xA100-80G",
}
OWN = """
import torch
from torch import nn

def model():
    return nn.Linear(256, 256), lambda module, batch: module(batch).square().mean(), torch.zeros(8, 256)
"""


def asked(model: ty.Model, cluster: str, strategies: str = "data_parallel") -> float:
    """Steps per second that level 1 says when it plans for a cluster, and simulates that plan there."""
    return 1.0 / ty.simulate(ty.plan(model, cluster, strategies).plan, model, cluster).step_s


@pytest.mark.slow
@pytest.mark.long
def test_the_table_and_trainings_are_what_level_1_says_of_every_place() -> None:
    model = ty.load_model("gpt-tiny", 4)
    says = {place: pytest.approx(asked(model, text), rel=1e-9) for place, text in PLACES.items()}
    found = {(t.spot.device_type, t.spot.per_node): t.steps_per_s for t in throughput_table(model, CLUSTER)}
    assert found == says
    assert found["V100-32G", (1, 1)] < found["V100-32G", (2,)], "over the network it is slower"
    assert len({round(rate, 6) for rate in found.values()}) == len(found)
    profile = Predicted(Training("gpt-tiny", 4, 100))
    assert says == {
        (kind, per_node): profile.work_per_s(spot_of(kind, per_node), Grant(tuple(range(sum(per_node)))))
        for kind, per_node in PLACES
    }


def test_ones_own_module_becomes_a_job() -> None:
    """Six steps on a gang of one, then on all four devices of two nodes."""
    module = nn.Linear(512, 512)
    model = ty.Model("mine", module, lambda net, rows: net(rows).square().mean(), torch.zeros(8, 512))
    cluster = parse_cluster("2x2xV100-32G")
    job = predicted_job("mine", model, 6, throughput_table(model, cluster))
    assert (job.num_devices, job.min_devices, job.max_devices, job.batch_size) == (1, 1, 4, 8)
    run = simulate_fleet([job], cluster, fifo())
    assert run.makespan_s == pytest.approx(6 / asked(model, "1x1xV100-32G"))
    rate = job.profile.work_per_s(spot_of("V100-32G", (2, 2)), Grant((0, 1, 2, 3)))
    assert rate == pytest.approx(asked(model, "2x2xV100-32G"))


def test_what_cannot_run_says_why() -> None:
    with torch.device("meta"):
        module, batch = nn.Linear(200_000, 200_000), torch.zeros(4, 200_000)
    model = ty.Model("huge", module, lambda net, rows: net(rows).mean(), batch)
    table = throughput_table(model, parse_cluster("1x2xV100-16G"))
    assert {entry.steps_per_s for entry in table} == {0.0}
    assert all("short of" in entry.reason for entry in table)
    with pytest.raises(FleetError, match="huge runs nowhere on this cluster: a device is short of"):
        predicted_job("huge", model, 1, table)
    (odd,) = throughput_table(ty.load_model("gpt-tiny", 4), parse_cluster("1x3xV100-16G"), num_devices=[3])
    assert odd.steps_per_s == 0
    assert "4 rows cannot be cut" in odd.reason


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def test_the_command_writes_a_trace(own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = tmp_path / "jobs.csv"
    cluster = "2x2xV100-32G"
    command = ("fleet", "profile", str(own), "--cluster", cluster, "--steps", "500", "--save", str(jobs))
    assert cli.main((*command, "--json")) == 0
    said = capsys.readouterr()
    assert f"job own written to {jobs}" in said.err
    found = json.loads(said.out)
    model = ty.load_model(str(own))
    rates = {tuple(each["devices_per_node"]): each["steps_per_s"] for each in found["throughputs"]}
    assert set(rates) == {(1,), (2,), (1, 1), (2, 2)}
    assert rates[2, 2] == pytest.approx(asked(model, cluster))
    (job,) = read_workload(jobs)
    assert job.profile == Speeds.parse(found["speeds"])
    assert cli.main(("fleet", "simulate", "--trace", str(jobs), "--cluster", cluster, "--json")) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["mean_completion_s"] == pytest.approx(500 / rates[1,])


def test_the_command_shows_a_table(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(("fleet", "profile", "gpt-tiny", "--rows", "4", "--cluster", "1x8xA100-80G")) == 0
    said = capsys.readouterr().out
    assert "gpt-tiny, 4 rows a step, by data_parallel on 1x8xA100-80G: predicted" in said
    assert "4 rows cannot be cut" in said, "eight devices cannot share them"
    assert cli.main(("fleet", "profile", str(own), "--cluster", "1x2xA100-80G", "--devices", "2")) == 0
    said = capsys.readouterr().out
    assert "cannot run" not in said
    assert len([line for line in said.splitlines() if "A100-80G  " in line]) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gpt-tiny", "--cluster", "1x2xK81"), "a training runs on devices of a known type"),
        (("gpt-9", "--cluster", "1x2xV100-16G"), "unknown model 'gpt-9'; known: "),
        (("none.py", "--cluster", "1x2xV100-16G"), "no file"),
        (("gpt-tiny", "--cluster", "1x2xV100-16G", "--devices", "4"), "from 1 to 2, what cluster"),
        (("gpt-tiny", "--cluster", "1x2xV100-16G", "--devices", "two"), "is not numbers separated by commas"),
        (("gpt-tiny", "--cluster", "1x2xV100-16G", "--strategies", "zerro"), "zerro"),
        (("gpt-tiny", "--cluster", "1x2xV100-16G", "--steps", "0"), "at least one step"),
    ],
)
def test_errors_of_the_command(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(("fleet", "profile", *arguments)) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert said in told.err
