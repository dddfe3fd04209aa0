"""When nodes come and go in a simulation: as the cluster says, and as failures are drawn."""

from __future__ import annotations

import heapq

from trainyard.fleet.mechanism.hazards import Fate
from trainyard.hardware.cluster import Cluster

_INF = float("inf")


class NodeEvents:
    """What will happen to nodes, the next first; of one moment, what the cluster says before what is drawn.

    Attributes
    ----------
    at_once : nodes that are not there when the run begins.
    next_s : when something happens next; infinite for never.
    """

    def __init__(self, cluster: Cluster, fate: Fate) -> None:
        self._fate = fate
        self._changes = changes = sorted(cluster.changes, key=lambda change: change.at_s)
        first = {node: change.what for change in reversed(changes) for node in change.nodes}
        self._gone = set(cluster.away) | {node for node, what in first.items() if what == "come"}
        self._failed = set[int]()
        comes = [number for number, change in enumerate(changes) if change.what == "come"]
        self._last_come = max(comes, default=-1)
        self.at_once = frozenset(self._gone)
        # The moment, and a number: first of the changes of the cluster, then of the nodes, of which each fails again.
        self._agenda = [(change.at_s, number) for number, change in enumerate(changes)]
        self._agenda += [
            (failure_s, len(changes) + node)
            for node in range(cluster.num_nodes)
            if (failure_s := fate.time_to_node_failure_s()) < _INF
        ]
        heapq.heapify(self._agenda)
        self.next_s = self._agenda[0][0] if self._agenda else _INF

    def __bool__(self) -> bool:
        return bool(self._agenda)

    @property
    def may_come(self) -> bool:
        """Whether nodes may still come, or come back; those that left for good may fail, but are not back then."""
        return bool(self._failed) or self._last_come >= 0

    def happen(self) -> tuple[float, frozenset[int], bool]:
        """Let the next thing happen.

        Returns
        -------
        The moment, the nodes that are away from then on, and whether jobs on those that go save their work before.
        """
        now_s, number = heapq.heappop(self._agenda)
        saves = False
        if number < len(self._changes):
            change = self._changes[number]
            self._gone = self._gone - change.nodes if change.what == "come" else self._gone | change.nodes
            saves = change.what == "leave"
            if number == self._last_come:
                self._last_come = -1
        else:
            node = number - len(self._changes)
            self._failed ^= {node}
            fails = node in self._failed
            rest_s = self._fate.time_to_repair_s() if fails else self._fate.time_to_node_failure_s()
            heapq.heappush(self._agenda, (now_s + rest_s, number))
        self.next_s = self._agenda[0][0] if self._agenda else _INF
        return now_s, frozenset(self._gone | self._failed), saves
