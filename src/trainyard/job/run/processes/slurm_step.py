"""Being one of several tasks that ``srun`` started: what Slurm says in variables."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, MutableMapping
from itertools import product, repeat
from math import prod

from trainyard.reading import shown
from trainyard.reading.arguments import WrongValueError

__all__ = ["hosts_of", "join_slurm_step"]

_MOST_HOSTS = 131_072
_MOST_DIGITS = 15
_ITEM = re.compile(r"(?:[^\[\],\s]|\[[^\[\]\s]*\])+")
_PART = re.compile(r"\[([^\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_TASKS = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?", re.ASCII)
# Below those that systems give to connections.
_FIRST_PORT, _NUM_PORTS = 20_000, 10_000


def join_slurm_step(environ: MutableMapping[str, str] = os.environ) -> None:
    """Say in the variables of ``torchrun`` which rank this process is, if it is one of several tasks of a step.

    The first host of the step is where ranks meet, unless ``MASTER_ADDR`` and ``MASTER_PORT`` say where.

    Raises
    ------
    WrongValueError
        If Slurm counts several tasks, and this process is none of them: so many like it would each train everything.
        If a variable is no number, or does not say on which node this process is.
    """
    is_task = "SLURM_STEP_ID" in environ and "SLURM_PROCID" in environ
    name = "SLURM_STEP_NUM_TASKS" if is_task and "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    num_ranks = _number(environ, name) if name in environ else 1
    if num_ranks == 1:
        return
    if not is_task:
        raise WrongValueError(
            f"{name} is {num_ranks}, and this process is none of these tasks, for srun did not start it: each like it "
            "would train everything. Start it with srun, where every task is a rank, or with torchrun; or unset "
            f"{name} to train on this machine alone"
        )
    node, rank = _number(environ, "SLURM_NODEID"), _number(environ, "SLURM_PROCID")
    tasks = list(_tasks_per_node(environ.get("SLURM_STEP_TASKS_PER_NODE", "")))
    if node >= len(tasks):
        raise WrongValueError(
            f"SLURM_STEP_TASKS_PER_NODE is {shown(environ.get('SLURM_STEP_TASKS_PER_NODE', ''))}, which says nothing of "
            f"node {node}; start the tasks with srun"
        )
    local_rank = _number(environ, "SLURM_LOCALID")
    environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(num_ranks),
        LOCAL_RANK=str(local_rank),
        LOCAL_WORLD_SIZE=str(tasks[node]),
    )
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    environ.setdefault("MASTER_ADDR", "127.0.0.1" if len(tasks) == 1 else hosts_of(nodes)[0])
    number = _number(environ, "SLURM_JOB_ID") + _number(environ, "SLURM_STEP_ID")
    environ.setdefault("MASTER_PORT", str(_FIRST_PORT + number % _NUM_PORTS))


def hosts_of(node_list: str) -> tuple[str, ...]:
    """Names of the hosts of a list as Slurm writes it, ``gpu[01-03,07],login2``, in its order.

    Raises
    ------
    WrongValueError
        If it is no such list, or has more hosts than Slurm manages.
    """
    items = [item[0] for item in _ITEM.finditer(node_list)]
    if not items or ",".join(items) != node_list:
        raise _no_list(node_list)
    hosts: list[str] = []
    for item in items:
        parts = [[text] if text else _numbered(node_list, ranges) for ranges, text in _PART.findall(item)]
        if len(hosts) + prod(map(len, parts)) > _MOST_HOSTS:
            raise _no_list(node_list)
        hosts += map("".join, product(*parts))
    return tuple(hosts)


def _numbered(node_list: str, ranges: str) -> list[str]:
    """The numbers in brackets, ``01-03,07``, as they stand in names."""
    numbers: list[str] = []
    for each in ranges.split(","):
        found = _RANGE.fullmatch(each)
        if found is None:
            raise _no_list(node_list)
        first, last = int(found[1]), int(found[2] or found[1])
        if not first <= last < first + _MOST_HOSTS - len(numbers):
            raise _no_list(node_list)
        numbers += [f"{number:0{len(found[1])}}" for number in range(first, last + 1)]
    return numbers


def _no_list(node_list: str) -> ValueError:
    return ValueError(
        f"{shown(node_list)} is no node list of Slurm with at most {_MOST_HOSTS:,} hosts, such as gpu[01-03,07],login2"
    )


def _tasks_per_node(text: str) -> Iterator[int]:
    """Numbers as Slurm writes them: ``2(x3),1``."""
    for part in text.split(","):
        found = _TASKS.fullmatch(part)
        if found is None:
            return
        yield from repeat(int(found[1]), int(found[2] or 1))


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not (text.isascii() and text.isdecimal()) or len(text) > _MOST_DIGITS:
        raise WrongValueError(
            f"{name} is {shown(text)}, allowed is a whole number; start the tasks with srun"
        )
    return int(text)
