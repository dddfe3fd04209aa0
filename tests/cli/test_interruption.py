"""Ctrl-C and SIGTERM of a training: it is saved, the command that goes on is printed, and shells see the signal."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.job.run.checkpoint.saved import complete_steps

COMMAND = (
    sys.executable, "-m", "trainyard", "train", "gpt-tiny", "--rows", "4", "--processes", "2", "--strategies",
    "data_parallel", "--checkpoint", "a folder",
)  # fmt: skip

TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node=2")


def started(command: tuple[str, ...], cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=cwd,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # which a shell's background job ignores
    )


def read_until(process: subprocess.Popen[str], beginning: str) -> str:
    """What is printed up to a line that begins so."""
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith(beginning):
            return "".join(lines)
    raise AssertionError("".join(lines))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "number", "code"),
    [
        ((), signal.SIGINT, 130),
        pytest.param((), signal.SIGTERM, 143, marks=pytest.mark.long),
        (TORCHRUN, signal.SIGTERM, 1),
    ],
)
def test_a_training_that_is_interrupted_goes_on(
    launcher: tuple[str, ...], number: signal.Signals, code: int, tmp_path: Path
) -> None:
    # So many steps that it does not end before.
    command = (COMMAND[0], *launcher, *COMMAND[1:], "--steps", "100000")
    with started(command, tmp_path) as process:
        assert process.stderr is not None
        assert "adamw: lr 0.001, warmup steps 0, betas 0.9 0.999, eps 1e-08" in read_until(process, "step ")
        # As a terminal and systemd do: every process of the group gets the signal.
        os.killpg(process.pid, number)
        rest = process.stderr.read()
    assert process.returncode == code, rest
    assert f"{number.name}: the run ends after the present step, with a checkpoint" in rest
    steps = complete_steps(tmp_path / "a folder")
    assert (
        f"step {steps[0]} is saved in a folder; go on{' under the launcher' if launcher else ''} with" in rest
    )
    again = next(line.strip() for line in rest.splitlines() if line.startswith("  trainyard "))
    assert again == "trainyard train gpt-tiny --checkpoint 'a folder' --resume"
    command = (*COMMAND[:3], *shlex.split(again)[1:], "--steps", str(steps[0] + 1))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert re.search(rf"goes on after step {steps[0]} of the run", done.stderr)
    assert complete_steps(tmp_path / "a folder")[0] == steps[0] + 1
