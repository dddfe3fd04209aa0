"""The event loop, compiled with Numba; `trainyard.engine.tasks` says what it computes."""

from __future__ import annotations

import numpy as np

from trainyard.compiling import only_lean
from trainyard.engine.agenda import drop_first, expect
from trainyard.engine.state import GraphArrays, State

# Phases of a task.
_DELAYED, _FIXED, _FLOWING, _DONE = 1, 2, 3, 4
# Places in `State.counts`.
_EVENTS, _STEP, _ENDING, _FREE, _TOUCHED, _DIRTY, _NUM_DONE = range(7)
NUM_COUNTS = 7
# Flows that would end this close together, relative to the time, end together: equal flows get their rates by
# different sequences of roundings.
_SAME_INSTANT = 1e-12


@only_lean
def _set_event(state: State, task: int, time_s: float) -> None:
    """Put the event of a task into the heap, or move it."""
    counts = state.counts
    counts[_EVENTS] = expect(state.event_s, state.events, state.event_place, counts[_EVENTS], task, time_s)


@only_lean
def _goes_first(work: GraphArrays, state: State, a: int, b: int) -> bool:
    if work.priority[a] != work.priority[b]:
        return bool(work.priority[a] < work.priority[b])
    if state.ready_s[a] != state.ready_s[b]:
        return bool(state.ready_s[a] < state.ready_s[b])
    return a < b


@only_lean
def _join_line(work: GraphArrays, state: State, resource: int, task: int) -> None:
    base, place = state.line_offsets[resource], state.line_length[resource]
    state.line_length[resource] += 1
    lines = state.lines
    while place > 0:
        parent = (place - 1) >> 1
        if not _goes_first(work, state, task, lines[base + parent]):
            break
        lines[base + place] = lines[base + parent]
        place = parent
    lines[base + place] = task


@only_lean
def _leave_line(work: GraphArrays, state: State, resource: int) -> None:
    """Take the first task out of a line."""
    state.line_length[resource] -= 1
    base, size, lines = state.line_offsets[resource], state.line_length[resource], state.lines
    task, place = lines[base + size], 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _goes_first(work, state, lines[base + child + 1], lines[base + child]):
            child += 1
        if not _goes_first(work, state, lines[base + child], task):
            break
        lines[base + place] = lines[base + child]
        place = child
    lines[base + place] = task


@only_lean
def _touch(state: State, resource: int) -> None:
    """Remember that something may start at a resource."""
    if state.is_touched[resource] == 0:
        state.is_touched[resource] = 1
        state.touched[state.counts[_TOUCHED]] = resource
        state.counts[_TOUCHED] += 1


@only_lean
def _make_ready(work: GraphArrays, state: State, task: int, now_s: float, cause: int) -> None:
    """All predecessors of a task have ended, `cause` (or none, -1) last."""
    if work.release_s[task] > now_s:
        state.phase[task] = _DELAYED
        _set_event(state, task, work.release_s[task])
        return
    state.ready_s[task] = now_s
    state.bound_by[task] = cause
    first, last = work.resource_offsets[task], work.resource_offsets[task + 1]
    for k in range(first, last):
        _join_line(work, state, work.resources[k], task)
        _touch(state, work.resources[k])
    if first == last:
        if work.duration_s[task] == 0.0 and work.num_bytes[task] == 0.0:
            state.start_s[task] = now_s
            state.start_step[task] = state.counts[_STEP]
            state.ending[state.counts[_ENDING]] = task
            state.counts[_ENDING] += 1
        else:
            state.free[state.counts[_FREE]] = task
            state.counts[_FREE] += 1


@only_lean
def _end_all(work: GraphArrays, state: State, now_s: float) -> None:
    """End the tasks of the stack `ending`, and the joins that become ready by that."""
    while state.counts[_ENDING] > 0:
        state.counts[_ENDING] -= 1
        task = state.ending[state.counts[_ENDING]]
        state.phase[task] = _DONE
        state.end_s[task] = now_s
        state.end_step[task] = state.counts[_STEP]
        state.counts[_NUM_DONE] += 1
        for k in range(work.resource_offsets[task], work.resource_offsets[task + 1]):
            state.running[work.resources[k]] = -1
            state.last[work.resources[k]] = task
            _touch(state, work.resources[k])
        for k in range(work.successor_offsets[task], work.successor_offsets[task + 1]):
            successor = work.successors[k]
            state.num_waiting[successor] -= 1
            if state.num_waiting[successor] == 0:
                _make_ready(work, state, successor, now_s, task)


