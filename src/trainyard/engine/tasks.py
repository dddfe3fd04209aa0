"""The graph of tasks that the engine runs: flat NumPy arrays, frozen.

Semantics
---------
A **task** runs in two parts. First it takes `duration_s`, a fixed time (the computation, or the latency of a
transfer). Then, if `num_bytes` is positive, it moves these bytes over all of its links at once.

A task becomes *ready* when all its predecessors have ended and its release time has come; `ready_s` is that
time. From its start to its end it occupies all its serial resources (none, one or several: a blocking
collective occupies the compute streams of all its ranks).

A **serial resource** (a compute stream, a copy stream, a queue) runs one task at a time, and is offered to
its ready tasks in the order of (`priority`, `ready_s`, task id), lowest first. A task starts as soon as it is
ready, all its resources are free and it is the first in line at each of them. It takes all of them or none. A
task first in line at a free resource that waits for another resource keeps the free one idle, as a blocking
collective does, until a task that precedes it in the order becomes ready there. The order is the same at all
resources, so the ready task that is first in it is never held up by a waiting one: resources cannot deadlock.

A **shared link** has a bandwidth. The flows that cross it share it max-min fairly: the rates are those at
which no flow can have more without a flow of equal or smaller rate having less [1]_.

**Instants.** At every instant, first everything that ends then ends, and the tasks this makes ready join
their lines; then tasks start; a task of no duration ends in the next step of the same instant. A task without
resources, duration and bytes is a *join*: it ends in the very step in which it becomes ready. Within one step
no order exists, so the ids of tasks matter only where priority and ready time are equal.

References
----------
.. [1] D. Bertsekas and R. Gallager, "Data Networks", 2nd edition, 1992, section 6.5.2 (max-min flow control).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from trainyard.engine.categories import CategoryKind, ResourceKind

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class TaskGraph:
    """Tasks on resources and links. Made by `TaskGraphBuilder`; arrays are read-only.

    In the fields N is the number of tasks. Lists per task are stored flat: the items of task `i` are
    `items[offsets[i]:offsets[i + 1]]`.

    Attributes
    ----------
    devices : tuple of str
        Names of the devices.
    device_base_bytes : int64 array, one per device
        Bytes that are occupied before the first task starts.
    resource_names, resource_kinds : tuple of str
        One per serial resource.
    resource_device : int64 array, one per serial resource
        The device it belongs to, -1 for none.
    link_names : tuple of str
    link_bytes_per_s : float64 array, one per link
    duration_s, release_s : float64 arrays (N,)
        Seconds.
    num_bytes : float64 array (N,)
        Bytes moved over the links after `duration_s`; 0 for a task that moves nothing.
    priority, label, part_of, category : int64 arrays (N,)
        Lower priorities go first; `label` and `category` index `labels` and `category_names`. So does `part_of`, of
        `labels`: several tasks together may do something that has a name of its own.
    predecessor_offsets, predecessors : int64 arrays (N + 1,) and flat
    resource_offsets, resources : int64 arrays (N + 1,) and flat
    link_offsets, links : int64 arrays (N + 1,) and flat
    memory_task, memory_device, memory_start_bytes, memory_end_bytes : int64 arrays
        One entry per effect: `memory_task` adds `memory_start_bytes` to the memory of `memory_device` when it
        starts and `memory_end_bytes` when it ends (negative: frees).
    labels, category_names : tuple of str
    category_kinds : tuple of str
        "compute", "communication" or "other", one per category.
    """

    devices: tuple[str, ...]
    device_base_bytes: Ints
    resource_names: tuple[str, ...]
    resource_kinds: tuple[ResourceKind, ...]
    resource_device: Ints
    link_names: tuple[str, ...]
    link_bytes_per_s: Floats
    duration_s: Floats
    num_bytes: Floats
    release_s: Floats
    priority: Ints
    label: Ints
    part_of: Ints
    category: Ints
    predecessor_offsets: Ints
    predecessors: Ints
    resource_offsets: Ints
    resources: Ints
    link_offsets: Ints
    links: Ints
    memory_task: Ints
    memory_device: Ints
    memory_start_bytes: Ints
    memory_end_bytes: Ints
    labels: tuple[str, ...]
    category_names: tuple[str, ...]
    category_kinds: tuple[CategoryKind, ...]

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return len(self.duration_s)

    def predecessors_of(self, task: int) -> Ints:
        """Ids of the tasks that `task` waits for."""
        return self.predecessors[self.predecessor_offsets[task] : self.predecessor_offsets[task + 1]]

    def resources_of(self, task: int) -> Ints:
        """Ids of the serial resources that `task` occupies."""
        return self.resources[self.resource_offsets[task] : self.resource_offsets[task + 1]]

    def links_of(self, task: int) -> Ints:
        """Ids of the links that `task` crosses."""
        return self.links[self.link_offsets[task] : self.link_offsets[task + 1]]

    def name_of(self, task: int) -> str:
        """Name `task` for a reader: what it is and its id."""
        title = self.title_of(task)
        return f"{title} (task {task})" if title else f"task {task}"

    def title_of(self, task: int) -> str:
        """What `task` is part of, and its label."""
        return f"{self.labels[self.part_of[task]]} {self.labels[self.label[task]]}".strip()
