"""Daemons and jobs that are killed at any moment, with real trainings on this machine."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from checkpoints_kept import Seen, check_done_again
from daemons import check_kills, form, has_pytorch, kill_job, serving, wait_for_steps

from trainyard.fleet.run.job_directory import JobDirectory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


ROUNDS = "gandiva(quantum_s=8.0)"  # a slow machine takes seconds to start a job; slices must leave some to train in


@pytest.mark.parametrize(
    ("policy", "num_kills"),
    [
        pytest.param(ROUNDS, 4, id="rounds", marks=pytest.mark.long),
        pytest.param(ROUNDS, 10, id="rounds, often", marks=pytest.mark.long),
        pytest.param("srtf", 10, id="srtf, often", marks=pytest.mark.long),
    ],
)
def test_a_daemon_that_is_killed_loses_nothing(
    policy: str, num_kills: int, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    options = ("--cluster", "1x2xlocal", "--policy", policy)
    back_s = check_kills(tmp_path / "fleet", undisturbed, options, num_kills)
    print(f"\nafter kill -9 the daemon was back after {min(back_s):.1f} to {max(back_s):.1f} s")


def test_a_daemon_whose_state_is_in_postgresql_loses_nothing(
    postgres: str, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    options = ("--cluster", "1x2xlocal", "--policy", "srtf", "--state", postgres)
    back_s = check_kills(tmp_path / "fleet", undisturbed, options, num_kills=2)
    print(f"\nafter kill -9 the daemon was back after {min(back_s):.1f} to {max(back_s):.1f} s")
    assert not list((tmp_path / "fleet").glob("*.sqlite"))


def test_a_daemon_that_is_back_finds_its_jobs_without_pytorch(tmp_path: Path) -> None:
    options = ("--cluster", "1x2xlocal", "--policy", "fifo")
    with serving(tmp_path / "fleet", *options) as daemon:
        long = form("a") | {"steps": 1_000_000, "strategies": "data_parallel"}
        assert daemon.ask("POST", "/jobs", long)[0] == 201
        assert not has_pytorch(daemon.process.pid)  # another process made a plan for it
        steps = daemon.wait("a", "running", steps=1)["steps_done"]
        daemon.kill()
        killed_s = time.time()
        with serving(daemon.folder, *options) as again:
            again.wait_for_news({"a"}, killed_s)
            again.wait("a", "running", steps=steps + 1)
            assert not has_pytorch(again.process.pid)


@pytest.mark.parametrize(
    "whom",
    [
        "its group",
        *(pytest.param(w, marks=pytest.mark.long) for w in ("one of its ranks", "its node process")),
    ],
)
def test_a_job_that_is_killed_goes_on_under_the_daemon(
    whom: str, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    with serving(tmp_path / "fleet", "--cluster", "1x2xlocal", "--policy", "fifo") as daemon:
        assert daemon.ask("POST", "/jobs", form("a", 2))[0] == 201
        directory = JobDirectory(daemon.folder / "jobs" / "a")
        wait_for_steps(directory, 7)
        assert kill_job(directory, whom)
        assert daemon.wait("a", "ended failed")["state"] == "ended"
        _, found = daemon.ask("GET", "/events")
        said = [event["what"] for event in reversed(found["events"])]
        assert said == ["arrives", "runs", "fails", "runs", "ends"]
        assert directory.losses() == pytest.approx(undisturbed, rel=1e-5)
        check_done_again(directory, most_times=1)


@pytest.mark.long
@pytest.mark.parametrize("whom", ["one of its ranks", "its node process"])
def test_jobs_that_are_killed_ten_times_lose_nothing(
    whom: str, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    """At random moments, of jobs that start, run, write checkpoints and end; a new one comes when the last has ended."""
    chance, names, seen, num_kills = random.Random(2), list[str](), list[Seen](), 0
    with serving(tmp_path / "fleet", "--cluster", "1x2xlocal", "--policy", "fifo") as daemon:
        while num_kills < 10:
            names.append(f"job{len(names)}")
            assert daemon.ask("POST", "/jobs", form(names[-1], 2))[0] == 201
            directory = JobDirectory(daemon.folder / "jobs" / names[-1])
            while (
                num_kills < 10 and (state := daemon.ask("GET", f"/jobs/{names[-1]}")[1]["state"]) != "ended"
            ):
                assert state != "failed"
                time.sleep(chance.uniform(0.0, 5.0))
                seen.append(Seen.now(directory))
                num_kills += kill_job(directory, whom)
        for name in names:
            assert daemon.wait(name, "ended failed")["state"] == "ended"
            directory = JobDirectory(daemon.folder / "jobs" / name)
            assert directory.losses() == pytest.approx(undisturbed, rel=1e-5)
            check_done_again(directory, num_kills)
        for each in seen:
            each.check()
        _, found = daemon.ask("GET", "/events?last=10000")
        assert Counter(event["job"] for event in found["events"] if event["what"] == "ends") == Counter(names)


@pytest.mark.parametrize("how", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_a_daemon_that_is_stopped_leaves_its_jobs_running(how: int, tmp_path: Path) -> None:
    folder, options = tmp_path / "fleet", ("--cluster", "1x1xlocal")
    with serving(folder, *options) as daemon:
        assert daemon.ask("POST", "/jobs", form("a") | {"steps": 1_000_000})[0] == 201
        daemon.wait("a", "running", steps=1)
        groups = JobDirectory(folder / "jobs" / "a").groups()
        daemon.process.send_signal(how)
        assert daemon.process.wait(timeout=600) == 0
        assert (tmp_path / "daemon.log").read_text().splitlines()[-1].startswith("no more is scheduled; jobs")
        assert JobDirectory(folder / "jobs" / "a").groups() == groups
        with serving(folder, *options) as again:
            _, known = again.ask("GET", "/jobs/a")
            again.wait("a", "running", steps=known["steps_done"] + 1)
            _, found = again.ask("GET", "/events")
            assert [event["what"] for event in found["events"]] == ["stays", "runs", "arrives"]
            assert JobDirectory(folder / "jobs" / "a").groups() == groups
