"""Which instance a request goes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from trainyard.serve.instance import Instance
from trainyard.serve.request_state import RequestState

__all__ = ["ROUTERS", "Router", "least_requests", "round_robin"]

Router = Callable[[RequestState, Sequence[Instance]], int]
"""The number of the instance that a request goes to, of what is known of it and of all of them."""


def round_robin(request: RequestState, instances: Sequence[Instance]) -> int:
    """Each in its turn."""
    return request.request_number % len(instances)


def least_requests(request: RequestState, instances: Sequence[Instance]) -> int:
    """Where the fewest requests wait or run; of equal ones, the first."""
    return min(range(len(instances)), key=lambda number: instances[number].queues.num_requests)


ROUTERS: Mapping[str, Router] = MappingProxyType(
    {"round_robin": round_robin, "least_requests": least_requests}
)
"""All of them, by name."""
