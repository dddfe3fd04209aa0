"""Routers: which replicas a request goes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from trainyard.naming import Names
from trainyard.serve.errors import ServeError, require_at_least
from trainyard.serve.request_state import RequestState

__all__ = [
    "ROUTERS",
    "PrefillDecode",
    "RoutedInstance",
    "Router",
    "RouterEntry",
    "least_requests",
    "round_robin",
    "router_of",
]


class RoutedInstance(Protocol):
    """An instance as a router sees it, simulated or real."""

    @property
    def num_requests(self) -> int:
        """Waiting and running requests and samples."""
        ...


Router = Callable[[RequestState, Sequence[RoutedInstance]], tuple[int, ...]]
"""Takes a request and all instances, one for each replica, and returns its route: the number of the instance that it goes
to; or of the one that computes its prompt, and of the one to which it then moves.
"""


def round_robin(request: RequestState, instances: Sequence[RoutedInstance]) -> tuple[int, ...]:
    """Replicas in turn."""
    return (request.request_number % len(instances),)


def least_requests(request: RequestState, instances: Sequence[RoutedInstance]) -> tuple[int, ...]:
    """The replica with the fewest waiting and running requests and samples; of equal ones, the first."""
    return (_least(instances, range(len(instances))),)


@dataclass(frozen=True)
class PrefillDecode:
    """Send prompts to some replicas and further tokens to the others, each to the one with the fewest requests.

    Patel et al., "Splitwise: Efficient Generative LLM Inference Using Phase Splitting", ISCA 2024, section 4, without the
    pool of machines that do both.

    Attributes
    ----------
    prefill_replicas : how many compute prompts.

    Raises
    ------
    ServeError
        If there are none of one of the two.
    """

    prefill_replicas: int = 1

    def __post_init__(self) -> None:
        require_at_least(self, 1, "prefill_replicas")

    def __call__(self, request: RequestState, instances: Sequence[RoutedInstance]) -> tuple[int, ...]:
        num = self.prefill_replicas
        if num >= len(instances):
            raise ServeError(
                f"prefill_decode with {num} of {len(instances)} replicas for prompts; allowed are fewer than all: there "
                "is one for other tokens"
            )
        return _least(instances, range(num)), _least(instances, range(num, len(instances)))

    def __str__(self) -> str:
        return f"prefill_decode(prefill_replicas={self.prefill_replicas})"


def _least(instances: Sequence[RoutedInstance], numbers: Iterable[int]) -> int:
    return min(numbers, key=lambda number: instances[number].num_requests)


@dataclass(frozen=True)
class RouterEntry:
    """A router by name.

    Attributes
    ----------
    factory : makes it from its options.
    moves_requests : whether its routes have two instances, between which the KV cache of a request moves.
    """

    name: str
    factory: Callable[..., Router]
    moves_requests: bool = False


ROUTERS = (
    RouterEntry("round_robin", lambda: round_robin),
    RouterEntry("least_requests", lambda: least_requests),
    RouterEntry("prefill_decode", PrefillDecode, moves_requests=True),
)
"""All routers."""

_NAMES: Names[Router] = Names(
    ROUTERS,
    "router",
    "routers",
    "prefill_decode(prefill_replicas=2)",
    ServeError,
    (int,),
    "a whole number",
)


def router_of(text: str, *, may_move: bool = True) -> Router:
    """Read a router: its name, with options in parentheses if it has any.

    Parameters
    ----------
    may_move : whether requests may move from one instance to another, as they do in the simulator only.

    Raises
    ------
    ServeError
        If the name or an option is unknown, the text names several, or the router moves requests that may not.

    Examples
    --------
    >>> router_of("prefill_decode(prefill_replicas=2)")
    PrefillDecode(prefill_replicas=2)
    """
    found = _NAMES.parse(text, ",")
    if len(found) != 1:
        raise ServeError(f"router {text!r} names several; requests have one router")
    ((given, router),) = found
    moving = [entry.name for entry in ROUTERS if entry.moves_requests]
    if not may_move and given.partition("(")[0].strip() in moving:
        staying = ", ".join(entry.name for entry in ROUTERS if not entry.moves_requests)
        raise ServeError(
            f"router {text!r} moves requests between replicas, and real engines keep theirs; allowed are {staying}"
        )
    return router
