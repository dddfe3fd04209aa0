"""Trainings in Trainyard's own form of a workload."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import trainyard as ty
from trainyard.cli import main as cli
from trainyard.fleet.errors import FleetError
from trainyard.fleet.policies.queues import fifo
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import Grant, Spot, declared_job
from trainyard.fleet.workload.own import read_form, write_jobs
from trainyard.fleet.workload.read import read_workload
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import training_job, training_of
from trainyard.hardware.parse import parse_cluster

HEAD = "name,arrival_s,num_devices,steps,model,batch_size"
PLAIN = training_job("plain", 0.0, 2, Training("gpt-tiny", 4, 30))
FULL = training_job(
    "full", 1.5, 4, Training("llama-tiny", 8, 7, "megatron(tensor=2)", 0.02, 3, 0), min_devices=2, max_devices=8,
    user="ann", deadline_s=99.0,
)  # fmt: skip


@pytest.mark.parametrize("name", ["jobs.csv", "jobs.yaml"])
def test_trainings_that_are_written_are_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    jobs = [PLAIN, declared_job("timed", 1.0, 1, 9.0), FULL]
    write_jobs(jobs, path)
    assert list(read_workload(path)) == jobs


def test_the_speed_is_that_of_level_1(tmp_path: Path) -> None:
    """A file of two trainings on four V100s: their times are steps times what level 1 says that one takes there."""
    path = tmp_path / "jobs.csv"
    path.write_text(f"{HEAD}\none,0,1,100,gpt-tiny,4\nall,0,4,50,gpt-tiny,4\n")
    jobs = list(read_workload(path))
    run = simulate_fleet(jobs, parse_cluster("1x4xV100-32G"), fifo())
    model = ty.load_model("gpt-tiny", 4)
    step_s = [ty.plan(model, f"1x{n}xV100-32G", "data_parallel").simulation.step_s for n in (1, 4)]
    one_s, all_s = 100 * step_s[0], 50 * step_s[1]
    assert dict(zip(run.names, run.finish_s, strict=True)) == pytest.approx(
        {"one": one_s, "all": one_s + all_s}
    )


def test_trainings_of_one_speed_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[Training] = []
    plain = Training.task
    monkeypatch.setattr(Training, "task", lambda self: (planned.append(self), plain(self))[1])
    first = Training("gpt-tiny", 26, 100)  # which no other test asks for
    others = [replace(first, steps=7), replace(first, seed=1), replace(first, learning_rate=0.1)]
    jobs = [training_job(str(number), 0.0, 1, training) for number, training in enumerate([first, *others])]
    run = simulate_fleet(jobs, parse_cluster("1x1xV100-32G"), fifo())
    assert len(planned) == 1
    assert run.finish_s.tolist() == pytest.approx(
        (run.finish_s[0] * np.array([1.0, 1.07, 2.07, 3.07])).tolist()
    )
    assert (
        len({replace(first, rows=8).as_fast, replace(first, checkpoint_every=2).as_fast, first.as_fast}) == 3
    )


def test_the_command_simulates_them(capsys: pytest.CaptureFixture[str]) -> None:
    trace = Path(__file__).parents[3] / "examples" / "fleet" / "trainings.yaml"
    assert cli.main(("fleet", "simulate", "--trace", str(trace), "--cluster", "1x4xV100-32G")) == 0
    assert "3 jobs, 4 devices" in capsys.readouterr().out


def test_a_form_needs_no_arrival() -> None:
    text = '{"name": "a", "num_devices": 2, "steps": 30, "model": "gpt-tiny", "batch_size": 4, "user": null}'
    job = read_form(text, Path("the job"))
    assert (job.arrival_s, training_of(job)) == (0.0, Training("gpt-tiny", 4, 30))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "a,0,1,5,gpt-9,4",
            "line 2, field 'model': got 'gpt-9', allowed is a model of the zoo: gpt-tiny, llama-tiny",
        ),
        ("a,0,1,5,,4", "line 2, field 'model': got ''"),
        ("a,0,1,5,gpt-tiny,", "line 2, field 'batch_size': got '', allowed is the number of rows of a step"),
        (
            "a,0,1,5,gpt-tiny,0",
            "line 2, field 'batch_size': got '0', allowed is a whole number of at least 1",
        ),
        ("a,0,1,0.5,gpt-tiny,4", "line 2, field 'steps': got '0.5', allowed is a whole number of at least 1"),
        (
            "a,0,3,5,gpt-tiny,4",
            "line 2, field 'num_devices': got '3', allowed is one over which a batch of 4 rows",
        ),
    ],
)
def test_errors_in_trainings(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(f"{HEAD}\n{text}\n")
    with pytest.raises(FleetError) as error:
        list(read_workload(path, strict=True))
    assert str(error.value).startswith(f"{path}, ")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            "steps: 5, length_s: 5",
            "field 'length_s': got '5', allowed is either length_s, or work and speeds, or steps",
        ),
        ("steps: 5, work: 5", "either length_s, or work and speeds, or steps with model and batch_size"),
        ("length_s: 5, seed: 1", "field 'seed': got '1', allowed is nothing where no steps are given"),
        ("steps: 5, seed: -1", "field 'seed': got '-1', allowed is a whole number of at least 0"),
        ("steps: 5, checkpoint_every: x", "field 'checkpoint_every': got 'x'"),
        ("steps: 5, learning_rate: fast", "field 'learning_rate': got 'fast'"),
        ("steps: 5, strategies: zerro", "field 'strategies': got 'zerro', allowed is "),
    ],
)
def test_errors_in_forms(fields: str, said: str) -> None:
    text = f"\n{{name: a, num_devices: 1, model: gpt-tiny, batch_size: 4, {fields}}}"
    with pytest.raises(FleetError) as error:
        read_form(text, Path("the job"))
    assert str(error.value).startswith("the job, line 2, ")
    assert said in str(error.value)


def test_what_has_no_plan_has_no_speed() -> None:
    job = training_job("a", 0.0, 1, Training("gpt-tiny", 4, 5, "gpipe(stages=64)"))
    assert job.profile.work_per_s(Spot("V100-32G", 1, 1, (1,)), Grant((0,))) == 0.0
