"""Requests are sent at their times, whatever the server does."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import httpx2
import numpy as np

from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.run.bench.request_format import RequestFormat, check_requests
from trainyard.serve.run.bench.streamed_response import RequestFailure, send_request
from trainyard.serve.run.bench.target import Target, detect_format
from trainyard.serve.run.open_files import allow_open_files

__all__ = ["BenchProgress", "BenchRun", "RequestResult", "generate_load"]

_MOST_FILES = 65536


@dataclass(frozen=True, slots=True, eq=False)
class RequestResult:
    """A request of a run, and what became of it. Times are seconds from the beginning of the run.

    Attributes
    ----------
    request : of the trace.
    wanted_tokens : of its answer, in the trace.
    due_s : when it was to be sent.
    sent_s : when it was.
    prompt_tokens : by the count of the server, else of the trace.
    output_tokens : by the count of the server, else one for each part of the answer that has text.
    token_times_s : when these parts came.
    end_s : when the last part came.
    failure : None if it was answered; times and tokens of others say nothing.
    """

    request: Request
    wanted_tokens: int
    due_s: float
    sent_s: float
    prompt_tokens: int
    output_tokens: int
    token_times_s: array[float]
    end_s: float
    failure: RequestFailure | None

    @property
    def lateness_s(self) -> float:
        """From when it was to be sent to when it was."""
        return self.sent_s - self.due_s

    @property
    def ttft_s(self) -> float:
        """From sending it to its first token."""
        return self.token_times_s[0] - self.sent_s

    @property
    def itl_s(self) -> list[float]:
        """Between the parts of its answer."""
        return list(np.diff(np.frombuffer(self.token_times_s)).tolist())

    @property
    def tpot_s(self) -> float:
        """Mean time for each token after the first; 0 if there is none."""
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0

    @property
    def e2e_s(self) -> float:
        """From sending it to the end of its answer."""
        return self.end_s - self.sent_s

    @property
    def meets_objectives(self) -> bool:
        """Whether it was answered within all of its objectives."""
        own = self.request
        return self.failure is None and (
            self.ttft_s <= own.ttft_s and self.tpot_s <= own.tpot_s and self.e2e_s <= own.e2e_s
        )


@dataclass(frozen=True)
class BenchRun:
    """A run of the load generator.

    Attributes
    ----------
    format : in which requests were sent.
    results : in the order of the trace.
    duration_s : from when the first request was due to the end of the last answer.
    """

    format: RequestFormat
    results: tuple[RequestResult, ...]
    duration_s: float


@dataclass
class BenchProgress:
    """Progress of a run: requests sent, answered and failed."""

    num_sent: int = 0
    num_answered: int = 0
    num_failed: int = 0


def generate_load(
    target: Target,
    requests: Sequence[TracedRequest],
    seed: int = 0,
    max_concurrency: int | None = None,
    tell: Callable[[BenchProgress], None] = lambda progress: None,
) -> BenchRun:
    """Send requests to a server, each at its time after the first, and read the answers.

    Parameters
    ----------
    requests : in the order of their arrival, one or more; each comes at a time of its own and wants one answer.
    seed : of what prompts are drawn with.
    max_concurrency : requests that are not answered at the same time; others wait before they are sent. None for any
        number.
    tell : is told whenever a request is sent or ends.

    Raises
    ------
    ServeError
        If the server takes no requests, or one of these cannot be sent. What happens to a request later is in the result.
    """
    check_requests(requests)
    allow_open_files(_MOST_FILES)  # each open request has a connection

    async def run() -> BenchRun:
        async with target.client() as client:
            format = await detect_format(target, client, requests[0].request)
            return await _Sender(target, client, format, max_concurrency, tell).send(requests, seed)

    return asyncio.run(run())


class _Sender:
    """Sends the requests of one run."""

    def __init__(
        self,
        target: Target,
        client: httpx2.AsyncClient,
        format: RequestFormat,
        max_concurrency: int | None,
        tell: Callable[[BenchProgress], None],
    ) -> None:
        self._target, self._client, self._format, self._tell = target, client, format, tell
        self._slots = nullcontext() if max_concurrency is None else asyncio.Semaphore(max_concurrency)
        self._progress = BenchProgress()
        self._began_s = 0.0

    async def send(self, requests: Sequence[TracedRequest], seed: int) -> BenchRun:
        first_s = requests[0].request.arrival_s
        bodies = self._format.bodies(requests, seed)
        tasks: list[asyncio.Task[RequestResult]] = []
        self._began_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for traced, body in zip(requests, bodies, strict=True):
                due_s = traced.request.arrival_s - first_s
                await asyncio.sleep(max(0.0, due_s - self._clock()))
                tasks.append(group.create_task(self._send(traced, body, due_s)))
        return BenchRun(self._format, tuple(task.result() for task in tasks), self._clock())

    async def _send(self, traced: TracedRequest, body: bytes, due_s: float) -> RequestResult:
        async with self._slots:
            sent_s = self._clock()
            self._progress.num_sent += 1
            self._tell(self._progress)
            response = await send_request(
                self._client, self._format.path, body, self._target.timeout_s, self._clock
            )
        if response.failure is None:
            self._progress.num_answered += 1
        else:
            self._progress.num_failed += 1
        self._tell(self._progress)
        counted = response.output_tokens
        return RequestResult(
            traced.request,
            traced.max_output_tokens,
            due_s,
            sent_s,
            traced.request.prompt_tokens if response.prompt_tokens is None else response.prompt_tokens,
            len(response.token_times_s) if counted is None else counted,
            response.token_times_s,
            response.end_s,
            response.failure,
        )

    def _clock(self) -> float:
        return time.perf_counter() - self._began_s
