"""A process takes no more than its part of a core."""

from __future__ import annotations

import time

import one_rank
import pytest

from trainyard.job.run.config import TrainConfig
from trainyard.job.run.step import pacing
from trainyard.job.run.step.pacing import Pacer


class Clock:
    """Time that passes as a test says, for pacing alone: of the world, and of this process on its cores."""

    def __init__(self) -> None:
        self.now_s = self.used_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def process_time(self) -> float:
        return self.used_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def compute(self, seconds: float) -> None:
        self.now_s += seconds
        self.used_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pacing, "time", clock)  # the module's name, not the module: other threads sleep, too
    return clock


def test_a_step_takes_as_long_as_on_a_slower_core(clock: Clock) -> None:
    pacer = Pacer(0.25, 1)
    for step in range(1, 4):
        clock.compute(1.0)
        pacer.rest()
        assert clock.now_s == 4.0 * step


def test_waiting_for_others_is_made_up_for(clock: Clock) -> None:
    pacer = Pacer(0.5, 1)
    clock.compute(1.0)
    clock.sleep(2.0)
    pacer.rest()
    assert clock.now_s == 3.0
    clock.compute(1.0)
    pacer.rest()
    assert clock.now_s == 4.0  # as it would be without the wait


def test_a_long_stop_is_not(clock: Clock) -> None:
    pacer = Pacer(0.5, 1)
    clock.sleep(1000.0)
    for _ in range(20):
        clock.compute(1.0)
        pacer.rest()
    assert clock.used_s == 20.0
    # Ten seconds before the end of the first step it could have ended, and the others two seconds each after that.
    assert clock.now_s == 1001.0 - 10.0 + 19 * 2.0


def test_threads_have_a_part_each(clock: Clock) -> None:
    pacer = Pacer(0.5, 4)
    clock.used_s, clock.now_s = 4.0, 1.0
    pacer.rest()
    assert clock.now_s == 2.0


def test_a_whole_core_never_rests(clock: Clock) -> None:
    pacer = Pacer(1.0, 1)
    clock.used_s, clock.now_s = 8.0, 1.0  # threads of libraries that nobody counted
    pacer.rest()
    assert clock.now_s == 1.0


def test_a_real_process_takes_its_part() -> None:
    began_s = time.perf_counter()
    pacer, used_s = Pacer(0.2, 1), time.process_time()
    for _ in range(5):
        while time.process_time() - used_s < 0.02:
            pass
        pacer.rest()
        used_s = time.process_time()
    assert time.perf_counter() - began_s >= 5 * 0.02 / 0.2


def test_a_run_rests_between_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    monkeypatch.setattr(Pacer, "rest", lambda pacer: rates.append(pacer._rate))
    one_rank.run(None, 3, core_part=0.5)
    assert len(rates) == 2


@pytest.mark.parametrize("part", [0.0, -1.0, 1.5])
def test_parts_that_are_none(part: float) -> None:
    with pytest.raises(ValueError, match=r"core_part is more than 0 and at most 1"):
        TrainConfig(1, core_part=part)
