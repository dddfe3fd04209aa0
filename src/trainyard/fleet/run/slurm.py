"""Slurm as a backend: a job is a batch job, and all its devices are had at once or none.

Slurm decides nothing here: the nodes and devices are those of the grant, and a policy that takes them away does so
through the job's folder or with ``scancel``. Slurm may still do as its administrators want: a job that it preempts and
requeues starts again with the same script and goes on from its newest checkpoint, as soon as its nodes are free: the
backend takes away the two minutes for which Slurm puts it off. Which account, partition and time limit jobs have is said
to Slurm as always, in the variables ``SBATCH_ACCOUNT``, ``SBATCH_PARTITION`` and so on.

A policy that takes devices away does not have Slurm requeue the job. That would end the processes in the middle of a
step, so that all since the last checkpoint is done again; and the job would have the same nodes and as many devices,
where policies move and resize it. Instead it writes a checkpoint after its step and ends, which frees the devices, and is
a new batch job when it gets others. Nor is it suspended: a suspended job keeps its GPUs.

Jobs that share devices ask for slots and not for GPUs: one slot for each device, of a resource that Slurm counts on every
node and that stands for the right of one job to be on one device. Each process is told which GPU of its node is its own.
All jobs of such a backend do so, those that are alone on their devices too, because a partner may come while they run,
and Slurm changes nothing about a job that runs; how large a share is, it need not know. It sees to it that no node has
more jobs than slots, and that the slots of a job are had at once.

Slurm's own shards of GPUs do not do for this, as tried with 22.05. Those of a job on a node all come from one GPU, the
first that has room: a gang would have one for all its processes, and jobs would be put together that are no partners.
Shards of a named GPU can be asked for where each has a GRES type of its own, of several GPUs too; but the processes of
such a job see the last of them only. Components of a heterogeneous job, one for each GPU, do not start on the same node.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from trainyard.fleet.errors import FleetError
from trainyard.fleet.run.asked import Asked
from trainyard.fleet.run.backend import USUAL_OPTIONS, BackendOptions, Progress
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.managed_backend import ManagedBackend
from trainyard.fleet.run.ranks import Ranks
from trainyard.fleet.run.slurm_nodes import SlurmNode, require_slots, slurm, slurm_nodes, unusable
from trainyard.fleet.workload.job import Grant
from trainyard.hardware.cluster import Cluster, Node
from trainyard.processes.heap import heap_environment

__all__ = ["SlurmBackend"]

_MIB = 2**20
_QUEUE_FRESH_S, _NODES_FRESH_S = 0.5, 2.0
# Nodes refuse a requeued job, and Slurm ends it then, if it starts in the second in which they ended it.
_REFUSED_S = 2.0
# What scancel says of a job that is over.
_ENDED = re.compile("Invalid job id specified|already completing or completed")


class SlurmBackend(ManagedBackend):
    """Trains jobs as batch jobs of Slurm.

    Parameters
    ----------
    cluster, folder, options : see `DirectoryBackend`. The nodes of the cluster are, in order, those of Slurm:
        ``slurm_cluster()``, or a smaller one.
    nodes : of Slurm; ``slurm_nodes()`` if they are not given.

    Raises
    ------
    FleetError
        If there is no Slurm, or it has not the devices of the cluster, or not the slots.
    """

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        options: BackendOptions = USUAL_OPTIONS,
        *,
        nodes: Sequence[SlurmNode] | None = None,
    ) -> None:
        self._nodes = tuple(nodes or slurm_nodes())
        if options.shares:
            require_slots(self._nodes[: len(cluster.nodes)])
        super().__init__(cluster, folder, options, self._nodes, "Slurm")
        self._queue = Asked(_queue, _QUEUE_FRESH_S)
        names = [node.name for node in self._nodes[: len(cluster.nodes)]]
        self._away = Asked(partial(unusable, names), _NODES_FRESH_S)
        # When jobs that Slurm puts off were first seen so, or told to start.
        self._put_off_s: dict[str, float] = {}

    def jobs_per_device(self, node: int) -> int:
        return self._nodes[node].slots if self.shares else 1

    def launch(self, name: str, directory: JobDirectory, grant: Grant) -> None:
        addresses = {number: node.address for number, node in enumerate(self._nodes)}
        parts = [
            (self._nodes[node], ranks, self.own(node, ranks.count, grant))
            for node, ranks in self.ranks(grant, addresses).items()
        ]
        slurm(*submission(directory, parts), given=script(directory, parts))
        self._queue.forget()

    def is_over(self, name: str) -> bool:
        batch = self._batch(name)
        return not batch.numbers and set(batch.ending) <= self._let_go(name)

    def is_suspended(self, name: str) -> bool:
        return self._batch(name).suspended

    def away(self) -> frozenset[int]:
        lost = self._away.answer()
        return frozenset(n for n in range(len(self.cluster.nodes)) if self._nodes[n].name in lost)

    def progress(self, name: str) -> Progress:
        self._hurry(name)
        return super().progress(name)

    def _hurry(self, name: str) -> None:
        """Have a job that was requeued start when its nodes are free: it holds its devices, and nobody else has them."""
        put_off, now_s = self._batch(name).put_off, time.monotonic()
        if not put_off:
            self._put_off_s.pop(name, None)
        elif now_s > self._put_off_s.setdefault(name, now_s) + _REFUSED_S:
            self._put_off_s[name] = now_s
            for number in put_off:
                with suppress(FleetError):  # it has started or ended meanwhile, or is tried again
                    slurm("scontrol", "update", f"jobid={number}", "starttime=now")
            self._queue.forget()

    def leave(self, name: str, is_lost: bool = False) -> None:
        """Have a job leave, as all backends do; a job that Slurm has not started yet leaves at once."""
        if not is_lost and (numbers := self._batch(name).numbers):
            _cancel(numbers, "--state=PENDING")
            self._queue.forget()
        super().leave(name, is_lost)

    def kill(self, name: str) -> None:
        if numbers := self._batch(name).numbers:
            _cancel(numbers)
            self._queue.forget()

    def let_go(self, name: str) -> None:
        batch = self._batch(name)
        if numbers := [*batch.numbers, *batch.ending]:
            # First noted, because a node that is gone never says that the job is over there; kept for the next backend.
            self._let_go_file(name).write_text("\n".join({*self._let_go(name), *numbers}))
            _cancel(numbers)
            self._queue.forget()

    def _let_go(self, name: str) -> frozenset[str]:
        """Batch jobs that were cancelled, and of which nothing more is to be heard."""
        file = self._let_go_file(name)
        return frozenset(file.read_text().split()) if file.exists() else frozenset()

    def _let_go_file(self, name: str) -> Path:
        return self.directory(name).path / "slurm-cancelled"

    def _batch(self, name: str) -> _Batch:
        return self._queue.answer().get(str(self.directory(name).path), _Batch())


@dataclass(frozen=True)
class _Batch:
    """The batch jobs that Slurm has of one of ours.

    Attributes
    ----------
    numbers : of those that wait or run.
    ending : of those that are over but for what nodes have not said yet, which one that is gone never will.
    put_off : of all components of one that waits, and is not to begin before some time.
    suspended : whether one is not running: it waits in the queue, or was suspended.
    """

    numbers: tuple[str, ...] = ()
    ending: tuple[str, ...] = ()
    put_off: tuple[str, ...] = ()
    suspended: bool = False


def _queue() -> dict[str, _Batch]:
    """This user's jobs, by the folder that is their comment.

    Raises
    ------
    FleetError
        If Slurm does not answer.
    """
    found: dict[str, list[_Row]] = {}
    for line in slurm("squeue", "--noheader", "--me", "--format=%i|%T|%r|%k").splitlines():
        number, state, reason, comment = line.split("|", 3)
        found.setdefault(comment, []).append(_Row(number, state, reason))
    return {comment: _batch(rows) for comment, rows in found.items()}


class _Row(NamedTuple):
    """A component of a job, as Slurm lists it."""

    number: str
    state: str
    reason: str

    @property
    def whole(self) -> str:
        """Number of the job that it is a component of."""
        return self.number.partition("+")[0]


def _batch(rows: Sequence[_Row]) -> _Batch:
    """The batch jobs of one of ours."""
    late = {row.whole for row in rows if row.reason == "BeginTime"}
    late -= {row.whole for row in rows if row.state != "PENDING"}
    return _Batch(
        tuple(sorted({row.whole for row in rows if row.state != "COMPLETING"})),
        tuple(sorted({row.whole for row in rows if row.state == "COMPLETING"})),
        tuple(row.number for row in rows if row.whole in late),
        any(row.state not in ("RUNNING", "COMPLETING") for row in rows),
    )


def _cancel(numbers: Sequence[str], *options: str) -> None:
    """Cancel batch jobs; those that have ended since they were seen in the queue are none to worry about.

    Raises
    ------
    FleetError
        If Slurm does not do it.
    """
    try:
        slurm("scancel", *options, *numbers)
    except FleetError as error:
        if not all(_ENDED.search(line) for line in str(error).splitlines()):
            raise


Part = tuple[SlurmNode, Ranks, Node]
"""A node of a job, its ranks there, and what it has of the node."""


def submission(directory: JobDirectory, parts: Sequence[Part]) -> list[str]:
    """The command that submits a job: nodes with equally many devices are one component, several start together.

    Parameters
    ----------
    parts : the nodes of the job.
    """
    output = str(directory.logs / "slurm.log").replace("%", "%%")
    command = [
        "sbatch", "--parsable", f"--job-name={directory.path.name}", f"--comment={directory.path}", "--requeue",
        "--open-mode=append", f"--output={output}",
    ]  # fmt: skip
    for number, (needs, nodes) in enumerate(_components(parts).items()):
        command += [":"] * (number > 0)
        command += [f"--nodes={len(nodes)}", "--ntasks-per-node=1", f"--nodelist={','.join(nodes)}", *needs]
    return command


def script(directory: JobDirectory, parts: Sequence[Part]) -> str:
    """The batch script of a job: a step for each node, and the first that fails ends all.

    A failure that is noted from before Slurm requeued the job is no longer one.
    """
    components = _components(parts)
    lines = [
        "#!/bin/bash",
        shlex.join(["rm", "-f", str(directory.failure), str(directory.killing), str(directory.repeating)]),
    ]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in heap_environment().items()]
    for node, ranks, own in parts:
        needs = _needs(node, ranks, own)
        step = ["srun", "--nodes=1", "--ntasks=1", f"--nodelist={node.name}"]
        step += [need for need in needs if need.startswith("--cpus-per-task")]
        if len(components) > 1:
            step.append(f"--het-group={list(components).index(needs)}")
        # Slurm gives the same script to a job that it requeues, whose processes meet in another file.
        step += replace(ranks, meeting="").command(directory.path)
        lines.append(f'{shlex.join(step)} --meeting="{ranks.meeting}-${{SLURM_RESTART_COUNT:-0}}" &')
    lines.append(f"for _ in $(seq {len(parts)}); do wait -n || exit 1; done")
    return "\n".join(lines) + "\n"


def _components(parts: Sequence[Part]) -> dict[tuple[str, ...], list[str]]:
    """Names of the nodes by what the job needs there."""
    found: dict[tuple[str, ...], list[str]] = {}
    for node, ranks, own in parts:
        found.setdefault(_needs(node, ranks, own), []).append(node.name)
    return found


def _needs(node: SlurmNode, ranks: Ranks, own: Node) -> tuple[str, ...]:
    """Return Slurm's options for a job on a node; ranks that know their devices may share them, and ask for slots."""
    gres, memory_mib = "slot" if ranks.devices else node.gres, int(own.memory_bytes / _MIB)
    needs = (f"--gres={gres}:{ranks.count}", f"--cpus-per-task={max(1, int(own.cpus))}")
    return (*needs, f"--mem={memory_mib}M") if memory_mib else needs
