"""The drawn parts of a timeline: bars, few enough for a browser, and curves, of few enough points."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trainyard.engine.csr import row_of_each
from trainyard.engine.tasks import Floats, Ints, TaskGraph
from trainyard.engine.timeline import Timeline


@dataclass(frozen=True, slots=True, eq=False)
class Bars:
    """Bars of a Gantt chart; arrays have one entry per bar.

    Attributes
    ----------
    row : int64 array
        Place of its serial resource among those drawn.
    category : int64 array
    start_s, length_s : float64 arrays
        Seconds. The length of a bar of several tasks is the sum of theirs.
    task : int64 array
        The task, or the first of several.
    num_tasks : int64 array
        How many tasks the bar stands for.
    """

    row: Ints
    category: Ints
    start_s: Floats
    length_s: Floats
    task: Ints
    num_tasks: Ints

    def __len__(self) -> int:
        """Number of bars."""
        return len(self.row)


def shown_resources(graph: TaskGraph, max_rows: int) -> Ints:
    """Choose the resources that are drawn, from top to bottom: device by device, those of no device last."""
    device = np.where(graph.resource_device < 0, len(graph.devices), graph.resource_device)
    return np.argsort(device, kind="stable")[:max_rows]


def gantt_bars(timeline: Timeline, resources: Ints, max_bars: int) -> Bars:
    """Draw every task of some resources as a bar, or where these are too many, short ones together.

    Short tasks of one category that start in the same slice of time on the same resource become one bar, as
    long as they are together; slices are made as short as `max_bars` allows.

    Parameters
    ----------
    timeline : Timeline
    resources : int64 array
        Serial resources, one per row.
    max_bars : int
        Not exceeded, as long as it allows a bar per category for every row.

    Returns
    -------
    Bars
        By row, then start. Tasks of no duration are left out.
    """
    graph = timeline.graph
    row_of_resource = np.full(len(graph.resource_names), -1, np.int64)
    row_of_resource[resources] = np.arange(len(resources))
    task = row_of_each(graph.resource_offsets)
    row = row_of_resource[graph.resources]
    shown = (row >= 0) & (timeline.end_s[task] > timeline.start_s[task])
    task, row = task[shown], row[shown]
    order = np.lexsort((timeline.start_s[task], row))
    task, row = task[order], row[order]
    start_s, length_s = timeline.start_s[task], (timeline.end_s - timeline.start_s)[task]
    single = Bars(row, graph.category[task], start_s, length_s, task, np.ones(len(task), np.int64))
    bars, num_slices = single, max_bars
    while len(bars) > max_bars and num_slices > 1:
        num_slices //= 2
        bars = _together(single, timeline.makespan_s / num_slices, len(graph.category_names))
    return _side_by_side(bars)


def _together(bars: Bars, slice_s: float, num_categories: int) -> Bars:
    """Merge the bars of at most a slice that start in one slice, by row and category."""
    slices = np.floor(bars.start_s / slice_s).astype(np.int64)
    key = (bars.row * (int(slices.max()) + 1) + slices) * num_categories + bars.category
    # Every long bar is a group of its own, with a key that no group of short ones has.
    key = np.where(bars.length_s <= slice_s, key, -1 - np.arange(len(bars)))
    _, first, group, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    length_s = np.zeros(len(first))
    np.add.at(length_s, group, bars.length_s)
    order = np.lexsort((bars.start_s[first], bars.row[first]))
    chosen = first[order]
    return Bars(
        row=bars.row[chosen],
        category=bars.category[chosen],
        start_s=bars.start_s[chosen],
        length_s=length_s[order],
        task=bars.task[chosen],
        num_tasks=counts[order],
    )


def _side_by_side(bars: Bars) -> Bars:
    """Move bars that a bar of several tasks before them reaches into, so that none hides another."""
    start_s = bars.start_s.copy()
    for index in np.flatnonzero((bars.row[1:] == bars.row[:-1]) & (bars.num_tasks[:-1] > 1)):
        start_s[index + 1] = max(start_s[index + 1], start_s[index] + bars.length_s[index])
    return replace(bars, start_s=start_s)


def visible_curve(times_s: Floats, values: Ints) -> tuple[Floats, Ints]:
    """Leave out of a staircase what is over at once: levels passed through at an instant, but for its peaks.

    Parameters
    ----------
    times_s : float64 array (k,), not decreasing
    values : int64 array (k,)

    Returns
    -------
    times_s, values : arrays
        At most two entries per time: the highest level, if it is above those before and after, and the last
        one.
    """
    # Times that differ by a rounding are one instant here.
    instant_s = 1e-9 * float(times_s[-1])
    starts = np.flatnonzero(np.diff(times_s, prepend=-1.0) > instant_s)
    last = np.append(starts[1:], len(values)) - 1
    highest = np.maximum.reduceat(values, starts)
    before = np.append(values[last[0]], values[last[:-1]])
    is_peak = highest > np.maximum(before, values[last])
    kept = np.stack([is_peak, np.ones(len(starts), bool)], axis=1).ravel()
    both = np.stack([highest, values[last]], axis=1).ravel()
    return np.repeat(times_s[starts], 2)[kept], both[kept]


def thin_curve(times_s: Floats, values: Ints, max_points: int) -> tuple[Floats, Ints]:
    """Thin a staircase for drawing: of every slice of time keep its first, lowest, highest and last point.

    Parameters
    ----------
    times_s : float64 array (k,), not decreasing
    values : int64 array (k,)
    max_points : int

    Returns
    -------
    times_s, values : arrays of at most `max_points` entries, or the ones given if these are as few
    """
    if len(times_s) <= max_points or times_s[-1] <= times_s[0]:
        return times_s, values
    num_slices = max(1, max_points // 4)
    position = (times_s - times_s[0]) / (times_s[-1] - times_s[0])
    slices = np.minimum((position * num_slices).astype(np.int64), num_slices - 1)
    by_value = np.lexsort((values, slices))
    starts = np.flatnonzero(np.diff(slices, prepend=-1))
    ends = np.append(starts[1:], len(slices)) - 1
    kept = np.unique(np.concatenate((starts, ends, by_value[starts], by_value[ends])))
    return times_s[kept], values[kept]
