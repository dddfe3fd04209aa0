"""Trainings and jobs of one's own while processes and `fleet run` itself are killed: nothing lost, nothing done twice."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from backend_trials import LONGEST, kill_somebody
from checkpoints_kept import check_done_again
from own_scripts import FOLDER, LIMIT_S, RESULTS, example, run_undisturbed, uninterrupted

from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.local import LocalBackend
from trainyard.hardware.cluster import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LIMIT_S)]
OWN = ("squares", "own", "ddp")


def jobs_text(num_trainings: int) -> str:
    """Jobs that preempt each other: trainings of one and two devices, and jobs of one's own."""
    lines = [
        f"- {{name: zoo{number}, arrival_s: {number}, num_devices: {1 + number % 2}, model: gpt-tiny, batch_size: 4, "
        f"steps: {LONGEST}, checkpoint_every: 4}}"
        for number in range(num_trainings)
    ]
    python, line = sys.executable, "length_s: {length_s}, steps: {steps}"
    lines += [
        f"- {{name: squares, arrival_s: 0, num_devices: 1, command: sh {FOLDER}/square.sh, "
        f"{line.format(length_s=5, steps=40)}}}",
        f"- {{name: ddp, arrival_s: 1, num_devices: 2, command: {python} {FOLDER}/train_ddp.py, "
        f"{line.format(length_s=15, steps=150)}}}",
        f"- {{name: own, arrival_s: 2, num_devices: 2, model: {FOLDER}/own_model.py, batch_size: 8, steps: 300}}",
    ]
    return "\n".join(["jobs:", *lines])


class KilledRun:
    """A `fleet run` in a process of its own, which is started again on the same folder when it was killed."""

    def __init__(self, folder: Path, num_trainings: int) -> None:
        self.folder, self.num_job_kills, self.num_own_kills = folder / "fleet", 0, 0
        self._trace, self._log = folder / "jobs.yaml", folder / "run.log"
        self._trace.write_text(jobs_text(num_trainings))
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        options = (
            "--trace",
            self._trace,
            "--cluster",
            "1x2xlocal",
            "--policy",
            "srtf",
            "--folder",
            self.folder,
            *("--start", "0s", "--restart", "0s"),  # no job is started to measure it, which could be killed
        )
        command = [sys.executable, "-m", "trainyard", "fleet", "run", *map(str, options)]
        with self._log.open("a") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, text=True)

    def kill_itself(self) -> None:
        """Kill the run, and start it again."""
        self.process.kill()
        self.process.wait()
        self.num_own_kills += 1
        self.process = self._start()

    def kill_a_job(self, chance: random.Random) -> None:
        """Kill a process of a job; wait for one if need be."""
        while not kill_somebody(self.folder, chance):
            assert self.process.poll() is None, f"all jobs ended before\n{self._log.read_text()}"
            time.sleep(0.1)
        self.num_job_kills += 1

    def wait(self) -> None:
        """Wait for the end of all jobs."""
        assert self.process.wait(LIMIT_S) == 0, self._log.read_text()


@pytest.mark.parametrize(("rounds", "num_trainings"), [(3, 3), pytest.param(20, 20, marks=pytest.mark.long)])
def test_every_job_ends_as_if_nobody_had_been_killed(
    rounds: int, num_trainings: int, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    chance, run = random.Random(rounds), KilledRun(tmp_path, num_trainings)
    try:
        for number in range(rounds):
            run.kill_a_job(chance)
            time.sleep(chance.uniform(0.0, 2.0))
            if number % 3 == 1:
                run.kill_itself()
            time.sleep(chance.uniform(0.0, 2.0))
        run.wait()
    finally:
        run.process.kill()
    for number in range(num_trainings):
        directory = JobDirectory(run.folder / f"zoo{number}")
        assert directory.losses() == pytest.approx(undisturbed, rel=1e-5)
        check_done_again(directory, run.num_job_kills)
    check_squares(JobDirectory(run.folder / "squares"), run.num_job_kills)
    check_done_again(JobDirectory(run.folder / "own"), run.num_job_kills)
    check_as_alone(run.folder, tmp_path / "alone")


def check_squares(directory: JobDirectory, most_kills: int) -> None:
    """Every square is there, in order; one may be there twice if the script was killed before it noted it as done."""
    numbers = [int(line.split()[0]) for line in (directory.output / "squares.txt").read_text().splitlines()]
    assert sorted(set(numbers)) == list(range(1, 41))
    repeats = [number for number, later in pairwise(numbers) if later != number + 1]
    assert len(repeats) <= most_kills
    assert all(later - number in (0, 1) for number, later in pairwise(numbers))


def check_as_alone(folder: Path, alone_folder: Path) -> None:
    """Scripts that save have trained what they train when nobody disturbs them."""
    alone = LocalBackend(Cluster.uniform(1, 2, "local"), alone_folder)
    for name in ("ddp", "own"):
        run_undisturbed(uninterrupted(example(name)), alone)
        found, expected = (
            RESULTS[name](each) for each in (JobDirectory(folder / name), alone.directory(name))
        )
        torch.testing.assert_close(found, expected)
