"""What `--resume` takes from a checkpoint, what may be asked for otherwise, and that a run goes on exactly."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import one_rank
import pytest
import torch
import tyro

from trainyard.cli import main as cli
from trainyard.cli import run, train
from trainyard.cli.resuming import SavedRun, saved_run, settled
from trainyard.cli.screen import Screen
from trainyard.cli.train import Options
from trainyard.cli.training import optimizer_config, train_config
from trainyard.cli.training_options import DEFAULTS
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Plan, PlanError
from trainyard.job.run.checkpoint.saved import path_of, read_run, write_run
from trainyard.job.run.config import TrainConfig
from trainyard.job.run.errors import CheckpointError
from trainyard.job.schedules import make_schedule

RUN = SavedRun(
    Path("f/step-00000004"),
    4,
    {
        **DEFAULTS,
        "lr": 0.02,
        "betas": (0.8, 0.9),
        "clip_norm": 0.5,
        "steps": 4,
        "processes": 2,
        "strategies": "zero(stage=2)",
        "rows": 8,
        "keep": 2,
    },
    Plan("gpt-tiny", "x", "local", 8, make_schedule("one_f_one_b", 1, 1)),
    "2.13.0",
)


def test_what_is_not_given_is_as_before_or_as_usual() -> None:
    said: list[str] = []
    found = settled(Options(model="gpt-tiny"), RUN, said.append)
    assert (found.lr, found.clip_norm, found.rows, found.processes) == (0.02, 0.5, 8, 2)
    assert (found.strategies, found.steps, found.warmup_steps) == ("zero(stage=2)", 4, 0)
    assert said == ["goes on after step 4 of the run in f"]
    assert train_config(found, "m", Path("f"), RUN).optimizer == OptimizerConfig(
        lr=0.02, betas=(0.8, 0.9), clip_norm=0.5
    )
    given = settled(Options(model="gpt-tiny", max_checkpoint_size=2_500_000_000), None, said.append)
    assert train_config(given, "m", Path("f"), None).max_checkpoint_bytes == 2.5e9
    usual = settled(Options(model="gpt-tiny", lr=0.5), None, said.append)
    assert (usual.lr, usual.clip_norm, usual.processes, usual.steps) == (0.5, 0.0, None, 100)


def test_rates_and_groups_are_options_and_are_read_from_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = shlex.split(
        "--no-decay '1d,**.bias' --lr-scale 'layers.2.*=10' --lr-schedule wsd --decay-steps 3 --min-lr-factor 0.1"
    )
    wanted = OptimizerConfig(
        no_decay=("1d", "**.bias"),
        lr_scale=(("layers.2.*", 10.0),),
        lr_schedule="wsd",
        decay_steps=3,
        min_lr_factor=0.1,
    )
    read = tyro.cli(Options, args=["m", *options], config=(tyro.conf.FlagConversionOff,))
    assert optimizer_config(settled(read, None, print), "m") == wanted
    one_rank.run(tmp_path, 4, optimizer=wanted)
    resumed = Options(model="m", resume=True, checkpoint=tmp_path)
    assert optimizer_config(settled(resumed, saved_run(resumed), print), "m") == replace(wanted, lr_steps=4)
    with pytest.raises(
        CheckpointError, match=r"--no-decay 1d,\*\*\.bias, --lr-scale .*=10, and --no-decay 1d, --lr-scale"
    ):
        settled(
            replace(resumed, no_decay=("1d",), lr_scale=(("layers.2.*", 9.0),)), saved_run(resumed), print
        )
    assert cli.main(("train", "gpt-tiny", "--lr-scale", "head.**")) == 2
    assert "give a pattern and a factor from 0, such as 'head.**=10'" in capsys.readouterr().err


def test_what_may_change_is_said_and_the_rest_refused() -> None:
    said: list[str] = []
    found = settled(Options(model="gpt-tiny", steps=8, processes=1, lr=0.02), RUN, said.append)
    assert (found.steps, found.processes) == (8, 1)
    assert said == [
        "goes on after step 4 of the run in f; --steps 8 instead of 4; --processes 1 instead of 2"
    ]
    with pytest.raises(
        CheckpointError,
        match=r"a run with --lr 0\.02, --betas 0\.8 0\.9, and --lr 0\.1, --betas 0\.9 0\.99 is asked",
    ):
        settled(Options(model="gpt-tiny", lr=0.1, betas=(0.9, 0.99), steps=9), RUN, said.append)


def test_options_of_another_optimizer_are_refused() -> None:
    with pytest.raises(ValueError, match=r"--betas 0\.9 0\.99, --eps 0\.1: of adamw, not of sgd"):
        settled(Options(model="gpt-tiny", optimizer="sgd", betas=(0.9, 0.99), eps=0.1), None, print)
    with pytest.raises(
        ValueError, match=r"--momentum 0\.9: of sgd, not of adamw; leave it out, or take --optimizer sgd"
    ):
        settled(Options(model="gpt-tiny", momentum=0.9), None, print)


def test_defaults_are_those_of_python() -> None:
    usual = settled(Options(model="gpt-tiny"), None, print)
    python = TrainConfig(steps=100)
    assert train_config(usual, "m", Path("f"), None).optimizer == python.optimizer == OptimizerConfig()
    assert {name: DEFAULTS[name] for name in python.options if name in DEFAULTS} == {
        name: value for name, value in python.options.items() if name in DEFAULTS
    }
    assert DEFAULTS["seed"] == python.seed
    adamw = torch.optim.AdamW([torch.zeros(1)])
    assert (usual.lr, usual.betas, usual.eps) == tuple(
        adamw.defaults[name] for name in ("lr", "betas", "eps")
    )
    assert (usual.weight_decay, usual.clip_norm, usual.warmup_steps) == (0.0, 0.0, 0)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [("options", "steps", "4"), ("settings", "lr", [1]), ("settings", "betas", 3), ("options", "keep", None)],
)
def test_what_cannot_be_read_of_a_run_is_refused(
    part: str, name: str, value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one_rank.run(tmp_path, 1)
    said = read_run(path_of(tmp_path, 1))
    said[part][name] = value
    write_run(path_of(tmp_path, 1), said)
    assert cli.main(("train", "gpt-tiny", "--resume", "--checkpoint", str(tmp_path))) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: what ")
    assert "says of its run cannot be read" in err


@pytest.mark.slow
def test_the_command_that_is_printed_goes_on_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = shlex.split(
        "train gpt-tiny --rows 8 --lr 0.02 --betas 0.8 0.9 --eps 1e-6 --warmup-steps 3 --clip-norm 0.5 "
        "--weight-decay 0.1 --seed 5 --processes 2 --strategies 'zero(stage=2)' --dtype bfloat16"
    )

    def losses(*command: str) -> list[float]:
        assert cli.main((*command, "--json")) == 0, capsys.readouterr().err
        found = json.loads(capsys.readouterr().out)
        return [step["losses"]["loss:loss"] for step in found["metrics"]]

    whole = losses(*options, "--steps", "8", "--checkpoint", "whole")
    assert cli.main((*options, "--steps", "4", "--checkpoint", "a half")) == 0
    printed = capsys.readouterr().out.splitlines()[-1].strip()
    assert printed == "trainyard train gpt-tiny --checkpoint 'a half' --resume --steps 8"
    rest = losses(*shlex.split(printed)[1:])
    assert rest == whole[4:]


def test_a_launcher_starts_as_many_processes_as_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank sees this by itself, once all have met."""
    launcher = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    file, screen = tmp_path / "plan.yaml", Screen(False, False)
    replace(RUN.plan, model="no-such-model").save(file)
    with pytest.raises(
        PlanError, match=r"the launcher started 3 processes, and the plan is for 1: start as many as"
    ):
        run.act(run.Options(plan=file, device="cuda"), screen)
    with pytest.raises(
        ValueError, match=r"--processes 2: the launcher started 3 processes; leave the option out"
    ):
        train.act(train.Options(model="no-such-model", processes=2), screen)


def test_a_run_says_its_optimizer_before_its_plan_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.yaml"
    RUN.plan.save(file)
    assert cli.main(["run", str(file), "--optimizer", "sgd", "--lr", "0.5", "--momentum", "0.9"]) == 2
    printed = capsys.readouterr()
    assert re.search(
        "optimizer sgd: lr 0.5, warmup steps 0, momentum 0.9, .*error: .*fingerprint", printed.err, re.S
    )
