"""Where time goes: busy seconds of resources, exposed communication and bubbles of devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trainyard.engine.csr import row_of_each
from trainyard.engine.tasks import Floats, Ints, TaskGraph


@dataclass(frozen=True, slots=True)
class Breakdown:
    """What a device did, second by second; all parts add up to the makespan.

    Attributes
    ----------
    computing_s : mapping from category to seconds
        Time in which a compute resource of the device runs a task that is not communication. Where it has
        several compute resources, an instant counts once, for the lowest category id.
    exposed_s : mapping from category to seconds
        Time in which none does, but a communication task that occupies a resource of the device runs; an
        instant in which several run counts once, for the lowest category id.
    bubble_s : float
        The rest of the makespan.
    makespan_s : float
    """

    computing_s: Mapping[str, float]
    exposed_s: Mapping[str, float]
    bubble_s: float
    makespan_s: float


def busy_s_by_resource(graph: TaskGraph, start_s: Floats, end_s: Floats) -> Floats:
    """Seconds in which each serial resource is occupied, by category.

    Parameters
    ----------
    graph : TaskGraph
    start_s, end_s : float64 arrays (N,)

    Returns
    -------
    float64 array (number of resources, number of categories)
    """
    tasks = row_of_each(graph.resource_offsets)
    shape = (len(graph.resource_names), len(graph.category_names))
    cell = graph.resources * shape[1] + graph.category[tasks]
    seconds = (end_s - start_s)[tasks]
    total = np.zeros(shape)
    np.add.at(total.reshape(-1), cell, seconds)
    return total


def device_breakdown(
    graph: TaskGraph, start_s: Floats, end_s: Floats, makespan_s: float
) -> tuple[Breakdown, ...]:
    """Split the makespan of every device into computing, exposed communication and bubble.

    Parameters
    ----------
    graph : TaskGraph
    start_s, end_s : float64 arrays (N,)
    makespan_s : float

    Returns
    -------
    tuple of Breakdown, one per device
    """
    task = row_of_each(graph.resource_offsets)
    device = graph.resource_device[graph.resources]
    communicates = np.array([kind == "communication" for kind in graph.category_kinds], bool)[
        graph.category[task]
    ]
    computes = (
        np.array([kind == "compute" for kind in graph.resource_kinds], bool)[graph.resources] & ~communicates
    )
    counted = (device >= 0) & (computes | communicates) & (end_s[task] > start_s[task])
    task, device, computes = task[counted], device[counted], computes[counted]
    order = np.argsort(device, kind="stable")
    bounds = np.searchsorted(device[order], np.arange(len(graph.devices) + 1))
    result = []
    for index in range(len(graph.devices)):
        mine = order[bounds[index] : bounds[index + 1]]
        rank = np.where(computes[mine], 0, len(graph.category_names)) + graph.category[task[mine]]
        seconds = _seconds_by_rank(
            start_s[task[mine]], end_s[task[mine]], rank, 2 * len(graph.category_names)
        )
        computing, exposed = np.split(seconds, 2)
        result.append(
            Breakdown(
                computing_s=_named(graph, computing),
                exposed_s=_named(graph, exposed),
                bubble_s=max(0.0, makespan_s - float(seconds.sum())),
                makespan_s=makespan_s,
            )
        )
    return tuple(result)


def _named(graph: TaskGraph, seconds: Floats) -> dict[str, float]:
    return {name: float(s) for name, s in zip(graph.category_names, seconds, strict=True) if s > 0}


def _seconds_by_rank(start_s: Floats, end_s: Floats, rank: Ints, num_ranks: int) -> Floats:
    """Give every instant to the lowest rank that has an interval there; return the seconds of each rank."""
    result = np.zeros(num_ranks)
    times = np.unique(np.concatenate((start_s, end_s)))
    widths = np.diff(times)
    taken = np.zeros(len(widths), bool)
    for each in np.unique(rank):
        mine = rank == each
        change = np.zeros(len(times), np.int64)
        np.add.at(change, np.searchsorted(times, start_s[mine]), 1)
        np.add.at(change, np.searchsorted(times, end_s[mine]), -1)
        free = (np.cumsum(change)[:-1] > 0) & ~taken
        result[each] = widths[free].sum()
        taken |= free
    return result
