"""Schedules with updates: what `check` refuses, and the versions of the weights that follow from the actions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.job.schedule import ScheduleError, parse_action, parse_schedule
from trainyard.job.schedules import (
    check,
    dry_run,
    explain_versions,
    make_schedule,
    num_versions,
    staleness,
    weight_uses,
)

TWO_IN_TURN = """two stages=2 microbatches=2
0: 0F0 0F1 0B0 0U 0B1 0U
1: 1F0 1B0 1U
2: 1F1 1B1 1U
"""


@given(st.integers(1, 6), st.integers(0, 9))
def test_pipedream_holds_a_version_for_each_microbatch_in_flight(p: int, extra: int) -> None:
    """Section 3.3 of the paper: the first of n stages has n versions, and its gradients are n - 1 updates old."""
    schedule = make_schedule("pipedream", p, 2 * p - 1 + extra)
    for stage in range(p):
        assert num_versions(schedule, stage, stage) == p - stage
        assert staleness(schedule, stage) == p - stage - 1


def test_pipedream_in_full() -> None:
    schedule = make_schedule("pipedream", 2, 3)
    assert schedule.to_text().splitlines()[1:] == [
        "0: 0F0 0F1 0B0 0U 0F2 0B1 0U 0B2 0U",
        "1: 1F0 1B0 1U 1F1 1B1 1U 1F2 1B2 1U",
    ]
    assert [use.version for use in weight_uses(schedule)[0]] == [0, 0, 0, 0, 1, 0, 1, 1, 2]
    assert explain_versions(schedule) == (
        "A step is a period of several updates, each by the mean gradient of the microbatches since the one before. A "
        "microbatch uses the same version of the weights in both passes.\n"
        "Stage 0: 3 updates, by gradients of weights up to 1 update old, of which 2 versions are kept.\n"
        "Stage 1: 3 updates, by gradients of the newest weights."
    )


def test_a_flush_before_every_update_leaves_one_version() -> None:
    schedule = parse_schedule("x stages=1 microbatches=4\n0: 0F0 0F1 0B0 0B1 0U 0F2 0B2 0F3 0B3 0U")
    check(schedule)
    assert (num_versions(schedule, 0, 0), staleness(schedule, 0)) == (1, 0)
    assert [use.num_applied for use in weight_uses(schedule)[0]] == [2] * 10


def test_ranks_of_a_stage_share_its_microbatches() -> None:
    schedule = parse_schedule(TWO_IN_TURN)
    check(schedule)
    assert schedule.ranks_of(1) == (1, 2)
    assert [schedule.rank_of(1, k) for k in (0, 1)] == [1, 2]
    assert [use.num_applied for use in weight_uses(schedule)[1]] == [2, 2, 2]
    assert [use.num_own for use in weight_uses(schedule)[1]] == [1, 1, 1]
    # The first waits with its update for the second, whose backward pass ends 3 s after the output came at 2 s.
    run = dry_run(schedule, {"F": 1.0, "B": 2.0, "U": 0.5})
    assert run.start_s[1][-1] == run.start_s[2][-1] == 5.0
    with pytest.raises(ValueError, match="no rank runs microbatch 7 in stage 1"):
        schedule.rank_of(1, 7)


@pytest.mark.parametrize(
    ("lines", "fault", "why"),
    [
        ("0: 0F0 0B0 0U 0F1 0B1", "0B1", "no update of stage 0 follows on rank 0"),
        ("0: 0F0 0U 0B0 0F1 0B1 0U", "0U", "without a backward pass of stage 0 before it"),
        ("0: 0F0 0B0 0U 0U 0F1 0B1 0U", "0U", "without a backward pass"),
        ("0: 0F0 0F1 0I0 0W0 0I1 0U 0W1 0U", "0U", "between 0I1 and 0W1"),
        ("0: 0F0 0B0 0U 0F1 0B1 0U\n1: 0F1", "0F1", "twice on rank 1"),
        ("0: 0F0 0B0 0U 0F1\n1: 0B1 0U", "0B1", "on rank 1, but 0F1 is on rank 0"),
        ("0: 0F0 0B0 0F1 0B1", None, ""),
        ("0: 0F0 0B0\n1: 0F1 0B1", "0F1", "on rank 1, but stage 0 is on rank 0"),
        ("0: 0F0 0B0 0U\n1: 0F1 0B1 0U", None, ""),
    ],
)
def test_faults_are_named(lines: str, fault: str | None, why: str) -> None:
    schedule = parse_schedule(f"x stages=1 microbatches=2\n{lines}")
    if not why:
        check(schedule)
        return
    with pytest.raises(ScheduleError, match=why) as error:
        check(schedule)
    assert error.value.action == (parse_action(fault) if fault else None)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (
            "0: 0F0 0F1 0B0 0U 0B1 0U 1F1 1B1 1U\n1: 1F0 1B0 1U",
            "rank 0 has stages 1 and 0, and stage 1 is on ranks 0, 1",
        ),
        (
            "0: 0F0 0F1 0F2 0B0 0U 0B1 0U 0B2 0U\n1: 1F0 1B0 1U 1F2 1B2 1U\n2: 1F1 1B1 1U",
            "2 times on rank 1 and 1 times on rank 2",
        ),
    ],
)
def test_ranks_that_cannot_share_a_stage_are_refused(lines: str, why: str) -> None:
    num = 3 if "0F2" in lines else 2
    with pytest.raises(ScheduleError, match=why):
        check(parse_schedule(f"x stages=2 microbatches={num}\n{lines}"))


def test_a_joint_update_that_never_comes_is_named() -> None:
    """One rank of stage 1 updates before the other has what it needs, which waits for that update."""
    text = "x stages=2 microbatches=4\n0: {}\n1: 1F0 1B0 1U 1F2 1B2 1U\n2: 1F1 1B1 1U 1F3 1B3 1U"
    check(parse_schedule(text.format("0F0 0F1 0F2 0F3 0B0 0U 0B1 0U 0B2 0U 0B3 0U")))
    late = text.format("0F0 0B0 0U 0F2 0B2 0U 0F1 0B1 0U 0F3 0B3 0U")
    with pytest.raises(ScheduleError, match="rank 1 at 1U for 1U of other ranks"):
        check(parse_schedule(late))
