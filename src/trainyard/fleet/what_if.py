"""What-ifs: the cluster is simulated as it is, and beside it with other nodes, time limits, priorities or quotas.

A what-if is one or several changes with spaces between::

    +4x8xH100                      add nodes, as a cluster is written; to a cluster with partitions, +4x8xH100:gpu
    -2x8xV100                      take nodes away, the last ones of that kind
    -2x8xV100+2x8xA100             swap nodes
    limit=24h                      end jobs that have had devices for that time
    priority=1:10,2-8:5            priorities by the number of devices that a job asks for
    quota=vision:8,*:16            most devices that an account may use at once; * is each account that is not named
    borrow=all                     accounts may use what others leave of their quotas; borrow=4: at most 4 devices each
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from trainyard.fleet.catalog import CATALOG
from trainyard.fleet.errors import FleetError
from trainyard.fleet.node_edit import NodeEdit, edit_nodes
from trainyard.fleet.policy import Policy
from trainyard.fleet.quotas import QuotaPolicy, Quotas, takes_quotas
from trainyard.fleet.workload.job import Job
from trainyard.hardware.cluster import Cluster
from trainyard.reading import ReadingError, shown
from trainyard.reading.arguments import name_list
from trainyard.reading.limits import LONGEST_S
from trainyard.reading.quantities import parse_seconds

__all__ = ["WhatIf", "parse_what_if", "parse_what_ifs"]

_ALLOWED = (
    "allowed are nodes such as +4x8xH100, -2x8xV100 or -2x8xV100+2x8xA100, limit=24h, priority=1:10,2-8:5, "
    "quota=vision:8,*:16 with borrow=all or borrow=4 beside it; several have spaces between them"
)
_QUOTA = re.compile(r"(.+):(\d{1,9})", re.ASCII)
_PRIORITY = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?:(-?\d{1,9})", re.ASCII)


@dataclass(frozen=True)
class PriorityBySize:
    """The priority of jobs that ask for ``min_devices`` to ``max_devices``."""

    min_devices: int
    max_devices: int
    priority: int


@dataclass(frozen=True)
class WhatIf:
    """Changes of a cluster and of how its jobs are scheduled; no change is the cluster as it is.

    Attributes
    ----------
    text : the changes as they were given, with single spaces.
    nodes : nodes that are added or taken away, one after the other.
    limit_s : time with devices after which every job is ended; None for no such limit.
    priorities : priorities by size; the first entry with a job's size counts, and other jobs keep their priority.
    quotas : quotas of accounts; None for none.
    """

    text: str
    nodes: tuple[NodeEdit, ...] = ()
    limit_s: float | None = None
    priorities: tuple[PriorityBySize, ...] = ()
    quotas: Quotas | None = None

    def cluster(self, present: Cluster) -> Cluster:
        """Return the cluster with the nodes added and taken away.

        Raises
        ------
        FleetError
            If the cluster has no such nodes to take away, or added nodes have no partition or no price.
        """
        return edit_nodes(present, self.nodes, self.text) if self.nodes else present

    def jobs(self, present: Sequence[Job]) -> list[Job]:
        """Return the jobs with the time limit and the priorities.

        Raises
        ------
        FleetError
            If no job has an account that a quota names.
        """
        if self.quotas is not None:
            self.quotas.check(present)
        return [self._job(job) for job in present]

    def _job(self, job: Job) -> Job:
        changed: dict[str, Any] = {}
        if self.limit_s is not None:
            own_limit_s = math.inf if job.limit_s is None else job.limit_s
            left_s = max(0.0, self.limit_s - job.ran_s)
            changed = {"limit_s": min(left_s, own_limit_s), "killed_after_s": left_s}
        for by_size in self.priorities:
            if by_size.min_devices <= job.num_devices <= by_size.max_devices:
                changed["priority"] = by_size.priority
                break
        return replace(job, **changed) if changed else job

    def policy(self, name: str, policy: Policy, jobs: Iterable[Job]) -> Policy:
        """Return a policy with the quotas, or the same policy if there are none.

        Parameters
        ----------
        jobs : all jobs of the run; `*` stands for those of their accounts that have no quota by name.

        Raises
        ------
        FleetError
            If there are priorities that the policy does not read, or quotas that it does not take.
        """
        if self.priorities and "priority" not in policy.needs:
            raise FleetError(
                f"{name} does not read priorities, so that other ones change nothing; take a policy that does, such as "
                "fifo(order='priority'), hived or one of your own that needs \"priority\""
            )
        if self.quotas is None:
            return policy
        if not takes_quotas(policy):
            names = [entry.name for entry in CATALOG if takes_quotas(entry.factory())]
            raise FleetError(
                f"{name} does more than put jobs in an order, and takes no quotas; with default options these do: "
                f"{', '.join(names)}"
            )
        return QuotaPolicy(policy, self.quotas.naming(jobs), name)


def parse_what_ifs(given: str | Sequence[str]) -> tuple[WhatIf, ...]:
    """Read what-ifs: a list of texts, or one text, with a ``;`` between several; equal ones count once.

    Raises
    ------
    WrongTypeError
        If it is neither.
    FleetError
        If one cannot be read.
    """
    texts = (given,) if isinstance(given, str) else name_list("what_if", given)
    parts = [part for text in texts for part in text.split(";")]
    return tuple(dict.fromkeys(parse_what_if(part) for part in parts))


def parse_what_if(text: str) -> WhatIf:
    """Read one what-if, in the form that `trainyard.fleet.what_if` shows.

    Raises
    ------
    FleetError
        If it cannot be read; the message says what is allowed.

    Examples
    --------
    >>> parse_what_if("+4x8xH100 limit=24h").limit_s
    86400.0
    """
    nodes, settings = list[NodeEdit](), dict[str, Any]()
    words = text.split()
    if not words:
        raise FleetError(f"a what-if is empty; {_ALLOWED}")
    for word in words:
        name, sign, value = word.partition("=")
        if word[0] in "+-":
            nodes += _nodes(word, text)
        elif not sign or name not in _SETTINGS:
            raise FleetError(f"what-if {shown(text)}: {shown(word)} is no change; {_ALLOWED}")
        elif name in settings:
            raise FleetError(f"what-if {shown(text)} says {name} twice; keep one")
        else:
            settings[name] = _SETTINGS[name](value, text)
    quotas, borrow = settings.get("quota"), settings.get("borrow")
    if borrow is not None:
        if quotas is None:
            raise FleetError(f"what-if {shown(text)}: borrow is for quotas; add quota=ACCOUNT:DEVICES")
        quotas = replace(quotas, borrow=borrow)
    limit_s, priorities = settings.get("limit"), settings.get("priority", ())
    return WhatIf(" ".join(words), tuple(nodes), limit_s, priorities, quotas)


def _nodes(word: str, text: str) -> Iterable[NodeEdit]:
    """Read a word of nodes that are added or taken away."""
    parts = re.split(r"(?<=.)(?=[+-]\d+x)", word)
    return [NodeEdit.parse(part, text) for part in parts]


def _limit(value: str, text: str) -> float:
    try:
        limit_s = parse_seconds(value)
    except ReadingError as error:
        raise FleetError(f"what-if {shown(text)}: limit: {error}") from None
    if limit_s > LONGEST_S:
        raise FleetError(f"what-if {shown(text)}: limit is {value}; allowed is at most {LONGEST_S:g}s")
    return limit_s


def _priorities(value: str, text: str) -> tuple[PriorityBySize, ...]:
    found = []
    for part in value.split(","):
        match = _PRIORITY.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or not 1 <= first <= last:
            raise FleetError(
                f"what-if {shown(text)}: priority {shown(part)} is not DEVICES:PRIORITY or FROM-TO:PRIORITY; write for "
                "example priority=1:10,2-8:5"
            )
        found.append(PriorityBySize(first, last, int(match[3])))
    return tuple(found)


def _quotas(value: str, text: str) -> Quotas:
    by_account = dict[str, int]()
    for part in value.split(","):
        match = _QUOTA.fullmatch(part)
        if match is None or match[1] in by_account:
            raise FleetError(
                f"what-if {shown(text)}: quota {shown(part)} is not ACCOUNT:DEVICES with each account once; write for "
                "example quota=vision:8,*:16"
            )
        by_account[match[1]] = int(match[2])
    every = by_account.pop("*", None)
    return Quotas(tuple(by_account.items()), every)


def _borrow(value: str, text: str) -> float:
    if value == "all":
        return math.inf
    if not re.fullmatch(r"\d{1,9}", value, re.ASCII):
        raise FleetError(
            f"what-if {shown(text)}: borrow is {shown(value)}; allowed is a number of devices, or all"
        )
    return float(value)


_SETTINGS: Mapping[str, Callable[[str, str], Any]] = MappingProxyType(
    {"limit": _limit, "priority": _priorities, "quota": _quotas, "borrow": _borrow}
)
"""Readers of the values of settings, by name; the second argument is the what-if, for errors."""
