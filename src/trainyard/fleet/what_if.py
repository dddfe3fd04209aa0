"""What if: other nodes, a time limit of jobs, priorities by size and quotas of accounts, beside the present.

A what-if is one or several changes with spaces between::

    +4x8xH100                      add nodes, as a cluster is written; to a cluster with partitions, +4x8xH100:gpu
    -2x8xV100                      take nodes away, the last ones of that kind
    -2x8xV100+2x8xA100             swap nodes
    limit=24h                      end jobs that have had devices for that time
    priority=1:10,2-8:5            priorities by the number of devices that a job asks for
    quota=vision:8,*:16            most devices that an account has at once; * is each account that is not named
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from trainyard.fleet.errors import FleetError
from trainyard.fleet.node_difference import NodeDifference, with_nodes
from trainyard.fleet.policy import Policy
from trainyard.fleet.prices import check_prices
from trainyard.fleet.quotas import Quotas, WithQuotas
from trainyard.fleet.workload.job import Job
from trainyard.hardware.cluster import Cluster
from trainyard.reading import ReadingError, shown
from trainyard.reading.arguments import name_list
from trainyard.reading.limits import LONGEST_S
from trainyard.reading.quantities import parse_seconds

__all__ = ["WhatIf", "parse_what_if", "what_ifs_of"]

_ALLOWED = (
    "allowed are nodes such as +4x8xH100, -2x8xV100 or -2x8xV100+2x8xA100, limit=24h, priority=1:10,2-8:5 "
    "and quota=vision:8,*:16, with spaces between several"
)
_QUOTA = re.compile(r"(.+):(\d{1,9})", re.ASCII)
_PRIORITY = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?:(-?\d{1,9})", re.ASCII)


@dataclass(frozen=True)
class SizePriority:
    """The priority of jobs that ask for so many devices: from ``first`` to ``last``."""

    first: int
    last: int
    priority: int


@dataclass(frozen=True)
class WhatIf:
    """What is otherwise than at present.

    Attributes
    ----------
    text : as it was given, with single spaces.
    nodes : that are added or taken away, one after the other.
    limit_s : time with devices after which every job is ended; None for no such limit.
    priorities : by size; of the entries that name a size the first counts, and other jobs keep their own.
    quotas : of accounts; None for none.
    """

    text: str
    nodes: tuple[NodeDifference, ...] = ()
    limit_s: float | None = None
    priorities: tuple[SizePriority, ...] = ()
    quotas: Quotas | None = None

    def cluster(self, present: Cluster) -> Cluster:
        """Return the cluster with other nodes.

        Raises
        ------
        FleetError
            If it has no such nodes, or what is added has no place or no price.
        """
        if not self.nodes:
            return present
        cluster = with_nodes(present, self.nodes, self.text)
        check_prices(cluster)
        return cluster

    def jobs(self, present: Sequence[Job]) -> list[Job]:
        """Return the jobs with other limits and priorities.

        Raises
        ------
        FleetError
            If a quota is of an account that none of them has.
        """
        if self.quotas is not None:
            self.quotas.check(present)
        return [self._job(job) for job in present]

    def _job(self, job: Job) -> Job:
        other: dict[str, Any] = {}
        if self.limit_s is not None:
            limits_s = (self.limit_s, job.limit_s)
            other["limit_s"] = min(limit_s for limit_s in limits_s if limit_s is not None)
            other["killed_after_s"] = self.limit_s
        for each in self.priorities:
            if each.first <= job.num_devices <= each.last:
                other["priority"] = each.priority
                break
        return replace(job, **other) if other else job

    def policy(self, name: str, policy: Policy) -> Policy:
        """Return a policy with quotas, or the same.

        Raises
        ------
        FleetError
            If it does not read what is otherwise, or knows no quotas.
        """
        if self.priorities and "priority" not in policy.needs:
            raise FleetError(
                f"{name} does not read priorities, so that other ones change nothing; take a policy that does, such as "
                'hived or one of your own that needs "priority"'
            )
        return policy if self.quotas is None else WithQuotas(policy, self.quotas, name)


def what_ifs_of(given: str | Sequence[str]) -> tuple[WhatIf, ...]:
    """Read what-ifs: a list of them, or text with a ``;`` between several; each counts once.

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
    """Read one what-if; see the module.

    Raises
    ------
    FleetError
        If it cannot be read; the message says what is allowed.

    Examples
    --------
    >>> parse_what_if("+4x8xH100 limit=24h").limit_s
    86400.0
    """
    nodes, settings = list[NodeDifference](), dict[str, Any]()
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
    return WhatIf(
        " ".join(words),
        tuple(nodes),
        settings.get("limit"),
        settings.get("priority", ()),
        settings.get("quota"),
    )


def _nodes(word: str, text: str) -> Iterable[NodeDifference]:
    """Read nodes that are added or taken away, one after the other."""
    parts = re.split(r"(?<=.)(?=[+-]\d+x)", word)
    return [NodeDifference.parse(part, text) for part in parts]


def _limit(value: str, text: str) -> float:
    try:
        limit_s = parse_seconds(value)
    except ReadingError as error:
        raise FleetError(f"what-if {shown(text)}: limit: {error}") from None
    if limit_s > LONGEST_S:
        raise FleetError(f"what-if {shown(text)}: limit is {value}; allowed is at most {LONGEST_S:g}s")
    return limit_s


def _priorities(value: str, text: str) -> tuple[SizePriority, ...]:
    found = []
    for part in value.split(","):
        match = _PRIORITY.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or not 1 <= first <= last:
            raise FleetError(
                f"what-if {shown(text)}: priority {shown(part)} is not DEVICES:PRIORITY or FROM-TO:PRIORITY; write for "
                "example priority=1:10,2-8:5"
            )
        found.append(SizePriority(first, last, int(match[3])))
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


_SETTINGS: Mapping[str, Callable[[str, str], Any]] = MappingProxyType(
    {"limit": _limit, "priority": _priorities, "quota": _quotas}
)
"""How the value of each setting is read, by its name; the second argument is the what-if, for errors."""
