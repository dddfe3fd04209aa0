"""What a well-formed `TaskGraph` obeys, apart from having no circle (the simulation finds these)."""

from __future__ import annotations

import numpy as np

from trainyard.engine.csr import row_of_each
from trainyard.engine.tasks import Floats, Ints, TaskGraph


def check_graph(graph: TaskGraph) -> None:
    """Refuse times, sizes, ids and lists that mean nothing.

    Raises
    ------
    ValueError
        With the first offending entry, and what is allowed.
    """
    for name in ("duration_s", "num_bytes", "release_s"):
        check_reals(name, getattr(graph, name))
    check_reals("link_bytes_per_s", graph.link_bytes_per_s, positive=True)
    num_devices = len(graph.devices)
    check_ids("task", graph.predecessors, graph.num_tasks, "predecessors")
    check_ids("resource", graph.resources, len(graph.resource_names), "resources")
    check_ids("link", graph.links, len(graph.link_names), "links")
    check_ids("label", graph.label, len(graph.labels), "label")
    check_ids("label", graph.part_of, len(graph.labels), "part_of")
    check_ids("category", graph.category, len(graph.category_names), "category")
    check_ids("task", graph.memory_task, graph.num_tasks, "memory_task")
    check_ids("device", graph.memory_device, num_devices, "memory_device")
    check_ids("device", graph.resource_device, num_devices, "resource_device", lowest=-1)
    _check_distinct("resource", graph.resource_offsets, graph.resources, graph.resource_names)
    _check_distinct("link", graph.link_offsets, graph.links, graph.link_names)
    stray = np.flatnonzero((graph.num_bytes > 0) & (np.diff(graph.link_offsets) == 0))
    if len(stray):
        raise ValueError(
            f"{graph.name_of(int(stray[0]))} moves {graph.num_bytes[stray[0]]:g} bytes over no link: "
            "name its links, or give its time as duration_s"
        )


def check_ids(what: str, ids: Ints, count: int, where: str, lowest: int = 0) -> None:
    """Refuse ids that do not exist.

    Raises
    ------
    ValueError
        If one is below `lowest`, or not below `count`.
    """
    wrong = np.flatnonzero((ids < lowest) | (ids >= count))
    if len(wrong):
        allowed = f"ids run from {lowest} to {count - 1}" if count > lowest else f"there is no {what} yet"
        raise ValueError(f"{where}: there is no {what} {ids[wrong[0]]}; {allowed}")


def check_reals(name: str, values: Floats, positive: bool = False) -> None:
    """Refuse numbers that are not finite, negative, or (if they must be positive) zero.

    Raises
    ------
    ValueError
        With the first of them.
    """
    good = np.isfinite(values) & ((values > 0) if positive else (values >= 0))
    wrong = np.flatnonzero(~good)
    if len(wrong):
        allowed = "finite and positive" if positive else "finite and not negative"
        raise ValueError(f"{name}[{wrong[0]}] is {values[wrong[0]]}; it must be {allowed}")


def _check_distinct(what: str, offsets: Ints, items: Ints, names: tuple[str, ...]) -> None:
    if len(items) < 2 or np.diff(offsets).max() < 2:
        return
    rows = row_of_each(offsets)
    order = np.lexsort((items, rows))
    rows, items = rows[order], items[order]
    twice = np.flatnonzero((rows[1:] == rows[:-1]) & (items[1:] == items[:-1]))
    if len(twice):
        raise ValueError(f"task {rows[twice[0]]} names {what} {names[items[twice[0]]]!r} twice; name it once")
