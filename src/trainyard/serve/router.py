"""Routers: which replica a request goes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from trainyard.serve.instance import Instance
from trainyard.serve.request_state import RequestState

__all__ = ["ROUTERS", "Router", "least_requests", "round_robin"]

Router = Callable[[RequestState, Sequence[Instance]], int]
"""Takes a request and all instances, one for each replica, and returns the number of the one that it goes to."""


def round_robin(request: RequestState, instances: Sequence[Instance]) -> int:
    """Replicas in turn."""
    return request.request_number % len(instances)


def least_requests(request: RequestState, instances: Sequence[Instance]) -> int:
    """The replica with the fewest waiting and running requests and samples; of equal ones, the first."""
    return min(range(len(instances)), key=lambda number: instances[number].queues.num_requests)


ROUTERS: Mapping[str, Router] = MappingProxyType(
    {"round_robin": round_robin, "least_requests": least_requests}
)
"""All routers, by name."""
