"""A daemon in a process of its own, asked over HTTP; and what is left of it cleaned away."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from checkpoints_kept import check_done_again

from trainyard.fleet.daemon.app import Api
from trainyard.fleet.daemon.tables import FINAL
from trainyard.fleet.run.job_directory import JobDirectory

PATIENCE_S = 1200.0
TRAINING = {"num_devices": 1, "model": "gpt-tiny", "batch_size": 4}
STEPS = 60


@dataclass
class Running:
    """A daemon that serves."""

    process: subprocess.Popen[str]
    url: str
    folder: Path

    def ask(
        self,
        method: str,
        path: str,
        body: str | Mapping[str, Any] | None = None,
        token: str = "",
        **headers: str,
    ) -> tuple[int, Any]:
        """Status and answer, as JSON where it is."""
        text = json.dumps(body) if isinstance(body, Mapping) else body
        headers = {"content-type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
        if token:
            headers["authorization"] = f"Bearer {token}"
        data = None if text is None else text.encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                status, found = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, found = error.code, error.read().decode()
        with suppress(ValueError):
            return status, json.loads(found)
        return status, found

    def wait(self, name: str, what: str, token: str = "", steps: int = 0) -> dict[str, Any]:
        """Wait until a job is in a state, or one of several, and has done some steps."""
        limit_s = time.monotonic() + PATIENCE_S
        while True:
            status, job = self.ask("GET", f"/jobs/{name}", token=token)
            assert status == 200, job
            if job["state"] in what.split() and job["steps_done"] >= steps:
                return job
            assert job["state"] not in FINAL, f"waited for {what} and {steps} steps: {job}"
            assert time.monotonic() < limit_s, f"waited for {what} and {steps} steps: {job}"
            time.sleep(0.1)

    def wait_for_news(self, names: Set[str], since_s: float) -> None:
        """Wait until something was noted of each of some jobs, as that it still runs."""
        limit_s = time.monotonic() + PATIENCE_S
        while missing := names - {
            event["job"] for event in self.ask("GET", "/events")[1]["events"] if event["at_s"] > since_s
        }:
            assert time.monotonic() < limit_s, f"nothing is heard of {missing}"
            time.sleep(0.02)

    def kill(self) -> None:
        """As a crash does."""
        self.process.kill()
        self.process.wait()


def start(folder: Path, *options: str) -> Running:
    """Start a daemon and wait until it answers."""
    command = [
        sys.executable,
        "-m",
        "trainyard",
        "fleet",
        "daemon",
        "--folder",
        str(folder),
        "--port",
        "0",
    ]
    with (folder.parent / "daemon.log").open("a+") as log:
        at = log.seek(0, os.SEEK_END)
        process = subprocess.Popen([*command, *options], stderr=log, text=True, umask=0o022)
        while True:
            log.seek(at)
            said = log.read()
            if "serving on " in said:
                return Running(process, said.partition("serving on ")[2].partition(";")[0], folder)
            assert process.poll() is None, said
            time.sleep(0.02)


def wait_for_steps(directory: JobDirectory, steps: int) -> None:
    """Wait until a job has done some steps; a daemon hears of them later, when it may have ended."""
    limit_s = time.monotonic() + PATIENCE_S
    while not (directory.logs / "metrics.jsonl").exists() or len(directory.losses()) < steps:
        assert time.monotonic() < limit_s, f"waited for {steps} steps of {directory.path.name}"
        time.sleep(0.02)


def kill_job(directory: JobDirectory, whom: str) -> bool:
    """Kill one of a job's ranks, or "its node process", or "its group"; whether there was one."""
    for group in directory.groups():  # led by the node process
        with suppress(ProcessLookupError, FileNotFoundError):  # it has just ended
            if whom == "one of its ranks":
                for rank in Path(f"/proc/{group}/task/{group}/children").read_text().split()[:1]:
                    os.kill(int(rank), signal.SIGKILL)
                    return True
            else:
                (os.killpg if whom == "its group" else os.kill)(group, signal.SIGKILL)
                return True
    return False


def kill_jobs(folder: Path) -> None:
    """End all jobs of a folder at once."""
    for directory in (folder / "jobs").glob("*"):
        for group in JobDirectory(directory).groups():
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


def _without_core_s(pid: int) -> float:
    """How long the threads of a process waited for a core, as other processes had all: that is not its own slowness."""
    every = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[1]) for each in every) / 1e9


def has_pytorch(pid: int) -> bool:
    """Whether a process has loaded it, which takes seconds."""
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


def _running(folder: Path) -> set[str]:
    """Jobs that have processes and are not asked to leave."""
    directories = [JobDirectory(path) for path in (folder / "jobs").glob("*")]
    return {
        directory.path.name
        for directory in directories
        if directory.groups() and not directory.pause.exists()
    }


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Running]:
    """A daemon that is killed in the end, with its jobs."""
    daemon = start(folder, *options)
    try:
        yield daemon
    finally:
        daemon.kill()
        kill_jobs(folder)


@contextmanager
def answering(api: Api) -> Iterator[str]:
    """The address of a server that answers for a daemon in this process."""
    server = uvicorn.Server(uvicorn.Config(api.app(), port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.05)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def form(name: str, num_devices: int = 1) -> dict[str, object]:
    """A job of some seconds."""
    return {"name": name, **TRAINING, "num_devices": num_devices, "steps": STEPS}


def check_kills(
    folder: Path, undisturbed: Mapping[int, float], options: Sequence[str], num_kills: int
) -> list[float]:
    """A daemon is killed at random moments, while jobs come, start, run, are preempted and end; nothing is lost.

    Jobs notice nothing of that, and do no step twice.

    Parameters
    ----------
    options : of the daemon; its cluster has two devices.

    Returns
    -------
    Seconds until it answered again and had found the jobs that ran.
    """
    chance, back_s = random.Random(1), list[float]()
    coming = [form("wide", 2), form("first"), form("second"), form("third", 2)]
    names = [str(each["name"]) for each in coming]
    daemon = start(folder, *options)
    try:
        for _ in range(num_kills):
            if coming:
                assert daemon.ask("POST", "/jobs", coming.pop(0))[0] == 201
            time.sleep(chance.uniform(0.0, 8.0))
            daemon.kill()
            killed_s, running = time.time(), _running(folder)
            daemon = start(folder, *options)
            assert daemon.ask("GET", "/healthz") == (200, "ok\n")
            daemon.wait_for_news(running, killed_s)
            back_s.append(time.time() - killed_s - _without_core_s(daemon.process.pid))
        for each in coming:
            assert daemon.ask("POST", "/jobs", each)[0] == 201
        for name in names:
            assert daemon.wait(name, "ended failed")["state"] == "ended"
        _, found = daemon.ask("GET", "/events?last=10000")
    finally:
        daemon.kill()
        kill_jobs(folder)
    assert Counter(event["job"] for event in found["events"] if event["what"] == "ends") == Counter(names)
    for name in names:
        directory = JobDirectory(folder / "jobs" / name)
        assert directory.losses() == pytest.approx(undisturbed, rel=1e-5)
        check_done_again(directory, most_times=0)
        # Had it run twice, the second one would have found the lock taken, and said so.
        logs = [
            log.read_text() for log in directory.logs.glob("*.log") if log.name in ("node.log", "slurm.log")
        ]
        assert logs
        assert not any("runs already" in log for log in logs)
    return back_s
