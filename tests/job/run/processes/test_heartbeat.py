"""Who is stopped, and who lives and does nothing, is found out by those who watch, and by no clock but theirs."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time

import plans
import pytest
import torch.distributed as dist

from trainyard.job.run.processes.fork_server import WorkerError
from trainyard.job.run.processes.heartbeat import Heartbeats, Silence, beating
from trainyard.job.run.step.data import FunctionData
from trainyard.job.run.train import train
from trainyard.processes import ProcessState, process_state


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


WAITS = ProcessState(cpu_s=5.0, is_stopped=False, is_runnable=False)
STOPPED = WAITS._replace(is_stopped=True)
STARVED = WAITS._replace(is_runnable=True)


def test_a_watcher_that_was_away_has_seen_no_silence() -> None:
    """It was stopped itself, for an hour, and so may all others have been."""
    clock = Clock()
    heartbeats = Heartbeats([0], 60.0, 600.0, clock)
    for _ in range(3):
        assert heartbeats.problem({0: STOPPED}) is None
        clock.now_s += 3600.0


def test_a_stopped_rank_is_named() -> None:
    clock = Clock()
    heartbeats = Heartbeats([4, 5], 60.0, 600.0, clock)
    found = None
    while found is None:
        heartbeats._counts[0] += 1  # as a thread of rank 4 does
        found = heartbeats.problem({4: WAITS, 5: STOPPED})
        clock.now_s += heartbeats.look_s
    assert str(found) == "rank 5 gave no heartbeat for 61 s: its process is stopped"
    assert found.stopped
    assert heartbeats.problem({4: WAITS}) is None


def test_a_rank_that_gets_no_core_is_not_stopped() -> None:
    """It gives no heartbeat for many minutes, and uses little CPU, if any."""
    clock = Clock()
    heartbeats = Heartbeats([0], 60.0, 600.0, clock)
    for second in range(3000):
        starved = STARVED._replace(cpu_s=second // 500 / 100)
        assert heartbeats.problem({0: starved}) is None
        clock.now_s += heartbeats.look_s


def test_a_rank_that_was_stopped_for_a_moment_goes_on() -> None:
    clock = Clock()
    heartbeats = Heartbeats([0], 60.0, 600.0, clock)
    for second in range(590):
        assert heartbeats.problem({0: STOPPED if second % 59 else WAITS}) is None
        clock.now_s += heartbeats.look_s


def test_a_rank_that_gives_no_sign_at_all_is_given_up_after_ten_minutes() -> None:
    clock = Clock()
    heartbeats = Heartbeats([0], 60.0, math.inf, clock)
    while (found := heartbeats.problem({0: STARVED})) is None:
        clock.now_s += heartbeats.look_s
    assert str(found) == "rank 0 gave no heartbeat and used no CPU for 601 s: its process is stopped"
    assert found.stopped


def test_a_rank_that_lives_and_does_no_step_is_stuck() -> None:
    clock = Clock()
    heartbeats = Heartbeats([0], 60.0, 100.0, clock)

    def until_stuck() -> str:
        began_s = clock.now_s
        while (found := heartbeats.problem({0: WAITS})) is None:
            heartbeats._counts[0] += 1
            clock.now_s += heartbeats.look_s
        assert not found.stopped
        assert f"for {clock.now_s - began_s:.0f} s" in found.reason
        return str(found)

    # Until the first step is done more time may pass: it is compiled.
    assert until_stuck() == "rank 0 has done no step for 1801 s, though its process lives"
    heartbeats.stepped(0)
    assert until_stuck() == "rank 0 has done no step for 101 s, though its process lives"


def test_ranks_that_wait_for_one_that_gets_little_of_a_core_are_not_stuck() -> None:
    """It has a twentieth of one, and is stuck when it has used as much as it might alone."""
    clock = Clock()
    heartbeats = Heartbeats([0, 1], 60.0, 100.0, clock)
    for rank in (0, 1):
        heartbeats.stepped(rank)
    num_looks, found = 0, None
    while found is None:
        heartbeats._counts[0] += 1
        found = heartbeats.problem({0: WAITS, 1: STARVED._replace(cpu_s=num_looks / 20)})
        clock.now_s += heartbeats.look_s
        num_looks += 1
    assert "done no step for 10" in str(found)
    assert num_looks == pytest.approx(2000, abs=20)


def test_the_system_says_whether_a_process_is_stopped_waits_or_works() -> None:
    """A thread may work while the first one waits."""
    code = (
        "import threading, time\n"
        "def run():\n"
        "    input()\n"
        "    while True: pass\n"
        "threading.Thread(target=run, daemon=True).start()\n"
        "print(flush=True)\n"
        "time.sleep(10_000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as process:
        try:
            process.stdout.readline()
            while process_state(process.pid).is_runnable:
                time.sleep(0.01)
            assert not process_state(process.pid).is_stopped
            process.stdin.write(b"go\n")
            process.stdin.flush()
            before_s = process_state(process.pid).cpu_s
            while not (seen := process_state(process.pid)).is_runnable or seen.cpu_s <= before_s:
                time.sleep(0.01)
            process.send_signal(signal.SIGSTOP)
            while not process_state(process.pid).is_stopped:
                time.sleep(0.01)
        finally:
            process.kill()
    assert process_state(process.pid) == ProcessState(0.0, False, False)


def test_a_thread_gives_signs_while_a_process_computes() -> None:
    """Until it has done that, or failed in it."""
    beats: list[int] = []
    threads = threading.enumerate()
    with pytest.raises(KeyError, match="its own"), beating(lambda: beats.append(0), 0.01):  # noqa: PT012
        while len(beats) < 3:
            time.sleep(0.001)
        raise KeyError("its own")
    assert threading.enumerate() == threads
    after = len(beats)
    with beating(lambda: beats.append(0), 1e6):
        assert len(beats) == after + 1  # the first at once
    assert threading.enumerate() == threads
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


def _batches_with_the_lock(step):
    if step == 2:
        sum(range(2 * 10**8))  # no other thread runs meanwhile
    return {k.removeprefix("batch."): v for k, v in plans.DATA_SOURCE.batch(step).items()}


def _batches_after_a_pause(step):
    if step == 2:
        resume = "import os, signal, sys, time; time.sleep(2.0); os.kill(int(sys.argv[1]), signal.SIGCONT)"
        subprocess.Popen([sys.executable, "-c", resume, str(os.getpid())])
        os.kill(os.getpid(), signal.SIGSTOP)
    return {k.removeprefix("batch."): v for k, v in plans.DATA_SOURCE.batch(step).items()}


@pytest.mark.parametrize(
    ("batches", "heartbeat_s"), [(_batches_with_the_lock, 0.3), (_batches_after_a_pause, 60.0)]
)
def test_a_rank_that_is_silent_for_a_while_goes_on(batches, heartbeat_s: float) -> None:
    """It computes with Python's lock, or was stopped for less than the limit."""
    steps, config = [], plans.config(4, heartbeat_s=heartbeat_s)
    train(
        plans.MODEL, plans.plan(), FunctionData(batches), config, on_step=lambda done: steps.append(done.step)
    )
    assert steps == [0, 1, 2, 3]


@pytest.mark.slow
def test_the_only_rank_is_stuck() -> None:
    with pytest.raises(WorkerError, match=r"rank 0 has done no step for \d s, though its process lives"):
        train(plans.MODEL, plans.plan(), FunctionData(_endless_batches), plans.config(4, stall_s=1.0))


@pytest.mark.parametrize("name", ["heartbeat_s", "stall_s", "max_checkpoint_bytes"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_limits_are_more_than_nothing(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} is more than 0, got"):
        plans.config(1, **{name: value})
