"""How a `TaskGraph` is made: task by task, or many at a time from arrays."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from trainyard.engine.categories import STANDARD_CATEGORIES, CategoryKind, ResourceKind
from trainyard.engine.checking import check_graph, check_ids
from trainyard.engine.csr import to_lists
from trainyard.engine.tasks import Floats, Ints, TaskGraph


class TaskGraphBuilder:
    """A growing graph of tasks; `build` freezes it.

    Ids of devices, resources, links and tasks are ints counted from 0 in the order of their adding. What is
    added is checked when the graph is built.
    """

    def __init__(self) -> None:
        self._devices: list[str] = []
        self._base_bytes = array("q")
        self._resource_names: list[str] = []
        self._resource_kinds: list[ResourceKind] = []
        self._resource_device = array("q")
        self._link_names: list[str] = []
        self._link_bytes_per_s = array("d")
        self._labels: dict[str, int] = {"": 0}
        self._categories: dict[str, int] = {}
        self._category_kinds: list[CategoryKind] = []
        self._reals = {name: array("d") for name in ("duration_s", "num_bytes", "release_s")}
        self._ints = {name: array("q") for name in ("priority", "label", "part_of", "category")}
        # Pairs (task, item), in the order of adding.
        self._pairs = {name: (array("q"), array("q")) for name in ("predecessors", "resources", "links")}
        self._memory = (array("q"), array("q"), array("q"), array("q"))

    @property
    def num_tasks(self) -> int:
        """Number of tasks added so far."""
        return len(self._ints["label"])

    def add_device(self, name: str, base_bytes: int = 0) -> int:
        """Add a device whose memory holds `base_bytes` before the first task; return its id."""
        self._devices.append(name)
        self._base_bytes.append(base_bytes)
        return len(self._devices) - 1

    def add_resource(self, name: str, device: int = -1, kind: ResourceKind = "compute") -> int:
        """Add a serial resource of a device (-1: of none); return its id."""
        self._resource_names.append(name)
        self._resource_kinds.append(kind)
        self._resource_device.append(device)
        return len(self._resource_names) - 1

    def add_link(self, name: str, bytes_per_s: float) -> int:
        """Add a shared link of this bandwidth, in bytes/s; return its id."""
        self._link_names.append(name)
        self._link_bytes_per_s.append(bytes_per_s)
        return len(self._link_names) - 1

    def label(self, name: str) -> int:
        """Id of a label, for `add_tasks`."""
        return self._labels.setdefault(name, len(self._labels))

    def category(self, name: str, kind: CategoryKind | None = None) -> int:
        """Id of a category, for `add_tasks`.

        Parameters
        ----------
        name : str
            One of `STANDARD_CATEGORIES`, or any other name together with its kind.
        kind : "compute", "communication" or "other", optional
            Needed once for a name that is not standard.

        Raises
        ------
        ValueError
            If the name is unknown and no kind is given, or the kind is not the one it already has.
        """
        known = self._categories.get(name)
        if known is None:
            chosen = STANDARD_CATEGORIES.get(name, kind)
            if chosen is None:
                raise ValueError(
                    f"unknown category {name!r}: say its kind ('compute', 'communication' or 'other') the "
                    f"first time, or use one of {', '.join(STANDARD_CATEGORIES)}"
                )
            known = self._categories[name] = len(self._category_kinds)
            self._category_kinds.append(chosen)
        if kind is not None and kind != self._category_kinds[known]:
            raise ValueError(f"category {name!r} is of kind {self._category_kinds[known]!r}, not {kind!r}")
        return known

    def add_task(
        self,
        duration_s: float = 0.0,
        *,
        resources: int | Sequence[int] = (),
        predecessors: Iterable[int] = (),
        num_bytes: float = 0.0,
        links: Sequence[int] = (),
        release_s: float = 0.0,
        priority: int = 0,
        label: str = "",
        category: str = "other",
        memory: Iterable[tuple[int, int, int]] = (),
    ) -> int:
        """Add one task; return its id.

        Parameters
        ----------
        duration_s : float
            Fixed seconds before any bytes move: the whole of a computation, the latency of a transfer.
        resources : int or sequence of int
            Serial resources occupied from start to end, all at once.
        predecessors : iterable of int
            Tasks that must have ended; they may be added later.
        num_bytes : float
            Bytes moved over all of `links` after `duration_s`.
        links : sequence of int
        release_s : float
            The task does not start before this time.
        priority : int
            Among ready tasks the lowest goes first.
        label, category : str
            See `category` for the names that are allowed.
        memory : iterable of (device, bytes at start, bytes at end)
            Changes of the memory in use; negative values free.
        """
        task = self.num_tasks
        category_id = self.category(category)
        for name, real in (("duration_s", duration_s), ("num_bytes", num_bytes), ("release_s", release_s)):
            self._reals[name].append(real)
        ids = (priority, self.label(label), 0, category_id)
        for name, value in zip(self._ints, ids, strict=True):
            self._ints[name].append(value)
        occupied = (resources,) if isinstance(resources, (int, np.integer)) else resources
        for name, items in (("predecessors", predecessors), ("resources", occupied), ("links", links)):
            for item in items:
                self._pairs[name][0].append(task)
                self._pairs[name][1].append(item)
        for device, start_bytes, end_bytes in memory:
            for values, value in zip(self._memory, (task, device, start_bytes, end_bytes), strict=True):
                values.append(value)
        return task

    def add_tasks(
        self,
        duration_s: ArrayLike,
        *,
        resources: ArrayLike | None = None,
        predecessors: ArrayLike | None = None,
        num_bytes: ArrayLike = 0.0,
        links: ArrayLike | None = None,
        release_s: ArrayLike = 0.0,
        priority: ArrayLike = 0,
        label: ArrayLike = 0,
        part_of: ArrayLike = 0,
        category: ArrayLike | None = None,
    ) -> Ints:
        """Add many tasks from arrays; return their ids, in order.

        Parameters
        ----------
        duration_s : array (n,)
            Its length is the number of tasks added.
        resources, predecessors, links : int array (n,) or (n, k), optional
            Up to k items per task; -1 stands for none.
        num_bytes, release_s, priority : array (n,) or scalar
        label, part_of, category : int array (n,) or scalar
            Ids from `label` (also of what a task is part of) and `category`; without, no labels and the category "other".

        Raises
        ------
        ValueError
            If an array does not have one entry per task.
        """
        durations = np.atleast_1d(np.asarray(duration_s, np.float64))
        first, count = self.num_tasks, len(durations)
        ids = np.arange(first, first + count, dtype=np.int64)
        category = self.category("other") if category is None else category
        reals: dict[str, ArrayLike] = {
            "duration_s": durations,
            "num_bytes": num_bytes,
            "release_s": release_s,
        }
        ints: dict[str, ArrayLike] = {
            "priority": priority,
            "label": label,
            "part_of": part_of,
            "category": category,
        }
        pairs = {"predecessors": predecessors, "resources": resources, "links": links}
        # All arrays are made before any is kept, so that a wrong one leaves the builder as it was.
        columns: list[tuple[array[Any], np.ndarray[Any, Any]]] = [
            (self._reals[n], column(n, v, count, np.float64)) for n, v in reals.items()
        ]
        columns += [(self._ints[n], column(n, v, count, np.int64)) for n, v in ints.items()]
        lists = [(self._pairs[n], _pairs(n, v, ids)) for n, v in pairs.items() if v is not None]
        for values, added in columns:
            values.frombytes(added.tobytes())
        for target, (tasks, items) in lists:
            target[0].frombytes(tasks.tobytes())
            target[1].frombytes(items.tobytes())
        return ids

    def add_dependencies(self, predecessors: ArrayLike, successors: ArrayLike) -> None:
        """Let each of `successors` wait for its counterpart in `predecessors` (either may be a scalar)."""
        before, after = np.broadcast_arrays(
            np.asarray(predecessors, np.int64).ravel(), np.asarray(successors, np.int64).ravel()
        )
        self._pairs["predecessors"][0].frombytes(after.tobytes())
        self._pairs["predecessors"][1].frombytes(before.tobytes())

    def chain(self, tasks: ArrayLike) -> None:
        """Fix the order of tasks, as that of a stream: each waits for the one before it."""
        order = np.asarray(tasks, np.int64)
        self.add_dependencies(order[:-1], order[1:])

    def add_memory(
        self, tasks: ArrayLike, devices: ArrayLike, start_bytes: ArrayLike, end_bytes: ArrayLike
    ) -> None:
        """Let tasks change the memory in use on devices at their start and their end (arrays or scalars)."""
        effects = np.broadcast_arrays(
            *(np.atleast_1d(np.asarray(a, np.int64)) for a in (tasks, devices, start_bytes, end_bytes))
        )
        for values, added in zip(self._memory, effects, strict=True):
            values.frombytes(added.tobytes())

    def build(self) -> TaskGraph:
        """Freeze what was added so far into a graph.

        Raises
        ------
        ValueError
            If a time, a size or a bandwidth is negative or not finite, an id does not exist, a task names a
            resource or a link twice, or bytes move over no link.
        """
        arrays: dict[str, Any] = {name: _floats(values) for name, values in self._reals.items()}
        arrays |= {name: _ints(values) for name, values in self._ints.items()}
        arrays |= {name: _ints(values) for name, values in zip(_MEMORY, self._memory, strict=True)}
        arrays["device_base_bytes"] = _ints(self._base_bytes)
        arrays["resource_device"] = _ints(self._resource_device)
        arrays["link_bytes_per_s"] = _floats(self._link_bytes_per_s)
        for name, (tasks, items) in self._pairs.items():
            rows = _ints(tasks)
            check_ids("task", rows, self.num_tasks, name)
            arrays[_OFFSETS[name]], arrays[name] = to_lists(rows, _ints(items), self.num_tasks)
        for values in arrays.values():
            values.setflags(write=False)
        graph = TaskGraph(
            devices=tuple(self._devices),
            resource_names=tuple(self._resource_names),
            resource_kinds=tuple(self._resource_kinds),
            link_names=tuple(self._link_names),
            labels=tuple(self._labels),
            category_names=tuple(self._categories),
            category_kinds=tuple(self._category_kinds),
            **arrays,
        )
        check_graph(graph)
        return graph


_OFFSETS = {"predecessors": "predecessor_offsets", "resources": "resource_offsets", "links": "link_offsets"}
_MEMORY = ("memory_task", "memory_device", "memory_start_bytes", "memory_end_bytes")


def _ints(values: array[int]) -> Ints:
    return np.array(values, np.int64)


def _floats(values: array[float]) -> Floats:
    return np.array(values, np.float64)


def column(name: str, values: ArrayLike, count: int, dtype: type) -> np.ndarray[Any, Any]:
    """One value for each of so many tasks, from an array or a scalar.

    Raises
    ------
    ValueError
        If an array has another length.
    """
    given: np.ndarray[Any, Any] = np.asarray(values, dtype)
    if given.ndim > 1 or (given.ndim == 1 and len(given) != count):
        raise ValueError(
            f"{name} has shape {given.shape}; give a scalar or one entry for each of the {count} tasks"
        )
    return np.ascontiguousarray(np.broadcast_to(given, (count,)))


def _pairs(name: str, values: ArrayLike, ids: Ints) -> tuple[Ints, Ints]:
    given = np.asarray(values, np.int64)
    if given.ndim < 2:
        given = np.broadcast_to(given, (len(ids),))[:, None] if given.ndim == 0 else given[:, None]
    if given.ndim != 2 or len(given) != len(ids):
        raise ValueError(
            f"{name} has shape {np.shape(values)}; give ids in an array ({len(ids)},) or "
            f"({len(ids)}, k), padded with -1"
        )
    present = given >= 0
    return np.repeat(ids, present.sum(axis=1)), given[present]
