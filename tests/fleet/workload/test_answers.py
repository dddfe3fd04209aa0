"""What level 1 is asked is asked once, and a process that answers has bounded time and memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from trainyard.fleet.site import FleetError
from trainyard.fleet.workload import answers
from trainyard.fleet.workload.answers import LimitedAnswers, answer, answer_by
from trainyard.fleet.workload.training import Training


@pytest.fixture
def asked() -> Iterator[list[Any]]:
    """What is asked, of somebody who knows little."""
    heard: list[Any] = []

    def know(question: str, about: tuple[Any, ...]) -> Any:
        heard.append((question, *about))
        if question == "why":
            raise FleetError("nobody knows")
        return len(heard)

    answer_by(know)
    yield heard
    answer_by(answers._here)


def test_equal_questions_are_asked_once(asked: list[Any]) -> None:
    assert [answer("what", 1), answer("what", 2), answer("what", 1)] == [1, 2, 1]
    for _ in range(2):
        with pytest.raises(FleetError, match="nobody knows"):
            answer("why")
    assert asked == [("what", 1), ("what", 2), ("why",)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "said"),
    [({"limit_s": 0.0}, "takes more than 0 s"), ({"memory_bytes": 1 << 26}, r"takes more than 0\.0625 GiB")],
    ids=["time", "memory"],
)
def test_a_process_that_needs_too_much_is_ended_and_the_next_one_answers(limits: Any, said: str) -> None:
    limited = LimitedAnswers(**limits)
    with pytest.raises(FleetError, match=said):
        limited("plan_problem", (Training("gpt-tiny", 4, 1), "1x1xT4"))
    limited.limit_s, limited.memory_bytes = 300.0, 1 << 32
    limited._end()
    assert 0 < limited("skew", ("gpt-tiny",)) < 1
    with pytest.raises(FleetError, match="no-such-model"):
        limited("skew", ("no-such-model",))
    limited._end()
