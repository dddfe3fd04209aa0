"""Arrival times: those of the trace, or for requests that continue another one, some time after the end of that one."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from trainyard.serve.errors import ServeError
from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import Request, TracedRequest

__all__ = ["Arrival", "Arrivals"]

_INF = float("inf")


class Arrival(NamedTuple):
    """A request that arrives.

    Attributes
    ----------
    at_s : time of its arrival.
    number : unique number, in the order of the trace; the next numbers are those of its other samples.
    request_number : how many requests were read before it.
    keys : keys of the blocks of its parent's sequence with which its own begins, as far as they are known.
    """

    at_s: float
    number: int
    traced: TracedRequest
    request_number: int
    keys: tuple[Hashable, ...] = ()


class Arrivals:
    """Requests in the order of their arrival.

    Parameters
    ----------
    requests : in the order of their arrival. One that continues another comes some time after the end of that one, and so
        has no place in this order: it stands anywhere between its parent and the next request without a parent.
    """

    def __init__(self, requests: Iterator[TracedRequest]) -> None:
        self._requests = requests
        self._due: list[Arrival] = []
        self._children: dict[str, list[Arrival]] = {}
        self._num_read, self._num_sequences, self._last_s = 0, 0, 0.0
        self._ahead = self._read()

    @property
    def next_s(self) -> float:
        """Time of the next arrival; infinite if there is none."""
        due_s = self._due[0].at_s if self._due else _INF
        return min(due_s, self._ahead.at_s) if self._ahead is not None else due_s

    def pop(self) -> Arrival:
        """Remove and return the next arrival."""
        if self._ahead is None or (self._due and self._due[0].at_s <= self._ahead.at_s):
            return heapq.heappop(self._due)
        arrival = self._ahead
        self._ahead = self._read()
        return arrival

    def ended(self, state: RequestState, now_s: float) -> None:
        """Schedule the requests that continue a finished one; of several samples, they continue the given one."""
        for child in self._children.pop(state.request.name):
            keys = tuple(state.keys) if _begins_with(child.traced.request, state) else ()
            heapq.heappush(self._due, child._replace(at_s=now_s + child.at_s, keys=keys))

    def refused(self, request: Request) -> list[Arrival]:
        """Drop and return the requests that continue a refused one, directly or through others: they never arrive."""
        found = self._children.pop(request.name)
        for child in found:  # it grows meanwhile
            found.extend(self._children.pop(child.traced.request.name))
        return found

    def _read(self) -> Arrival | None:
        """The next request that continues none; those before it that do are noted."""
        for traced in self._requests:
            arrival = Arrival(traced.request.arrival_s, self._num_sequences, traced, self._num_read)
            self._num_read += 1
            self._num_sequences += traced.request.num_samples
            parent = traced.request.parent
            if traced.request.name in self._children:
                raise ServeError(
                    f"two requests that are there at once are called {traced.request.name!r}; give each a name of its own"
                )
            if not parent:
                self._check(traced.request)
                self._children[traced.request.name] = []
                return arrival
            if parent not in self._children:
                raise ServeError(
                    f"request {traced.request.name!r} continues {parent!r}, which is not there or has ended; give "
                    "those that continue a request right after it"
                )
            self._children[parent].append(arrival)
            self._children[traced.request.name] = []
        return None

    def _check(self, request: Request) -> None:
        if request.arrival_s < self._last_s:
            raise ServeError(
                f"request {request.name!r} arrives at {request.arrival_s} s, after one of {self._last_s} s; give "
                "requests in the order of their arrival"
            )
        self._last_s = request.arrival_s


def _begins_with(child: Request, parent: RequestState) -> bool:
    """Whether a request may begin with the blocks of another's prompt: these, adapter and salt are equal."""
    one, other = child.prefix, parent.request.prefix
    if one is None or other is None or one.tokens_per_block != other.tokens_per_block or child.prompt_ids:
        return False
    if (child.adapter, child.cache_salt) != (parent.request.adapter, parent.request.cache_salt):
        return False
    num = parent.request.prompt_tokens // other.tokens_per_block
    return num > 0 and child.prompt_tokens >= parent.num_tokens and one.keys[:num] == other.keys[:num]
