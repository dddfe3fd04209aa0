"""When a job that keeps failing is given up, and what counts as its own failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.fleet.run.backend import Progress
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.patience import Failures, Patience
from trainyard.fleet.workload.training import Training

BUG, KILL = Progress(4, failure="ValueError: no"), Progress(4, failure="its processes are gone", killed=True)


def test_waits_get_longer_until_a_failing_job_is_given_up() -> None:
    failures, waits_s, given_up = Failures(), [], False
    while not given_up:
        given_up = failures.note(BUG, 100.0, Patience())
        waits_s.append(failures.retry_s - 100.0)
    assert waits_s == [0.0, 5.0, 20.0, 80.0, 320.0]


def test_a_job_that_is_killed_has_other_limits() -> None:
    failures, waits_s = Failures(), []
    for _ in range(20):
        assert not failures.note(KILL, 100.0, Patience())
        waits_s.append(failures.retry_s - 100.0)
    assert waits_s == [0.0] + 19 * [5.0]
    assert failures.note(KILL, 100.0, Patience())


def test_a_new_checkpoint_makes_failures_forgotten() -> None:
    failures, patience = Failures(), Patience(max_failures=1, max_kills=1)
    for steps in range(4, 40, 4):
        assert not failures.note(Progress(steps, failure="no"), 100.0, patience)
        assert failures.retry_s == 100.0
    assert failures.note(Progress(36, failure="no"), 100.0, patience)


@pytest.mark.parametrize("first", ["the kill", "what follows from it"])
def test_what_follows_from_a_kill_is_no_failure_of_the_job(first: str, tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "a")
    directory.set_up(Training("gpt-tiny", 4, 8))
    notes = [("rank 1 was ended by SIGKILL", True), ("RuntimeError: connection closed by peer", False)]
    for why, killed in notes if first == "the kill" else notes[::-1]:
        directory.fail(why, killed=killed)
    progress = directory.progress(is_over=True)
    assert (progress.failure, progress.killed) == ("rank 1 was ended by SIGKILL", True)
    directory.allow()
    directory.fail("ValueError: no")
    assert not directory.progress(is_over=True).killed


def test_what_would_happen_again_is_not_tried_again(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "a")
    directory.set_up(Training("gpt-tiny", 4, 8))
    directory.fail("rank 1 was ended by SIGKILL", killed=True)
    directory.fail("step 3 is not finite", repeats=True)
    progress = directory.progress(is_over=True)
    assert (progress.failure, progress.killed, progress.repeats) == ("step 3 is not finite", False, True)
    assert Failures().note(progress, 100.0, Patience())
    directory.allow()
    assert not directory.progress(is_over=True).repeats


def test_the_first_reason_stays_also_where_two_nodes_say_one_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = JobDirectory(tmp_path / "a")
    directory.set_up(Training("gpt-tiny", 4, 8))
    monkeypatch.setattr(Path, "exists", lambda _: False)  # neither sees what the other is about to write
    directory.fail("first")
    directory.fail("second")
    monkeypatch.undo()
    assert directory.progress(is_over=True).failure == "first"
