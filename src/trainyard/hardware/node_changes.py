"""Nodes that come and go at known moments, and lists of nodes as they are written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from trainyard.reading import Section
from trainyard.reading.limits import LATEST_S

__all__ = ["NodeChange", "nodes_from", "nodes_text"]

What = Literal["come", "leave", "lost"]

_NODES = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


@dataclass(frozen=True)
class NodeChange:
    """Nodes that come or go.

    Attributes
    ----------
    at_s
        When, counted as arrivals of jobs are.
    what
        ``come``: they can be used from then on, as those that are added, or given back. ``leave``: they are lent, or
        drained for maintenance; jobs on them save what they did and wait for devices. ``lost``: without a word; jobs
        lose what they did since their last checkpoint.
    nodes
        Their numbers. Nodes whose first change is that they come are not there before.
    """

    at_s: float
    what: What
    nodes: frozenset[int]

    def to_dict(self) -> dict[str, Any]:
        """Plain form, as it is written in a file."""
        return {"at_s": self.at_s, self.what: nodes_text(self.nodes)}

    @classmethod
    def read(cls, given: Section, num_nodes: int) -> NodeChange:
        """From a file: ``{at_s: 3600, leave: 0-7}``.

        Raises
        ------
        ReadingError
            If it is not written so.
        """
        given.refuse_unknown(("at_s", *get_args(What)))
        said: list[What] = [what for what in get_args(What) if what in given]
        if len(said) != 1:
            raise given.error("come", "one of come, leave and lost, with nodes such as 0-7,9")
        return cls(given.number("at_s", 0.0, LATEST_S), said[0], nodes_from(given, said[0], num_nodes))


def nodes_from(given: Section, key: str, num_nodes: int) -> frozenset[int]:
    """Numbers of nodes, written ``0-7,9`` or as one number.

    Raises
    ------
    ReadingError
        If they are not written so, or a cluster of so many nodes has not all of them.
    """
    nodes: set[int] = set()
    for part in str(given[key]).split(","):
        match = _NODES.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < num_nodes:
            raise given.error(key, f"nodes such as 0-7,9, from 0 to {num_nodes - 1}")
        nodes.update(range(first, last + 1))
    return frozenset(nodes)


def nodes_text(nodes: Iterable[int]) -> str:
    """The same as text."""
    return ",".join(map(str, sorted(nodes)))