@only_lean
def _begin(work: GraphArrays, state: State, task: int, now_s: float) -> None:
    state.start_s[task] = now_s
    state.start_step[task] = state.counts[_STEP] + 1
    if work.duration_s[task] == 0.0 and work.num_bytes[task] > 0.0:
        _begin_flow(work, state, task, now_s)
    else:
        state.phase[task] = _FIXED
        _set_event(state, task, now_s + work.duration_s[task])


@only_lean
def _try_first_in_line(work: GraphArrays, state: State, resource: int, now_s: float) -> None:
    """Start the first task in a line if it is first, and its resource free, everywhere."""
    if state.line_length[resource] == 0:
        return
    task = state.lines[state.line_offsets[resource]]
    first, last = work.resource_offsets[task], work.resource_offsets[task + 1]
    for k in range(first, last):
        other = work.resources[k]
        if state.running[other] >= 0 or state.lines[state.line_offsets[other]] != task:
            return
    waited = now_s > state.ready_s[task]
    for k in range(first, last):
        other = work.resources[k]
        # What it waited for longest is the resource that became free just now.
        if waited and state.last[other] >= 0 and state.end_s[state.last[other]] == now_s:
            state.bound_by[task] = state.last[other]
            waited = False
        state.running[other] = task
        _leave_line(work, state, other)
    _begin(work, state, task, now_s)


@only_lean
def _start_all(work: GraphArrays, state: State, now_s: float) -> None:
    """Start everything that can start."""
    for k in range(state.counts[_FREE]):
        _begin(work, state, state.free[k], now_s)
    state.counts[_FREE] = 0
    for k in range(state.counts[_TOUCHED]):
        resource = state.touched[k]
        state.is_touched[resource] = 0
        _try_first_in_line(work, state, resource, now_s)
    state.counts[_TOUCHED] = 0


@only_lean
def _mark_dirty(state: State, link: int) -> None:
    """Remember that the flows of a link have changed."""
    if state.link_seen[link] == 0:
        state.link_seen[link] = 1
        state.dirty[state.counts[_DIRTY]] = link
        state.counts[_DIRTY] += 1


@only_lean
def _begin_flow(work: GraphArrays, state: State, task: int, now_s: float) -> None:
    state.phase[task] = _FLOWING
    state.remaining_bytes[task] = work.num_bytes[task]
    state.as_of_s[task] = now_s
    for entry in range(work.link_offsets[task], work.link_offsets[task + 1]):
        link = work.links[entry]
        following = state.first_entry[link]
        state.next_entry[entry] = following
        state.previous_entry[entry] = -1
        if following >= 0:
            state.previous_entry[following] = entry
        state.first_entry[link] = entry
        _mark_dirty(state, link)


@only_lean
def _end_flow(work: GraphArrays, state: State, task: int) -> None:
    for entry in range(work.link_offsets[task], work.link_offsets[task + 1]):
        link, before, after = work.links[entry], state.previous_entry[entry], state.next_entry[entry]
        if before >= 0:
            state.next_entry[before] = after
        else:
            state.first_entry[link] = after
        if after >= 0:
            state.previous_entry[after] = before
        _mark_dirty(state, link)


@only_lean
def _collect_component(work: GraphArrays, state: State) -> int:
    """Extend the dirty links by all that share a flow with them, transitively; list those flows."""
    num_flows, position = 0, 0
    while position < state.counts[_DIRTY]:
        link = state.dirty[position]
        position += 1
        state.residual_bytes_per_s[link] = work.link_bytes_per_s[link]
        state.num_unfixed[link] = 0
        entry = state.first_entry[link]
        while entry >= 0:
            state.num_unfixed[link] += 1
            flow = work.link_task[entry]
            if state.flow_seen[flow] == 0:
                state.flow_seen[flow] = 1
                state.next_bytes_per_s[flow] = -1.0
                state.some_flows[num_flows] = flow
                num_flows += 1
                for other in range(work.link_offsets[flow], work.link_offsets[flow + 1]):
                    _mark_dirty(state, work.links[other])
            entry = state.next_entry[entry]
    return num_flows


