"""What the papers claim of their schedules, in the exact time and memory of a dry run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.job.schedule import Action, parse_schedule
from trainyard.job.schedules import dry_run, make_schedule

RANKS = st.integers(1, 8)
MICROBATCHES = st.integers(1, 16)
# Whole numbers add without rounding, so that formulas hold exactly.
SECONDS = st.integers(1, 9).map(float)
EQUAL_PARTS = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}


@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b"])
@given(p=RANKS, m=MICROBATCHES, f=SECONDS, b=SECONDS)
def test_bubble_of_gpipe_and_1f1b(name: str, p: int, m: int, f: float, b: float) -> None:
    run = dry_run(make_schedule(name, p, m), {"F": f, "B": b})
    assert run.busy_s == (m * (f + b),) * p
    assert run.makespan_s - m * (f + b) == (p - 1) * (f + b)
    assert run.bubble_fraction == pytest.approx([(p - 1) / (m + p - 1)] * p)


@given(p=RANKS, groups=st.integers(1, 4), v=st.integers(1, 3), f=SECONDS, b=SECONDS)
def test_bubble_of_interleaved_is_a_share_1_over_v(p: int, groups: int, v: int, f: float, b: float) -> None:
    m = groups * p
    # A rank's layers are cut into v stages of f and b seconds each.
    run = dry_run(make_schedule("interleaved", p, m, v), {"F": f, "B": b})
    ideal_s = m * v * (f + b)
    assert (run.makespan_s - ideal_s) / ideal_s == pytest.approx((p - 1) / (v * m))


@given(p=RANKS, extra=st.integers(0, 8), v=st.integers(1, 3), f=SECONDS, b=SECONDS)
def test_bubble_of_breadth_first(p: int, extra: int, v: int, f: float, b: float) -> None:
    m = p + extra
    run = dry_run(make_schedule("breadth_first", p, m, v), {"F": f, "B": b})
    assert run.makespan_s == (m * v + p - 1) * (f + b)


@given(p=RANKS, m=MICROBATCHES)
def test_microbatches_held_by_gpipe_and_1f1b(p: int, m: int) -> None:
    assert dry_run(make_schedule("gpipe", p, m), EQUAL_PARTS).peak_in_flight == (m,) * p
    held = dry_run(make_schedule("one_f_one_b", p, m), EQUAL_PARTS).peak_in_flight
    assert held == tuple(min(m, p - rank) for rank in range(p))


@given(p=RANKS, m=MICROBATCHES)
def test_zb_h1_is_faster_than_1f1b_in_its_memory(p: int, m: int) -> None:
    base = dry_run(make_schedule("one_f_one_b", p, m), EQUAL_PARTS)
    split = dry_run(make_schedule("zero_bubble_h1", p, m), EQUAL_PARTS)
    assert max(split.peak_in_flight) <= max(base.peak_in_flight)
    # Rank by rank, what is held in full is that of 1F1B; on later ranks some of it waits for W.
    assert split.peak_awaiting_backward == base.peak_in_flight
    if p > 1:
        assert split.makespan_s < base.makespan_s
    if m >= p:
        assert split.makespan_s == 3 * m + (p - 1)
        assert split.peak_in_flight == (p,) * p


@given(p=RANKS, extra=st.integers(0, 12))
def test_zb_h2_has_no_bubble_for_twice_the_memory(p: int, extra: int) -> None:
    run = dry_run(make_schedule("zero_bubble_h2", p, 2 * p - 1 + extra), EQUAL_PARTS)
    assert run.idle_s == (0.0,) * p
    assert [starts[0] for starts in run.start_s] == list(range(p))
    assert run.peak_in_flight == (2 * p - 1,) * p


@given(p=RANKS, extra=st.integers(0, 12))
def test_zb_v_has_no_bubble_in_the_memory_of_1f1b(p: int, extra: int) -> None:
    m = 2 * p - 1 + extra
    run = dry_run(make_schedule("zb_v", p, m, 2), EQUAL_PARTS)
    assert run.idle_s == (0.0,) * p
    # A stage is half as large as one of 1F1B, which holds p.
    assert max(run.peak_in_flight) / 2 <= p


def test_1f1b_in_full() -> None:
    assert make_schedule("one_f_one_b", 3, 4).to_text() == (
        "one_f_one_b stages=3 microbatches=4\n"
        "0: 0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3\n"
        "1: 1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3\n"
        "2: 2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3\n"
    )


def test_dry_run_by_hand_with_sends() -> None:
    schedule = parse_schedule("x stages=2 microbatches=2\n0: 0F0 0F1 0B0 0B1\n1: 1F0 1B0 1F1 1B1")
    run = dry_run(schedule, {"F": 1.0, "B": 2.0}, send_s=0.5)
    assert run.start_s == ((0.0, 1.0, 5.0, 8.0), (1.5, 2.5, 4.5, 5.5))
    assert run.end_s == ((1.0, 2.0, 7.0, 10.0), (2.5, 4.5, 5.5, 7.5))
    assert run.makespan_s == 10.0
    assert run.busy_s == (6.0, 6.0)
    assert run.idle_s == (4.0, 0.0)
    assert run.bubble_fraction == pytest.approx((0.4, 0.4))
    assert run.peak_in_flight == run.peak_awaiting_backward == (2, 1)


def test_sends_within_a_rank_are_free() -> None:
    run = dry_run(make_schedule("interleaved", 1, 2, 3), EQUAL_PARTS, send_s=100.0)
    assert run.makespan_s == 18.0


@given(
    name=st.sampled_from(["gpipe", "one_f_one_b", "zero_bubble_h1", "zero_bubble_h2"]),
    p=RANKS,
    m=MICROBATCHES,
    send_s=SECONDS,
    data=st.data(),
)
def test_every_start_is_the_latest_of_its_causes(
    name: str, p: int, m: int, send_s: float, data: st.DataObject
) -> None:
    schedule = make_schedule(name, p, m)
    durations = {a: data.draw(SECONDS) for actions in schedule.actions[:1] for a in actions}

    def seconds(action: Action) -> float:
        return durations.get(action, 3.0)

    run = dry_run(schedule, seconds, send_s)
    end_s = {
        a: e
        for row, ends in zip(schedule.actions, run.end_s, strict=True)
        for a, e in zip(row, ends, strict=True)
    }
    for actions, starts in zip(schedule.actions, run.start_s, strict=True):
        free_s = 0.0
        for action, start_s in zip(actions, starts, strict=True):
            s, k = action.stage, action.microbatch
            causes = [free_s]
            if action.kind == "F" and s > 0:
                causes.append(end_s[Action("F", s - 1, k)] + send_s)
            if action.kind in "BI":
                causes.append(end_s[Action("F", s, k)])
                if s + 1 < p:
                    causes.append(end_s[Action(action.kind, s + 1, k)] + send_s)
            if action.kind == "W":
                causes.append(end_s[Action("I", s, k)])
            assert start_s == max(causes)
            free_s = start_s + seconds(action)


def test_durations_are_refused_with_what_was_given() -> None:
    schedule = make_schedule("zero_bubble_h1", 2, 2)
    with pytest.raises(ValueError, match=r"kind 'I'.* only for \['B', 'F'\]"):
        dry_run(schedule, {"F": 1.0, "B": 2.0})
    with pytest.raises(ValueError, match=r"got -1"):
        dry_run(schedule, {"F": 1.0, "I": -1.0, "W": 1.0})
    with pytest.raises(ValueError, match=r"0F0 .*got nan"):
        dry_run(schedule, lambda action: float("nan"))
    with pytest.raises(ValueError, match=r"a send .*got inf"):
        dry_run(schedule, EQUAL_PARTS, send_s=float("inf"))
    assert dry_run(schedule, lambda action: 0.0).bubble_fraction == (0.0, 0.0)
