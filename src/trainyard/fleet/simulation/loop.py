"""Events and decisions in compiled code: what `simulator.py` does, for jobs and policies that allow it.

`until_decision` goes on to the next decision. `run` makes the decisions, too: a function that a policy gives is compiled
into it. Both leave off where Python has to do something, and go on from there, also in the middle of a moment.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.compiling import compiled, lean
from trainyard.engine.agenda import drop_first, expect, next_due
from trainyard.fleet.compiled_policy import Seen
from trainyard.fleet.jobs.job_facts import waiting_rows
from trainyard.fleet.jobs.job_table import Floats, Ints, Table
from trainyard.fleet.mechanism.queue import QueueArrays, QueueRules, queue_applied
from trainyard.fleet.mechanism.transitions import FleetState, arrive, end, note_use
from trainyard.fleet.place.nodes import ANYWHERE, CONSOLIDATED
from trainyard.fleet.simulation import moments
from trainyard.fleet.simulation.moments import ARRIVAL, END

next_event, may_change = lean(moments.next_event), lean(moments.may_change)
free_while_blocked = lean(moments.free_while_blocked)

# Why the loop leaves off: all jobs that it knows of have come; none that is there can end; there is no room for more
# notes, rows, or devices that are written down; it is time to look whether anything goes on; the policy wants to decide
# again at once; a job changes its rate by itself; somebody is to decide.
COMING, STUCK, NOTES, ROWS, DEVICES, LOOK, EARLY, RATE, DECIDE = range(9)

CLOCK = np.dtype(
    [
        *((name, np.float64) for name in ("now_s", "moment_s", "wake_s")),
        *(
            (name, np.int64)
            for name in ("free_when_blocked", "stands", "num_decisions", "num_moments", "num_came")
        ),
        ("num_ends", np.int64),
    ],
    align=True,
)
"""Clock of a run: the last moment that is over; the one that is not, infinite if there is none; when the policy wants to
decide; free devices when a job blocked the later ones, or -1; whether the last decision stands, as 0 or 1; numbers of
decisions, of moments, of jobs that have come, and of ends in the agenda."""


class Tables(NamedTuple):
    """Tables that the loop reads and writes.

    Attributes
    ----------
    state : the jobs and their devices.
    when_s, heap, place : the agenda of ends.
    coming : jobs that come, a row each, as in the job table.
    came : the row that each of them got in the job table when it came.
    clock : one of `CLOCK`.
    """

    state: FleetState
    when_s: Floats
    heap: Ints
    place: Ints
    coming: Table
    came: Ints
    clock: Table


class EventRules(NamedTuple):
    """Rules for events that stay the same in a run.

    Attributes
    ----------
    preempts : whether devices may be taken from jobs that run.
    look_every : moments between two checks that the run makes progress.
    """

    preempts: bool
    look_every: int


class RunRules(NamedTuple):
    """Rules that stay the same in a run.

    Attributes
    ----------
    events : rules for what happens between decisions.
    queue : how what the policy says is brought about.
    stands, blocks : of the policy.
    """

    events: EventRules
    queue: QueueRules
    stands: bool
    blocks: bool


@compiled
def run(decide, options, policy_state, rules, is_last, tables):  # type: ignore[no-untyped-def]
    """Go on until something is to be done that only Python can do.

    Parameters
    ----------
    decide, options : of the policy; see `CompiledPolicy`.
    policy_state : of the policy.
    rules, is_last, tables : what stays as it is, as for `until_decision`, and what is worked on.

    Returns
    -------
    Why it leaves off, and the state of the policy then.
    """
    clock, state = tables.clock[0], tables.state
    while True:
        why = until_decision(rules.events, is_last, np.inf, tables)
        if why != DECIDE:
            return why, policy_state
        if state.counts[0].written + state.free[0].shape[1] > len(state.written):
            return DEVICES, policy_state
        policy_state = _decided(decide, options, policy_state, rules, tables)
        if clock.wake_s <= clock.now_s:
            return EARLY, policy_state
        if is_to_look(rules.events, clock):
            return LOOK, policy_state


@compiled
def until_decision(rules, is_last, lease_s, tables):  # type: ignore[no-untyped-def]
    """Let jobs come and end until a decision may change something.

    Parameters
    ----------
    rules : `EventRules`.
    is_last : whether no jobs come after those that are known.
    lease_s : end of the next lease; infinite without one. With a lease, every moment is a decision.

    Returns
    -------
    Why it leaves off.
    """
    clock, state = tables.clock[0], tables.state
    counts = state.counts[0]
    while True:
        if clock.num_came == len(tables.coming) and not (is_last and counts.active):
            return COMING
        next_s = min(clock.moment_s, _arrival_s(tables), _end_s(tables), clock.wake_s, lease_s)
        if next_s == np.inf:
            return STUCK
        clock.moment_s = next_s
        why = _pass_until(next_s, is_last, tables)
        if why >= 0:
            return why
        clock.now_s = next_s
        if clock.wake_s <= next_s:
            clock.wake_s = np.inf
        free = state.free[2].sum()
        if lease_s < np.inf or may_change(
            rules.preempts, counts.active, counts.waiting, free, clock.stands, clock.free_when_blocked
        ):
            return DECIDE
        if is_to_look(rules, clock):
            return LOOK


@lean
def is_to_look(rules, clock):  # type: ignore[no-untyped-def]
    """End a moment; return whether it is time to check that the run makes progress."""
    clock.moment_s = np.inf
    clock.num_moments += 1
    return clock.num_moments % rules.look_every == 0


@lean
def _arrival_s(tables):  # type: ignore[no-untyped-def]
    """When the next job comes that is known."""
    number = tables.clock[0].num_came
    return tables.coming.arrival_s[number] if number < len(tables.coming) else np.inf


@lean
def _end_s(tables):  # type: ignore[no-untyped-def]
    clock = tables.clock[0]
    clock.num_ends, end_s = next_due(
        tables.state.table.finish_s, tables.when_s, tables.heap, tables.place, clock.num_ends
    )
    return end_s


@lean
def _pass_until(next_s, is_last, tables):  # type: ignore[no-untyped-def]
    """All that happens until a moment; returns why to leave off, or -1."""
    clock, state = tables.clock[0], tables.state
    counts = state.counts[0]
    end_s = _end_s(tables)
    while True:
        if counts.ended == len(state.ended) or counts.used + 2 > state.used.shape[1]:
            return NOTES
        if clock.num_came == len(tables.coming) and not is_last:
            return COMING
        arrival_s = _arrival_s(tables)
        event = next_event(next_s, np.inf, end_s, arrival_s, np.inf)
        if event == END:
            row = tables.heap[0]
            if state.table[row].turn > 0 and state.table[row].is_killed == 0:
                return RATE
            clock.num_ends = drop_first(tables.when_s, tables.heap, tables.place, clock.num_ends)
            end(state, row, end_s)
            end_s = _end_s(tables)
        elif event == ARRIVAL:
            if counts.active == len(state.table):
                return ROWS
            tables.came[clock.num_came] = arrive(state, tables.coming, clock.num_came, arrival_s)
            clock.num_came += 1
        else:
            return -1


@compiled
def _decided(decide, options, policy_state, rules, tables):  # type: ignore[no-untyped-def]
    """Ask the policy and bring about what it says; returns its state."""
    clock, state = tables.clock[0], tables.state
    counts, none = state.counts[0], np.zeros(0, np.int64)
    now_s, rows = clock.now_s, state.rows[: counts.active]
    if not rules.queue.preempts:
        rows = np.empty(counts.active, np.int64)
        rows = rows[: waiting_rows(state.rows, counts.active, state.table.held, rows)]
    seen = Seen(state.table, rows, now_s, state.partitions[0, : len(state.free[2])])
    order, consolidate, clock.wake_s, policy_state = decide(options, policy_state, seen)
    counts.decided, clock.stands = counts.entered, int(rules.stands)
    clock.num_decisions += 1
    hows = np.empty(len(consolidate), np.int64)
    for i in range(len(hows)):
        hows[i] = -1 if consolidate[i] < 0 else (CONSOLIDATED if consolidate[i] else ANYWHERE)
    asked = QueueArrays(order, none, none, hows, np.zeros((0, 0), np.int64))
    started, _, _, _ = queue_applied(state, rows, asked, rules.queue, now_s)
    for row in started:
        finish_s = state.table.finish_s[row]
        clock.num_ends = expect(tables.when_s, tables.heap, tables.place, clock.num_ends, row, finish_s)
    note_use(state, now_s)
    clock.free_when_blocked = free_while_blocked(
        rules.blocks, counts.waiting, state.is_one_pool, state.free[2].sum()
    )
    return policy_state
