"""The results of a simulation, request by request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import Request

__all__ = ["Refused", "Results", "Served"]

Floats = NDArray[np.float64]


class Served(NamedTuple):
    """A finished request; of one that trains, there is no first token (NaN).

    Attributes
    ----------
    request : what its client asked for, without the tokens or blocks of the prompt.
    arrival_s : time of its arrival.
    output_tokens : tokens generated for it, by all samples together.
    scheduled_s, first_token_s, finished_s : times of its first admission, and of its first and last token.
    num_preemptions : how often it, or a sample of it, lost its blocks on the device.
    cached_tokens : prefix hits: prompt tokens that were in the KV cache at its first admission.
    by_sample : output tokens of each sample, if there are several.
    """

    request: Request
    arrival_s: float
    output_tokens: int
    scheduled_s: float
    first_token_s: float
    finished_s: float
    num_preemptions: int
    cached_tokens: int
    by_sample: tuple[int, ...] = ()

    @classmethod
    def of(cls, state: RequestState) -> Served:
        """The record of a request whose samples have all finished."""
        all_of_it, first = state.sequences, state.sequences[0]
        by_sample = tuple(each.num_generated for each in all_of_it)
        return cls(
            _without_prompt(state.request),
            state.arrival_s,
            sum(by_sample),
            min(each.scheduled_s for each in all_of_it),
            min(each.first_token_s for each in all_of_it),
            max(each.finished_s for each in all_of_it),
            sum(each.num_preemptions for each in all_of_it),
            first.num_cached_tokens,
            by_sample if len(by_sample) > 1 else (),
        )

    @property
    def ttft_s(self) -> float:
        """Time from its arrival to its first token."""
        return self.first_token_s - self.arrival_s

    @property
    def longest_tokens(self) -> int:
        """Output tokens of its longest sample."""
        return max(self.by_sample, default=self.output_tokens)

    @property
    def tpot_s(self) -> float:
        """Mean time per token after the first, of the longest sample; 0 if there is only one token."""
        return (self.finished_s - self.first_token_s) / max(self.longest_tokens - 1, 1)

    @property
    def e2e_s(self) -> float:
        """Time from its arrival to its last token."""
        return self.finished_s - self.arrival_s

    @property
    def meets_objectives(self) -> bool:
        """Whether it met all of its objectives."""
        wanted = self.request
        if wanted.trains:
            return self.e2e_s <= wanted.e2e_s
        return self.ttft_s <= wanted.ttft_s and self.tpot_s <= wanted.tpot_s and self.e2e_s <= wanted.e2e_s


class Refused(NamedTuple):
    """A request that was not served, and why."""

    request: Request
    why: str


def _without_prompt(request: Request) -> Request:
    """The same request, which does not say what its prompt has."""
    if not request.prompt_ids and request.prefix is None:
        return request
    return replace(request, prompt_ids=(), prefix=None)


@dataclass
class Results:
    """The results of all requests of a run.

    Of each request a few numbers and names are kept, some 600 bytes, of which percentiles and tables are made; the tokens
    and blocks of its prompt are not.

    Attributes
    ----------
    served : finished requests that were answered, in the order in which they finished.
    trained : finished requests that trained an adapter, in the order in which they finished.
    refused : refused requests, in the order of refusal.
    num_cut : number of requests of which the longest sequence that is served cuts an answer.
    num_steps : steps of all replicas.
    busy_s : seconds in which a replica computed, summed over all replicas.
    """

    served: list[Served] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    num_steps: int = 0
    busy_s: float = 0.0
    num_cut: int = 0
    trained: list[Served] = field(default_factory=list)

    def finish(self, state: RequestState) -> None:
        """Record a finished request."""
        (self.trained if state.request.trains else self.served).append(Served.of(state))

    def refuse(self, request: Request, why: str) -> None:
        """Record a refused request."""
        self.refused.append(Refused(_without_prompt(request), why))

    def of_served(self, what: Callable[[Served], float]) -> Floats:
        """Return a number of each finished request."""
        return np.array([what(each) for each in self.served], np.float64)

    @property
    def refused_all(self) -> str:
        """Why no request was served, in the words of the first refusal; "" if one was."""
        if self.served or self.trained or not self.refused:
            return ""
        num, why = len(self.refused), self.refused[0].why
        return (
            f"all {num:,} requests are refused; the first: {why}"
            if num > 1
            else f"the request is refused: {why}"
        )

    @property
    def end_s(self) -> float:
        """When the last request finished."""
        return max((each.finished_s for each in (*self.served, *self.trained)), default=0.0)

    def by_client(self) -> dict[str, Results]:
        """The results of each client; ``num_steps`` and ``busy_s`` are 0 there, as steps are shared."""
        found: dict[str, Results] = {}
        for served in self.served:
            found.setdefault(served.request.client, Results()).served.append(served)
        for refused in self.refused:
            found.setdefault(refused.request.client, Results()).refused.append(refused)
        return found

    @property
    def num_preemptions(self) -> int:
        """Preemptions of all requests."""
        return sum(each.num_preemptions for each in self.served)
