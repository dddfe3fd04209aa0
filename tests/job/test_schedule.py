"""Schedules as values: text, structure, and what `check` refuses."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.job.schedule import PASSES, Action, Schedule, ScheduleError, parse_action, parse_schedule
from trainyard.job.schedules import SCHEDULES, check, dry_run, make_schedule

STAGES_PER_RANK = {"interleaved": (1, 2, 3), "breadth_first": (1, 2, 3), "zb_v": (2,)}


@st.composite
def schedules(draw: st.DrawFn, with_updates: bool = False) -> Schedule:
    name = draw(st.sampled_from(sorted(SCHEDULES if with_updates else set(SCHEDULES) - {"pipedream"})))
    p = draw(st.integers(1, 8))
    m = draw(st.sampled_from(range(p, 17, p)) if name == "interleaved" else st.integers(1, 16))
    return make_schedule(name, p, m, draw(st.sampled_from(STAGES_PER_RANK.get(name, (1,)))))


def with_rank(schedule: Schedule, rank: int, actions: list[Action]) -> Schedule:
    lists = list(schedule.actions)
    lists[rank] = tuple(actions)
    return dataclasses.replace(schedule, actions=tuple(lists))


@given(
    st.builds(Action, st.sampled_from(PASSES), st.integers(0, 999), st.integers(0, 999))
    | st.builds(Action, st.just("U"), st.integers(0, 999))
)
def test_action_round_trip(action: Action) -> None:
    assert parse_action(str(action)) == action


def test_action_text_is_stage_kind_microbatch() -> None:
    assert str(Action("F", 0, 3)) == "0F3"
    assert parse_action(" 12W7 ") == Action("W", 12, 7)
    assert str(Action("U", 3)) == "3U"


@pytest.mark.parametrize("text", ["", "F3", "0F", "0X3", "0f3", "-1F0", "0F3 1F3", "0F3x", "٠F3", "U", "0U3"])
def test_action_refuses_other_text(text: str) -> None:
    with pytest.raises(ValueError, match="is not an action"):
        parse_action(text)


def test_action_refuses_bad_fields() -> None:
    with pytest.raises(ValueError, match="known: F, B, I, W"):
        Action("G", 0, 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="count from 0"):
        Action("F", 0, -1)
    with pytest.raises(ValueError, match="an update has no microbatch"):
        Action("U", 0, 0)


@given(schedules(with_updates=True))
def test_schedule_round_trip(schedule: Schedule) -> None:
    assert parse_schedule(schedule.to_text()) == schedule
    assert len(schedule.to_text().splitlines()) == 1 + schedule.num_ranks


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "first line"),
        ("gpipe stages=1", "first line"),
        ("a b stages=1 microbatches=1\n0: 0F0", "first line"),
        ("x stages=1 microbatches=1\n1: 0F0 0B0", "line of rank 0"),
        ("x stages=1 microbatches=1\n0F0 0B0", "line of rank 0"),
        ("x stages=1 microbatches=1\n0: 0F0 0Q0", "is not an action"),
        ("x stages=1 microbatches=1\n", "at least one of its ranks"),
        ("x stages=0 microbatches=1\n0:", "at least one of its stages"),
    ],
)
def test_schedule_refuses_other_text(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_schedule(text)


@given(schedules(with_updates=True))
def test_generated_schedules_pass_and_stages_partition(schedule: Schedule) -> None:
    check(schedule)
    owned = [schedule.stages_of(rank) for rank in range(schedule.num_ranks)]
    assert sorted(stage for stages in owned for stage in stages) == list(range(schedule.num_stages))
    assert len({len(stages) for stages in owned}) == 1
    for stage in range(schedule.num_stages):
        assert schedule.ranks_of(stage) == (schedule.rank_of(stage, 0),)
        assert stage in owned[schedule.rank_of(stage, 0)]


def test_stage_placement() -> None:
    assert make_schedule("interleaved", 4, 4, 2).stages_of(1) == (1, 5)
    assert make_schedule("zb_v", 4, 4, 2).stages_of(1) == (1, 6)
    with pytest.raises(ValueError, match="ranks 0 to 3"):
        make_schedule("gpipe", 4, 4).stages_of(-1)
    with pytest.raises(ValueError, match="4 stages"):
        make_schedule("gpipe", 4, 4).rank_of(4, 0)


@given(schedules(), st.data())
def test_dropping_any_action_is_refused(schedule: Schedule, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, schedule.num_ranks - 1))
    actions = list(schedule.actions[rank])
    dropped = actions.pop(data.draw(st.integers(0, len(actions) - 1)))
    with pytest.raises(ScheduleError, match="missing") as error:
        check(with_rank(schedule, rank, actions))
    named = error.value.action
    assert named is not None
    assert (named.stage, named.microbatch) == (dropped.stage, dropped.microbatch)


@given(schedules(), st.data())
def test_repeating_any_action_is_refused(schedule: Schedule, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, schedule.num_ranks - 1))
    actions = list(schedule.actions[rank])
    again = data.draw(st.sampled_from(actions))
    actions.insert(data.draw(st.integers(0, len(actions))), again)
    with pytest.raises(ScheduleError, match="twice") as error:
        check(with_rank(schedule, rank, actions))
    assert error.value.action == again


@given(schedules(), st.data())
def test_swapping_an_action_with_one_that_needs_it_is_refused(
    schedule: Schedule, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, schedule.num_ranks - 1))
    actions = list(schedule.actions[rank])
    first = data.draw(st.sampled_from([a for a in actions if a.kind in "FI"]))
    users = "BI" if first.kind == "F" else "W"
    here = actions.index(first)
    there = next(
        i
        for i, a in enumerate(actions)
        if a.kind in users and (a.stage, a.microbatch) == (first.stage, first.microbatch)
    )
    actions[here], actions[there] = actions[there], actions[here]
    with pytest.raises(ScheduleError, match=r"runs on rank|wait for each other"):
        check(with_rank(schedule, rank, actions))


@given(schedules(), st.data())
def test_any_swap_is_refused_exactly_when_a_naive_run_blocks(schedule: Schedule, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, schedule.num_ranks - 1))
    actions = list(schedule.actions[rank])
    indices = st.integers(0, len(actions) - 1)
    i, j = data.draw(indices), data.draw(indices)
    actions[i], actions[j] = actions[j], actions[i]
    swapped = with_rank(schedule, rank, actions)
    if naive_run_ends(swapped):
        check(swapped)
    else:
        with pytest.raises(ScheduleError, match=r"runs on rank \d+ before|ranks wait for each other"):
            check(swapped)


def naive_run_ends(schedule: Schedule) -> bool:
    """Run whatever can run, over and over, by the rules as they are said in words."""
    position = [0] * schedule.num_ranks
    done: set[Action] = set()

    def can_run(action: Action) -> bool:
        s, k = action.stage, action.microbatch
        if action.kind == "F":
            return s == 0 or Action("F", s - 1, k) in done
        if action.kind == "W":
            return Action("I", s, k) in done
        is_last = s == schedule.num_stages - 1
        has_gradient = is_last or bool({Action("B", s + 1, k), Action("I", s + 1, k)} & done)
        return Action("F", s, k) in done and has_gradient

    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(schedule.actions):
            while position[rank] < len(actions) and can_run(actions[position[rank]]):
                done.add(actions[position[rank]])
                position[rank] += 1
                moved = True
    return all(position[rank] == len(actions) for rank, actions in enumerate(schedule.actions))


@pytest.mark.parametrize(
    ("lines", "fault", "why"),
    [
        ("0: 0F0 1F0 1B0", "0B0", "missing, and so are 0I0 and 0W0"),
        ("0: 0F0 1F0 1I0 1W0 0I0", "0W0", "missing, but 0I0 is there"),
        ("0: 0F0 1F0 1B0 0W0", "0I0", "missing, but 0W0 is there"),
        ("0: 0F0 1F0 1B0 0B0 0W0", "0W0", "as well as the full backward 0B0"),
        ("0: 0F0 0B0\n1: 1F0\n2: 1B0", "1B0", "on rank 2, but stage 1 is on rank 1"),
        ("0: 0F0 1F0 1B0 0B0 2F0", "2F0", "outside the schedule's 2 stages"),
        ("0: 0F0 1F0 1B0 0B0 0F1", "0F1", "outside the schedule's 2 stages and 1 microbatches"),
        ("0: 0F0 1F0 1B0 0B0\n1:", None, "rank 1 has nothing to run"),
        ("0: 0B0 0F0\n1: 1F0 1B0", "0B0", "before 0F0"),
        ("0: 0F0 0W0 0I0\n1: 1F0 1B0", "0W0", "before 0I0"),
        ("0: 1F0 0F0 1B0 0B0", "1F0", "before 0F0"),
        ("0: 0F0 0B0 1F0 1B0", "0B0", "before 1B0"),
    ],
)
def test_faults_are_named(lines: str, fault: str | None, why: str) -> None:
    with pytest.raises(ScheduleError, match=why) as error:
        check(parse_schedule(f"x stages=2 microbatches=1\n{lines}"))
    assert error.value.action == (parse_action(fault) if fault else None)


def test_a_deadlock_across_ranks_names_the_ranks() -> None:
    text = "x stages=2 microbatches=2\n0: 0F0 0B0 0F1 0B1\n1: 1F0 1F1 1B0 1B1"
    with pytest.raises(ScheduleError, match=r"rank 0 at 0B0 for 1B/I0, rank 1 at 1F1 for 0F1"):
        check(parse_schedule(text))


def test_full_and_split_backwards_may_be_mixed() -> None:
    text = "x stages=2 microbatches=2\n0: 0F0 0F1 0B0 0I1 0W1\n1: 1F0 1I0 1F1 1B1 1W0"
    check(schedule := parse_schedule(text))
    # 1I0 ends at 3, so 0B0 at 5; 1B1 from 4 to 6, so 0I1 at 7 and 0W1 at 8.
    assert dry_run(schedule, {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}).makespan_s == 8.0


def test_counts_and_names_are_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"unknown schedule '1f1b'; known: .*one_f_one_b"):
        make_schedule("1f1b", 2, 2)
    with pytest.raises(ValueError, match=r"multiple of num_ranks, got 6 .* use 4 or 8 microbatches"):
        make_schedule("interleaved", 4, 6, 2)
    with pytest.raises(ValueError, match="use 4 microbatches"):
        make_schedule("interleaved", 4, 3, 2)
    with pytest.raises(ValueError, match="got num_stages_per_rank=1; pass 2"):
        make_schedule("zb_v", 4, 8)
    for name in set(SCHEDULES) - {"interleaved", "breadth_first", "zb_v"}:
        with pytest.raises(ValueError, match="pass 1"):
            make_schedule(name, 4, 8, 2)
    for name in SCHEDULES:
        with pytest.raises(ValueError, match="num_microbatches must be at least 1, got 0"):
            make_schedule(name, 4, 0, 2)
        with pytest.raises(ValueError, match="num_ranks must be at least 1, got 0"):
            make_schedule(name, 0, 4, 2)
