"""Short jobs, some of them hostile, while ranks, nodes, clients and the daemon are killed, stopped and cut off."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from checkpoints_kept import check_done_again
from daemons import PATIENCE_S, TRAINING, Running, kill_job, kill_jobs, start

from trainyard.fleet.daemon.tables import FINAL
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.workload.training import Training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

STEPS, OPTIONS = 8, ("--cluster", "1x2xlocal", "--policy", "fifo(backfill=True)")
HOSTILE = (
    {"batch_size": 10**12},
    {"batch_size": 4_000_000_000},
    {"max_devices": 1e300},
    {"steps": -1},
    {"num_devices": 10**9},
    {"model": "gpt3-175b"},
    {"name": "../../etc"},
    {"strategies": "gpipe(microbatches=1000000000)"},
    {"user": "root"},
)


class Chaos:
    """What may go wrong, on a daemon that is started again when it was killed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.chance = folder, random.Random(seed)
        self.daemon = start(folder, *OPTIONS)
        self.num_disturbed = 0
        self.sockets: list[socket.socket] = []

    def disturbances(self) -> Iterator[Callable[[], object]]:
        """What goes wrong: a job first, while there are some for certain; then each as often as any other."""
        yield self.kill_some_job
        every: tuple[Callable[[], object], ...] = (
            self.kill_daemon,
            self.kill_some_job,
            self.kill_some_job,
            self.stop_some_rank,
            self.cut_off_clients,
            self.kill_command,
            self.submit_what_cannot_be,
        )
        while True:
            yield from self.chance.sample(every, len(every))

    def kill_daemon(self) -> None:
        self.daemon.kill()
        self.daemon = start(self.folder, *OPTIONS)

    def _running(self) -> list[JobDirectory]:
        directories = [JobDirectory(path) for path in sorted((self.folder / "jobs").glob("*"))]
        self.chance.shuffle(directories)
        return [directory for directory in directories if directory.groups()]

    def kill_some_job(self) -> None:
        """One that runs; before the first kill, one is waited for."""
        whom = self.chance.choice(("one of its ranks", "its node process", "its group"))
        limit_s = time.monotonic() + PATIENCE_S
        while (
            not (killed := any(kill_job(each, whom) for each in self._running())) and not self.num_disturbed
        ):
            assert time.monotonic() < limit_s, states(self.daemon)
            time.sleep(0.1)
        self.num_disturbed += killed

    def stop_some_rank(self) -> None:
        """For a moment: that is no failure."""
        for group in (group for each in self._running()[:1] for group in each.groups()):
            with suppress(ProcessLookupError):
                os.kill(group, signal.SIGSTOP)
                time.sleep(0.5)
                os.kill(group, signal.SIGCONT)

    def cut_off_clients(self) -> None:
        """Some say nothing, some stop in the middle of a request."""
        parts = urlsplit(self.daemon.url)
        for said in (b"", b"POST /jobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 999\r\n\r\n{"):
            for _ in range(20):
                client = socket.create_connection((parts.hostname or "", parts.port or 0))
                client.sendall(said)
                self.sockets.append(client)
        for client in self.sockets[::2]:
            client.close()

    def kill_command(self) -> None:
        command = [sys.executable, "-m", "trainyard", "fleet", "status", "--server", self.daemon.url]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(self.chance.uniform(0.0, 0.5))
        process.kill()
        process.wait()

    def submit(self, form: dict[str, Any]) -> tuple[int, Any]:
        """Submit a job, again while the daemon looks at others."""
        while (found := self.daemon.ask("POST", "/jobs", form))[0] == 503:
            time.sleep(1.0)
        return found

    def submit_what_cannot_be(self) -> None:
        hostile = {"name": "hostile", **TRAINING, "steps": STEPS} | self.chance.choice(HOSTILE)
        status, answer = self.submit(hostile)
        assert 400 <= status < 500, (hostile, status, answer)
        assert len(answer["error"]) < 2000


def states(daemon: Running) -> dict[str, str]:
    return {job["name"]: job["state"] for job in daemon.ask("GET", "/jobs")[1]["jobs"]}


@pytest.mark.parametrize(
    ("num_jobs", "num_disturbances"), [(16, 15), pytest.param(500, 400, marks=pytest.mark.long)]
)
def test_every_honest_job_ends_once(
    num_jobs: int, num_disturbances: int, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    chaos = Chaos(tmp_path / "fleet", seed=num_jobs)
    # A folder that was left there, of another training.
    JobDirectory(chaos.folder / "jobs" / "left").set_up(Training("gpt-tiny", 8, 1))
    names = [f"job{number}" for number in range(num_jobs)]
    try:
        for name in ("left", *names):
            status, said = chaos.submit({"name": name, **TRAINING, "steps": STEPS})
            assert status == 201, said
        for disturb in islice(chaos.disturbances(), num_disturbances):
            time.sleep(chaos.chance.uniform(0.0, 2.0))
            disturb()
        limit_s = time.monotonic() + PATIENCE_S
        while any(states(chaos.daemon)[name] not in FINAL for name in names):
            assert time.monotonic() < limit_s, states(chaos.daemon)
            time.sleep(0.2)
        assert chaos.daemon.ask("GET", "/healthz") == (200, "ok\n")
        found = states(chaos.daemon)
        assert {found[name] for name in names} == {"ended"}
        assert found["left"] != "ended"
        events = chaos.daemon.ask("GET", "/events?last=100000")[1]["events"]
    finally:
        chaos.daemon.kill()
        kill_jobs(chaos.folder)
        for client in chaos.sockets:
            client.close()
    assert any(e["job"] == "left" and "belongs to another training" in e["text"] for e in events)
    assert Counter(e["job"] for e in events if e["what"] == "ends") == Counter(names)
    failed = Counter(e["job"] for e in events if e["what"] == "fails")
    assert sum(failed[name] for name in names) <= chaos.num_disturbed
    right = {step: undisturbed[step] for step in range(STEPS)}
    for name in names:
        directory = JobDirectory(chaos.folder / "jobs" / name)
        assert directory.losses() == pytest.approx(right, rel=1e-5), json.dumps(directory.losses())
        check_done_again(directory, failed[name])
