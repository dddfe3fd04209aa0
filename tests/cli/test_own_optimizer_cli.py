"""The optimizer of a Python file: `optimizer(params)` and `lr_schedule(step)` beside model() and data(step)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from trainyard.cli import main as cli

_FILE = """
import torch
from torch import nn
from trainyard import Model

ROWS = 8


def data(step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(ROWS, 4, generator=generator)
    return {"x": x, "y": x.sin()}


def loss(module, batch):
    return nn.functional.mse_loss(module(batch["x"]), batch["y"])


def model():
    torch.manual_seed(0)
    return Model("sines", nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)), loss, data(0))


def optimizer(params):
    matrices = [(n, p) for n, p in params if p.ndim == 2]
    rest = [(n, p) for n, p in params if p.ndim < 2]
    return [torch.optim.Muon(matrices, lr=0.05), torch.optim.AdamW(rest, lr=0.01)]


def lr_schedule(step):
    return 0.9**step
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "sines_with_muon.py"
    path.write_text(_FILE)
    return path


def _losses(capsys: pytest.CaptureFixture[str], *command: str) -> list[float]:
    assert cli.main((*command, "--json")) == 0, capsys.readouterr().err
    return [step["losses"]["loss:loss"] for step in json.loads(capsys.readouterr().out)["metrics"]]


def _plain(steps: int) -> list[float]:
    """The losses of the same file in plain PyTorch."""
    names: dict = {}
    exec(compile(_FILE, "file", "exec"), names)
    model = names["model"]()
    members = names["optimizer"](list(model.module.named_parameters()))
    rates = [torch.optim.lr_scheduler.LambdaLR(member, names["lr_schedule"]) for member in members]
    losses = []
    for step in range(steps):
        loss = model.loss(model.module, names["data"](step))
        model.module.zero_grad()
        loss.backward()
        losses.append(loss.item())
        for member, rate in zip(members, rates, strict=True):
            member.step()
            rate.step()
    return losses


def test_a_file_trains_with_its_own_optimizer_and_is_resumed(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("train", file.name, "--processes", "2", "--strategies", "data_parallel", "--checkpoint", "run")
    first = _losses(capsys, *command, "--steps", "3")
    rest = _losses(capsys, *command, "--steps", "5", "--resume")
    assert first + rest == pytest.approx(_plain(5), rel=2e-6)
    assert cli.main((*command, "--resume", "--lr", "0.1")) == 2
    assert "is of a run with --lr 0.001, and --lr 0.1 is asked for" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            ("train", "--lr", "0.1"),
            "--lr has no effect: the function `optimizer` of sines_with_muon.py decides",
        ),
        (("train", "--optimizer", "sgd"), "--optimizer has no effect: the function `optimizer` of "),
        (("train", "--lr-schedule", "cosine"), "--lr-schedule has no effect: the function `lr_schedule` of "),
        (
            ("train", "--strategies", "zero", "--processes", "2"),
            "Muon, AdamW needs all of a parameter for the update of an element, and the plan divides the optimizer",
        ),
        (("plan", "--cluster", "1x2xT4", "--optimizer", "sgd"), "--optimizer has no effect"),
        (("plan", "--cluster", "1x2xT4", "--strategies", "zero"), "Muon, AdamW needs all of a parameter"),
    ],
    ids=["lr", "optimizer", "schedule", "zero", "plan sgd", "plan zero"],
)
def test_what_the_file_decides_is_refused_as_an_option(
    command: tuple[str, ...], said: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verb, *options = command
    assert cli.main((verb, file.name, *options)) == 2
    assert said in capsys.readouterr().err
