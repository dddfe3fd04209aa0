"""Daemons and jobs that are killed at any moment, with real trainings on this machine."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from daemons import TRAINING, kill_jobs, serving, start

from trainyard.fleet.run.drive import Patience, run_fleet
from trainyard.fleet.run.home import JobHome
from trainyard.fleet.run.local import LocalEngine
from trainyard.fleet.setting import setting_of
from trainyard.fleet.site import Site
from trainyard.fleet.workload.training import Training, training_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NUM_KILLS = 10
STEPS = 60


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of the training, alone."""
    site = Site.parse("1x1xlocal")
    engine = LocalEngine(site, tmp_path_factory.mktemp("alone"))
    job = training_job("alone", 0.0, 1, Training("gpt-tiny", 4, STEPS))
    run_fleet([job], site, setting_of("fifo").policy, engine, patience=Patience(limit_s=300))
    return engine.home("alone").losses()


def form(name: str, num_devices: int = 1) -> dict[str, object]:
    return {"name": name, **TRAINING, "num_devices": num_devices, "steps": STEPS}


def test_a_daemon_that_is_killed_loses_nothing(tmp_path: Path, undisturbed: dict[int, float]) -> None:
    """Ten times at random moments, while jobs come, start, run, are preempted and end."""
    folder, chance, back_s = tmp_path / "fleet", random.Random(1), []
    options = ("--cluster", "1x2xlocal", "--policy", "srtf")
    coming = [form("wide", 2), form("first"), form("second"), form("third", 2)]
    names = [str(each["name"]) for each in coming]
    daemon = start(folder, *options)
    try:
        for _ in range(NUM_KILLS):
            for each in coming[:1]:
                assert daemon.ask("POST", "/jobs", coming.pop(0) and each)[0] == 201
            time.sleep(chance.uniform(0.0, 8.0))
            daemon.kill()
            began_s = time.monotonic()
            daemon = start(folder, *options)
            assert daemon.ask("GET", "/healthz") == (200, "ok\n")
            back_s.append(time.monotonic() - began_s)
        for name in names:
            assert daemon.wait(name, "ended failed")["state"] == "ended"
        _, found = daemon.ask("GET", "/events?last=10000")
    finally:
        daemon.kill()
        kill_jobs(folder)
    print(f"\nafter kill -9 the daemon answered again after {min(back_s):.1f} to {max(back_s):.1f} s")
    assert Counter(event["job"] for event in found["events"] if event["what"] == "ends") == Counter(names)
    for name in names:
        home = JobHome(folder / "jobs" / name)
        assert home.losses() == pytest.approx(undisturbed, rel=1e-5)
        # Had it run twice, the second one would have found the lock taken, and said so.
        assert "runs already" not in (home.logs / "node.log").read_text()


@pytest.mark.parametrize("whom", ["its group", "its node process", "one of its ranks"])
def test_a_job_that_is_killed_goes_on_under_the_daemon(
    whom: str, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    with serving(tmp_path / "fleet", "--cluster", "1x2xlocal", "--policy", "fifo") as daemon:
        assert daemon.ask("POST", "/jobs", form("a", 2))[0] == 201
        daemon.wait("a", "running", steps=7)
        home = JobHome(daemon.folder / "jobs" / "a")
        (group,) = home.groups()
        if whom == "its group":
            os.killpg(group, signal.SIGKILL)
        elif whom == "its node process":
            os.kill(group, signal.SIGKILL)  # it leads the group
        else:
            children = Path(f"/proc/{group}/task/{group}/children").read_text().split()
            os.kill(int(children[0]), signal.SIGKILL)
        assert daemon.wait("a", "ended failed")["state"] == "ended"
        _, found = daemon.ask("GET", "/events")
        said = [event["what"] for event in reversed(found["events"])]
        assert said == ["arrives", "runs", "fails", "runs", "ends"]
        assert home.losses() == pytest.approx(undisturbed, rel=1e-5)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_daemon_that_is_stopped_leaves_its_jobs_running(how: int, tmp_path: Path) -> None:
    folder, options = tmp_path / "fleet", ("--cluster", "1x1xlocal")
    with serving(folder, *options) as daemon:
        assert daemon.ask("POST", "/jobs", form("a") | {"steps": 1_000_000})[0] == 201
        daemon.wait("a", "running", steps=1)
        groups = JobHome(folder / "jobs" / "a").groups()
        daemon.process.send_signal(how)
        daemon.process.wait(timeout=120)
        assert JobHome(folder / "jobs" / "a").groups() == groups
        with serving(folder, *options) as again:
            _, known = again.ask("GET", "/jobs/a")
            again.wait("a", "running", steps=known["steps_done"] + 1)
            _, found = again.ask("GET", "/events")
            assert [event["what"] for event in found["events"]] == ["stays", "runs", "arrives"]
            assert JobHome(folder / "jobs" / "a").groups() == groups
