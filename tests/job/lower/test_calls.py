"""What a rank knows to have arrived, from what it receives."""

from __future__ import annotations

import pytest
from exactness import Cell, _plan_of, task_of

from trainyard.job.lower.calls import Call
from trainyard.job.lower.lower import lower


def calls_of(schedule: str, per_rank: int = 1) -> tuple[tuple[Call, ...], ...]:
    cell = Cell("gpt-tiny", pipeline=2, schedule=schedule, per_rank=per_rank, microbatches=8)
    plan = _plan_of(cell)
    return lower(task_of(cell.model, cell.rows, cell.dtype).program(plan.rows_per_microbatch), plan).calls


def most_held(calls: tuple[Call, ...]) -> int:
    """The most deliveries that have been sent and are not known to have arrived."""
    held, most = 0, 0
    for call in calls:
        held += len(call.sends) - len(call.arrived)
        most = max(most, held)
    return most


def test_an_answer_says_that_what_it_answers_has_arrived() -> None:
    first, second = calls_of("one_f_one_b")
    # The gradient of a microbatch says that its output has arrived: as many are held as are in flight.
    assert most_held(first) == 2 * len(first[0].sends)
    assert most_held(second) == 2 * len(second[1].sends)


def test_what_nobody_has_answered_is_held() -> None:
    first, _ = calls_of("gpipe")
    num_sent = sum(len(call.sends) for call in first)
    assert most_held(first) == num_sent
    backward = next(call for call in first if call.action.kind == "B")
    assert len(backward.arrived) == num_sent


@pytest.mark.parametrize(("schedule", "per_rank"), [("gpipe", 1), ("one_f_one_b", 1), ("zb_v", 2)])
def test_only_what_was_sent_before_and_taken_before_the_answer_has_arrived(
    schedule: str, per_rank: int
) -> None:
    calls = calls_of(schedule, per_rank)
    taken = {d: i for of in calls for i, call in enumerate(of) for d in call.receives}
    sent = {d: i for of in calls for i, call in enumerate(of) for d in call.sends}
    assert any(call.arrived for own in calls for call in own)
    for own in calls:
        known = [d for call in own for d in call.arrived]
        assert len(known) == len(set(known))
        for i, call in enumerate(own):
            for delivery in call.arrived:
                assert sent[delivery] < i
                assert taken[delivery] <= max(sent[d] for d in call.receives)
