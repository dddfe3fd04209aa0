"""A run whose steps wait for data says so once, with the seconds of a step."""

from __future__ import annotations

import pytest

from trainyard.job.run.config import StepMetrics
from trainyard.job.run.data_waits import DataWaits


def notes(data_s: float, step_s: float, num_steps: int, first_s: float) -> list[str]:
    waits, found = DataWaits(), []
    for step in range(num_steps):
        own_s = first_s if step < 3 else data_s
        found.append(
            waits.note(StepMetrics(step, {}, 0.0, step_s, 1.0, 0.0, (1,), (1,), False, data_s=own_s))
        )
    return found


def test_a_slow_loader_is_told_once() -> None:
    said = notes(0.3, 1.0, 40, first_s=0.0)
    (note,) = filter(None, said)
    assert said.index(note) == 12
    assert "a step waits 0.3 s for its batch, of 1 s" in note


@pytest.mark.parametrize(("data_s", "step_s"), [(0.1, 1.0), (0.0009, 0.001)], ids=["small part", "short"])
def test_a_loader_that_keeps_up_is_not(data_s: float, step_s: float) -> None:
    assert not any(notes(data_s, step_s, 40, first_s=step_s))
