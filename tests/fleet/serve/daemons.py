"""A daemon in a process of its own, asked over HTTP; and what is left of it cleaned away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.fleet.run.home import JobHome

PATIENCE_S = 600.0
TRAINING = {"num_devices": 1, "model": "gpt-tiny", "batch_size": 4}


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
            _, job = self.ask("GET", f"/jobs/{name}", token=token)
            if job["state"] in what.split() and job["steps_done"] >= steps:
                return job
            assert time.monotonic() < limit_s, f"waited for {what}: {job}"
            time.sleep(0.1)

    def kill(self) -> None:
        """As a crash does."""
        self.process.kill()
        self.process.wait()


def start(folder: Path, *options: str) -> Running:
    """Start a daemon and wait until it answers."""
    command = [
        sys.executable,
        "-m",
        "trainyard.cli.main",
        "fleet",
        "serve",
        "--folder",
        str(folder),
        "--port",
        "0",
    ]
    with (folder.parent / "daemon.log").open("a+") as log:
        at = log.seek(0, os.SEEK_END)
        process = subprocess.Popen([*command, *options], stderr=log, text=True)
        while True:
            log.seek(at)
            said = log.read()
            if "serving on " in said:
                return Running(process, said.partition("serving on ")[2].partition(";")[0], folder)
            assert process.poll() is None, said
            time.sleep(0.02)


def kill_jobs(folder: Path) -> None:
    """End all jobs of a folder at once."""
    for home in (folder / "jobs").glob("*"):
        for group in JobHome(home).groups():
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Running]:
    """A daemon that is killed in the end, with its jobs."""
    daemon = start(folder, *options)
    try:
        yield daemon
    finally:
        daemon.kill()
        kill_jobs(folder)
