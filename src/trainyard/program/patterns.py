"""Patterns: one text for the addresses of many ops, or the paths of many inputs.

- In a path, ``*`` is any text within one component, and ``**`` any number of components: ``blocks.*.mlp.up.weight``.
- After the colon of an address, ``*`` is any text: ``blocks.*.mlp:*`` are all ops of the forward pass of these modules,
  and ``blocks.*.mlp:backward.*`` those of the backward pass; ``blocks.*.mlp.**:*`` has the modules within, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from trainyard.errors import TrainyardError

__all__ = ["BACKWARD", "PatternError", "in_words", "is_like", "is_op_like", "kind_of", "shortened", "spread"]

_Named = TypeVar("_Named", bound=Hashable)
_Said = TypeVar("_Said")

BACKWARD = "backward."
"""Stands before the names of ops of the backward pass."""

_ALL_FORWARD = "**:*"


class PatternError(TrainyardError, ValueError):
    """Two patterns that say different things of one tensor or op; the message names both."""


def spread(
    said: Mapping[str, Mapping[str, _Said]], find: Callable[[str], Iterable[_Named]]
) -> dict[_Named, dict[str, _Said]]:
    """What is said of each that is named. What is said of it by its own name comes before what patterns say.

    Parameters
    ----------
    said : by name or pattern, then by mesh axis or another key.
    find : what a name or pattern stands for.

    Raises
    ------
    PatternError
        If two patterns say different things.
    """
    found: dict[_Named, dict[str, _Said]] = {}
    origin: dict[tuple[_Named, str], str] = {}
    for pattern in sorted(said, key=lambda name: "*" in name):
        for name in find(pattern):
            own = found.setdefault(name, {})
            for key, value in said[pattern].items():
                first = origin.setdefault((name, key), pattern)
                if own.setdefault(key, value) != value and "*" in first:
                    where = f" on axis {key!r}" if key else ""
                    raise PatternError(
                        f"{name} is to be {own[key]}{where} as {first} has it, and {value} as {pattern} has it; leave "
                        f"one of them out, or say it of {name} by its name"
                    )
    return found


def in_words(patterns: Collection[str], most: int) -> str:
    """Addresses and patterns for a sentence: the first ``most`` of them."""
    if _ALL_FORWARD in patterns:
        return "all forward ops"
    first = sorted(patterns)[:most]
    more = f" and {len(patterns) - len(first)} more" if len(patterns) > len(first) else ""
    return ", ".join(first) + more


def kind_of(path: str) -> str:
    """A path with ``*`` in place of its numbers: modules that repeat are of one kind."""
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


def shortened(said: Mapping[str, _Said], paths: Collection[str]) -> dict[str, _Said]:
    """What is said of some of the paths, by patterns where it is said of all paths that are like them.

    Examples
    --------
    >>> shortened({"blocks.0.up": 1, "blocks.1.up": 1, "head": 2}, ["blocks.0.up", "blocks.1.up", "head", "norm"])
    {'blocks.*.up': 1, 'head': 2}
    """
    by_kind = {kind_of(path): value for path, value in said.items()}
    whole = {k for k, value in by_kind.items() if all(said.get(p) == value for p in paths if is_like(k, p))}
    return {kind_of(path) if kind_of(path) in whole else path: value for path, value in said.items()}


def is_like(pattern: str, path: str) -> bool:
    """Whether the path of a module or an input is as a pattern has it."""
    if "*" not in pattern:
        return pattern == path
    runs: list[list[str]] = [[]]
    for component in pattern.split("."):
        if component == "**":
            runs.append([])
        else:
            runs[-1].append(component)
    return _in_turn(runs, path.split(".") if path else [], _are_like)


def _are_like(patterns: Sequence[str], components: Sequence[str]) -> bool:
    return all(_in_turn(p.split("*"), c, str.__eq__) for p, c in zip(patterns, components, strict=True))


def is_op_like(pattern: str, name: str) -> bool:
    """Whether an op of a module, ``bmm.2``, is as the end of a pattern has it."""
    if pattern.startswith(BACKWARD) != name.startswith(BACKWARD):
        return False
    return _in_turn(pattern.split("*"), name, str.__eq__)


def _in_turn(
    pieces: Sequence[Sequence[Any]], whole: Sequence[Any], is_same: Callable[[Any, Any], bool]
) -> bool:
    """Whether the pieces stand in a sequence one after the other, from its begin to its end, with anything between."""
    first, last = pieces[0], pieces[-1]
    end = len(whole) - len(last)
    if len(pieces) == 1:
        return end == 0 and is_same(first, whole)
    at = len(first)
    if at > end or not is_same(first, whole[:at]) or not is_same(last, whole[end:]):
        return False
    for piece in pieces[1:-1]:
        size = len(piece)
        while at + size <= end and not is_same(piece, whole[at : at + size]):
            at += 1
        at += size
    return at <= end