@only_lean
def _saturate(work: GraphArrays, state: State, link: int, share: float) -> None:
    """Give all flows of a link that have no rate yet this one."""
    entry = state.first_entry[link]
    while entry >= 0:
        flow = work.link_task[entry]
        if state.next_bytes_per_s[flow] < 0.0:
            state.next_bytes_per_s[flow] = share
            for other in range(work.link_offsets[flow], work.link_offsets[flow + 1]):
                state.residual_bytes_per_s[work.links[other]] -= share
                state.num_unfixed[work.links[other]] -= 1
        entry = state.next_entry[entry]


@only_lean
def _fill(work: GraphArrays, state: State) -> None:
    """Max-min fair rates by progressive filling: saturate the tightest links, again and again."""
    num_open = state.counts[_DIRTY]
    for k in range(num_open):
        state.link_seen[state.dirty[k]] = 0
    share = 0.0
    while True:
        tightest, kept = np.inf, 0
        for k in range(num_open):
            link = state.dirty[k]
            if state.num_unfixed[link] > 0:
                state.dirty[kept] = link
                kept += 1
                tightest = min(tightest, state.residual_bytes_per_s[link] / state.num_unfixed[link])
        num_open = kept
        if num_open == 0:
            break
        # The share only grows from round to round; rounding must not make it shrink, down to 0 at worst.
        share = max(share, tightest)
        for k in range(num_open):
            link = state.dirty[k]
            limit = share * state.num_unfixed[link] * (1.0 + _SAME_INSTANT)
            if state.num_unfixed[link] > 0 and state.residual_bytes_per_s[link] <= limit:
                _saturate(work, state, link, share)
    state.counts[_DIRTY] = 0


@only_lean
def _share_links(work: GraphArrays, state: State, now_s: float) -> None:
    """Give new rates to the flows that a change can have touched, and move their ends."""
    num_flows = _collect_component(work, state)
    _fill(work, state)
    for k in range(num_flows):
        flow = state.some_flows[k]
        state.flow_seen[flow] = 0
        rate = state.next_bytes_per_s[flow]
        if rate == state.bytes_per_s[flow]:
            continue
        moved = state.bytes_per_s[flow] * (now_s - state.as_of_s[flow])
        state.remaining_bytes[flow] = max(0.0, state.remaining_bytes[flow] - moved)
        state.as_of_s[flow] = now_s
        state.bytes_per_s[flow] = rate
        _set_event(state, flow, now_s + state.remaining_bytes[flow] / rate)


@only_lean
def _take_events(work: GraphArrays, state: State, now_s: float) -> None:
    """Take all events of this instant from the heap."""
    while state.counts[_EVENTS] > 0:
        task = state.events[0]
        phase = state.phase[task]
        limit_s = now_s * (1.0 + _SAME_INSTANT) if phase == _FLOWING else now_s
        if state.event_s[task] > limit_s:
            break
        counts = state.counts
        counts[_EVENTS] = drop_first(state.event_s, state.events, state.event_place, counts[_EVENTS])
        if phase == _DELAYED:
            _make_ready(work, state, task, now_s, -1)
        elif phase == _FIXED and work.num_bytes[task] > 0.0:
            _begin_flow(work, state, task, now_s)
        else:
            if phase == _FLOWING:
                _end_flow(work, state, task)
            state.ending[state.counts[_ENDING]] = task
            state.counts[_ENDING] += 1


@only_lean
def run(work: GraphArrays, state: State) -> int:
    """Run the work until nothing can happen any more; return the number of tasks that ended."""
    now_s = 0.0
    for task in range(len(work.duration_s)):
        if state.num_waiting[task] == 0:
            _make_ready(work, state, task, now_s, -1)
    while True:
        _end_all(work, state, now_s)
        _start_all(work, state, now_s)
        state.counts[_STEP] += 2
        if state.counts[_DIRTY] > 0 and (
            state.counts[_EVENTS] == 0 or state.event_s[state.events[0]] > now_s
        ):
            _share_links(work, state, now_s)
        if state.counts[_EVENTS] == 0:
            return int(state.counts[_NUM_DONE])
        now_s = state.event_s[state.events[0]]
        _take_events(work, state, now_s)
