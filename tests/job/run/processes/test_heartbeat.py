"""Who is stopped, and who lives and does nothing, is found out by those who watch, and by no clock but theirs."""

from __future__ import annotations

import os
import signal
import time

import plans
import pytest
import torch.distributed as dist

from trainyard.job.run.processes.fork_server import WorkerError
from trainyard.job.run.processes.heartbeat import Heartbeats, Silence, beating
from trainyard.job.run.step.data import FunctionData
from trainyard.job.run.train import train


class Clock:
    """Shows what it is set to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_silence_is_time_without_a_change() -> None:
    clock = Clock()
    silence = Silence[str](10.0, clock)
    assert silence.look({"a": 1, "b": 1}) == {"a": 0.0, "b": 0.0}
    clock.now_s += 6.0
    assert silence.look({"a": 1, "b": 2}) == {"a": 6.0, "b": 0.0}
    clock.now_s += 6.0
    assert silence.look({"a": 1, "b": 1, "c": 1}) == {"a": 12.0, "b": 0.0, "c": 0.0}
    clock.now_s += 6.0
    assert silence.look({"c": 1}) == {"c": 6.0}
    assert silence.look({"a": 1}) == {"a": 0.0}


def test_a_watcher_that_was_away_has_seen_no_silence() -> None:
    """It was stopped itself, for an hour, and so may all others have been."""
    clock = Clock()
    heartbeats = Heartbeats([0], 60.0, 600.0, clock)
    for _ in range(3):
        assert heartbeats.problem([0]) is None
        clock.now_s += 3600.0


def test_a_silent_rank_is_stopped() -> None:
    clock = Clock()
    heartbeats = Heartbeats([4, 5], 60.0, 600.0, clock)
    found = None
    while found is None:
        heartbeats._counts[0] += 1  # as a thread of rank 4 does
        found = heartbeats.problem([4, 5])
        clock.now_s += heartbeats.look_s
    assert str(found) == "rank 5 gave no heartbeat for 61 s: its process is stopped"
    assert found.stopped
    assert heartbeats.problem([4]) is None


def test_a_rank_that_lives_and_does_no_step_is_stuck() -> None:
    clock = Clock()
    heartbeats = Heartbeats([0], 60.0, 100.0, clock)

    def until_stuck() -> str:
        began_s = clock.now_s
        while (found := heartbeats.problem([0])) is None:
            heartbeats._counts[0] += 1
            clock.now_s += heartbeats.look_s
        assert not found.stopped
        assert f"for {clock.now_s - began_s:.0f} s" in found.reason
        return str(found)

    # Until the first step is done more time may pass: it is compiled.
    assert until_stuck() == "rank 0 has done no step for 1801 s, though its process lives"
    heartbeats.stepped(0)
    assert until_stuck() == "rank 0 has done no step for 101 s, though its process lives"


def test_a_thread_gives_signs_while_a_process_computes() -> None:
    beats: list[int] = []
    with beating(lambda: beats.append(0), 0.01):
        while len(beats) < 3:
            time.sleep(0.001)
    after = len(beats)
    time.sleep(0.02)
    assert len(beats) == after
    heartbeats = Heartbeats([0], 0.01, 1.0)
    heartbeats.alive(0)
    while heartbeats._counts[0] < 3:
        time.sleep(0.001)


def _stopping_batches(step):
    if step == 2 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return {k.removeprefix("batch."): v for k, v in plans.DATA_SOURCE.batch(step).items()}


def _endless_batches(step):
    if step == 2:
        time.sleep(10_000.0)
    return {k.removeprefix("batch."): v for k, v in plans.DATA_SOURCE.batch(step).items()}


def test_a_stopped_rank_is_named_and_ended() -> None:
    with pytest.raises(WorkerError, match=r"rank 1 gave no heartbeat for \d s: its process is stopped"):
        train(
            plans.MODEL, plans.plan(data=2), FunctionData(_stopping_batches), plans.config(4, heartbeat_s=2.0)
        )


@pytest.mark.slow
def test_the_only_rank_is_stuck() -> None:
    with pytest.raises(WorkerError, match=r"rank 0 has done no step for \d s, though its process lives"):
        train(plans.MODEL, plans.plan(), FunctionData(_endless_batches), plans.config(4, stall_s=1.0))


@pytest.mark.parametrize("name", ["heartbeat_s", "stall_s", "max_checkpoint_bytes"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_limits_are_more_than_nothing(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} is more than 0, got"):
        plans.config(1, **{name: value})
