"""Gandiva: time slicing at the ends of minibatches, packing with undo, migration, and growing on idle devices.

References
----------
W. Xiao et al., "Gandiva: Introspective Cluster Scheduling for Deep Learning", OSDI 2018. Section 4.1: suspend and
resume, packing, migration, grow-shrink. Section 4.2.1: where a new job goes (reactive mode). Section 4.2.2: packing,
migration and grow-shrink while jobs run (introspective mode).

Fidelity: simplified.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from types import MappingProxyType

import numpy as np

from trainyard.fleet.allocation import Allocation, Placed
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.fleet.traits import Traits
from trainyard.hardware.cluster import Cluster

Pair = frozenset[str]


@dataclass(frozen=True)
class State:
    """Memory from one time slice to the next, by the names of jobs.

    Attributes
    ----------
    job_nodes : nodes on which a job runs when it is its turn.
    last_run_s : when its last slice began.
    done : work that it had done by the last decision, at ``now_s``.
    alone : work per second when it had its devices for itself.
    packed : pairs that share a device in this slice.
    undone : pairs that were slower together than in turns, and are not packed again.
    """

    job_nodes: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    last_run_s: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    done: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    alone: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    packed: frozenset[Pair] = frozenset()
    undone: frozenset[Pair] = frozenset()
    now_s: float = 0.0


@dataclass(frozen=True)
class Gandiva:
    """The policy.

    Attributes
    ----------
    quantum_s : length of a time slice, and so of the rounds; the paper's is about a minute.
    pack, migrate, grow : the mechanisms of the introspective mode.
    """

    quantum_s: float = 60.0
    pack: bool = True
    migrate: bool = True
    grow: bool = True
    needs: frozenset[Need] = field(default=frozenset(), init=False)
    preempts: bool = field(default=True, init=False)

    @property
    def traits(self) -> Traits:
        """A round is a time slice; packed jobs have a device together."""
        return Traits(shares=self.pack, round_s=self.quantum_s, places=True)

    def start(self, cluster: Cluster) -> State:
        """Nothing runs."""
        return State()

    def decide(self, snapshot: Snapshot, state: State) -> tuple[Allocation, State]:
        """The next slice: first the reactive mode, then the mechanisms of the introspective one."""
        found = _Slice(self, snapshot, _observed(snapshot, state))
        found.give_nodes()
        waiting = found.take_turns()
        if self.migrate:
            waiting = [i for i in waiting if not found.migrate(i)]
        if self.pack:
            for i in waiting:
                found.pack(i)
        if self.grow:
            found.grow()
        return found.allocation(), found.state()


def _observed(snapshot: Snapshot, state: State) -> State:
    """Note what the last slice showed: speeds of jobs alone, and pairs that do less together than in turns."""
    elapsed_s = snapshot.now_s - state.now_s
    rate = {
        job.name: (done - state.done[job.name]) / elapsed_s
        for job, done in zip(snapshot.jobs, snapshot.done.tolist(), strict=True)
        if job.name in state.done and elapsed_s > 0
    }
    together = {name for pair in state.packed for name in pair}
    ran = {n for n, at_s in state.last_run_s.items() if at_s == state.now_s}
    alone = {**state.alone, **{n: r for n, r in rate.items() if n in ran - together and r > 0}}
    # In turns they would do one device's work between them.
    worse = {
        pair
        for pair in state.packed
        if all(name in rate and name in alone for name in pair)
        and sum(rate[name] / alone[name] for name in pair) < 1.0
    }
    here = {job.name for job in snapshot.jobs}
    return replace(
        state,
        job_nodes={n: own_nodes for n, own_nodes in state.job_nodes.items() if n in here},
        last_run_s={n: at_s for n, at_s in state.last_run_s.items() if n in here},
        alone={n: r for n, r in alone.items() if n in here},
        undone=frozenset(p for p in state.undone | worse if p <= here),
    )


class _Slice:
    """One time slice while it is made.

    Attributes
    ----------
    free : devices of every node that nobody has in this slice.
    sizes : devices of every node, 0 of one that is away.
    pools : of every type of device, the nodes that can be used, the largest first; and how many devices the first one,
        the first two and so on have together.
    job_nodes : see `State`.
    placed : devices of every job that runs in this slice.
    packed : of every packed job the other one.
    """

    def __init__(self, policy: Gandiva, snapshot: Snapshot, state: State) -> None:
        self.policy, self.snapshot, self.before = policy, snapshot, state
        cluster = snapshot.cluster
        self.sizes = cluster.devices_per_node.tolist()
        first_devices = zip(cluster.first_device.tolist(), self.sizes, strict=False)
        self.free = [list(range(first, first + size)) for first, size in first_devices]
        largest_first = sorted((n for n, size in enumerate(self.sizes) if size), key=lambda n: -self.sizes[n])
        kinds = range(len(cluster.device_types))
        of_type = [[n for n in largest_first if cluster.type_of_node[n] == kind] for kind in kinds]
        self.pools = [(nodes, list(accumulate(self.sizes[n] for n in nodes))) for nodes in of_type]
        self.job_nodes = dict(state.job_nodes)
        self.placed: dict[int, tuple[int, ...]] = {}
        self.packed: dict[int, int] = {}

    # Reactive mode (section 4.2.1).

    def give_nodes(self) -> None:
        """Nodes for every job that has none, or not enough since one of them has gone away."""
        for i, job in enumerate(self.snapshot.jobs):
            if sum(self.sizes[n] for n in self.job_nodes.get(job.name, ())) < job.num_devices:
                self.job_nodes.pop(job.name, None)
                self.job_nodes[job.name] = self._new_nodes(i)

    def take_turns(self) -> list[int]:
        """Run jobs on their nodes while devices are free there, the longest idle first; return the jobs that wait."""
        jobs, last_run_s = self.snapshot.jobs, self.before.last_run_s
        order = sorted(
            range(len(jobs)), key=lambda i: (last_run_s.get(jobs[i].name, -1.0), self.snapshot.arrival_s[i])
        )
        return [i for i in order if not self._run_on(i, self.job_nodes[jobs[i].name])]

    def _height(self, node: int) -> float:
        """Devices that the jobs of a node ask for, over those that it has."""
        jobs = self.snapshot.jobs
        asked = sum(
            j.num_devices / len(self.job_nodes[j.name])
            for j in jobs
            if node in self.job_nodes.get(j.name, ())
        )
        return float(asked / self.sizes[node])

    def _affinity(self, node: int) -> int:
        """Devices that each of the jobs of a node asks for; 0 if it has none."""
        return next((j.num_devices for j in self.snapshot.jobs if node in self.job_nodes.get(j.name, ())), 0)

    def _pools_for(self, i: int) -> list[tuple[list[int], int]]:
        """Return the nodes of each type on which a job can run, and the fewest of them on which it fits."""
        wanted = self.snapshot.jobs[i].num_devices
        pools = [self.pools[kind] for kind in self.snapshot.allowed_types(i)]
        fewest = [(nodes, bisect_left(devices_of_first, wanted) + 1) for nodes, devices_of_first in pools]
        return [(nodes, count) for nodes, count in fewest if count <= len(nodes)]

    def _new_nodes(self, i: int) -> tuple[int, ...]:
        """Algorithm 1: nodes of the same affinity with room, then empty ones, then others with room, then the least
        loaded of the same affinity, which the job will share in turns; all of one type of devices. None if too many
        nodes are away."""
        wanted = self.snapshot.jobs[i].num_devices
        found: list[tuple[int, float, tuple[int, ...]]] = []
        for nodes, count in self._pools_for(i):
            height = {n: self._height(n) for n in nodes}
            of_node = wanted / count
            room = [n for n in nodes if height[n] + of_node / self.sizes[n] <= 1.0 + 1e-9]
            same = [n for n in nodes if self._affinity(n) == wanted]
            empty = [n for n in nodes if self._affinity(n) == 0]
            preferred = ([n for n in same if n in room], empty, room, same, nodes)
            choices = [[n for n in candidates if self.sizes[n] >= of_node] for candidates in preferred]
            choices.append(nodes[:count])
            rank = next(k for k, choice in enumerate(choices) if len(choice) >= count)
            own_nodes = sorted(choices[rank], key=lambda n: (height[n], n))[:count]
            found.append((rank, sum(height[n] for n in own_nodes), tuple(sorted(own_nodes))))
        return min(found)[2] if found else ()

    def _run_on(self, i: int, nodes: tuple[int, ...]) -> bool:
        """Give a job devices of some nodes, those that it has already before others; False if too few are free."""
        wanted = self.snapshot.jobs[i].num_devices
        grant = self.snapshot.grants[i]
        free = [d for n in nodes for d in self.free[n]]
        kept = [d for d in free if grant is not None and d in grant.devices]
        devices = sorted((kept + [d for d in free if d not in kept])[:wanted])
        if len(devices) < wanted:
            return False
        for device in devices:
            self.free[int(self.snapshot.cluster.node_of[device])].remove(device)
        self.placed[i] = tuple(devices)
        return True

    # Introspective mode (section 4.2.2).

    def migrate(self, i: int) -> bool:
        """A job whose turn it is not moves to where devices are idle; False if it cannot."""
        wanted, pools = self.snapshot.jobs[i].num_devices, self._pools_for(i)
        single_nodes = [n for nodes, _ in pools for n in nodes if len(self.free[n]) >= wanted]
        if single_nodes:
            choices = [[min(single_nodes, key=lambda n: (len(self.free[n]), n))]]
        else:
            choices = [sorted(nodes, key=lambda n: (-len(self.free[n]), n))[:count] for nodes, count in pools]
        found = next((nodes for nodes in choices if self._run_on(i, tuple(sorted(nodes)))), None)
        if found is None:
            return False
        self.job_nodes[self.snapshot.jobs[i].name] = tuple(sorted(found))
        return True

    def pack(self, i: int) -> None:
        """Put a job of one device beside the least busy one of its node, if it is known how fast both are alone."""
        jobs, alone, undone = self.snapshot.jobs, self.before.alone, self.before.undone
        if jobs[i].num_devices != 1 or jobs[i].name not in alone:
            return
        own_nodes = self.job_nodes[jobs[i].name]
        others = [
            j
            for j, devices in self.placed.items()
            if len(devices) == 1
            and int(self.snapshot.cluster.node_of[devices[0]]) in own_nodes
            and j not in self.packed
            and jobs[j].name in alone
            and frozenset((jobs[i].name, jobs[j].name)) not in undone
        ]
        if others:
            other = min(others, key=lambda j: (jobs[j].busy, j))
            self.packed[i], self.packed[other] = other, i
            self.placed[i] = self.placed[other]

    def grow(self) -> None:
        """Elastic jobs take what is idle on their node, and give it back when it is wanted."""
        for i in sorted(self.placed):
            most = self.snapshot.jobs[i].most_devices
            nodes = {int(self.snapshot.cluster.node_of[d]) for d in self.placed[i]}
            if len(nodes) == 1 and len(self.placed[i]) < most and i not in self.packed:
                idle = self.free[nodes.pop()]
                more = idle[: most - len(self.placed[i])]
                del idle[: len(more)]
                self.placed[i] = tuple(sorted((*self.placed[i], *more)))

    def allocation(self) -> Allocation:
        """Return the jobs that run in this slice, and where."""
        order = sorted(self.placed)
        waits = "its time slice comes; others run on its node now"
        shares = np.array([self._share(i) for i in order])
        return Allocation(
            Placed(np.array(order, np.int64), [self.placed[i] for i in order], shares),
            ask_again_s=self.snapshot.now_s + self.policy.quantum_s,
            reasons={i: waits for i in range(self.snapshot.num_jobs) if i not in self.placed},
        )

    def _share(self, i: int) -> float:
        if i not in self.packed:
            return 1.0
        return self.snapshot.jobs[i].share_beside(self.snapshot.jobs[self.packed[i]])

    def state(self) -> State:
        """Return the memory for the next slice."""
        jobs, now_s = self.snapshot.jobs, self.snapshot.now_s
        ran = {jobs[i].name: now_s for i in self.placed}
        done = zip(jobs, self.snapshot.done.tolist(), strict=True)
        return replace(
            self.before,
            job_nodes=MappingProxyType(self.job_nodes),
            last_run_s=MappingProxyType({**self.before.last_run_s, **ran}),
            done=MappingProxyType({job.name: each for job, each in done}),
            packed=frozenset(frozenset((jobs[i].name, jobs[j].name)) for i, j in self.packed.items()),
            now_s=now_s,
        )
