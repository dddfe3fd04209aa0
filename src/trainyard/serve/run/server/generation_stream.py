"""Stream of generated tokens for one request of the API, as they come from an engine."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from trainyard.serve.errors import ServeError
from trainyard.serve.requests.request import Request
from trainyard.serve.run.outputs import NewToken, TokenTimes
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.choice_decoder import ChoiceDecoder, ChoiceDelta, ScoredPrompt
from trainyard.serve.run.server.engine_requests import EngineRequests
from trainyard.serve.run.server.hosted_model import HostedModel
from trainyard.serve.run.server.metrics import AnswerMeasurements, Metrics
from trainyard.serve.run.server.queue_limit import QueueLimit

__all__ = ["GenerationStream", "Usage"]


@dataclass
class Usage:
    """Tokens that a request used.

    Attributes
    ----------
    prompt_tokens, completion_tokens : of all prompts, and of all choices so far.
    cached_tokens : of the prompts, those that were in the KV cache.
    """

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0


class _Sample:
    """Counts the tokens of one answer, and when they came."""

    def __init__(self) -> None:
        self._num, self._before_s = 0, math.nan
        self._first = self._last = TokenTimes()

    def take(self, new: NewToken, now_s: float) -> float | None:
        """Take the next token; return the time since the token before it, or None for the first."""
        since_s = now_s - self._before_s if self._num else None
        if not self._num:
            self._first = new.times
        self._last, self._before_s = new.times, now_s
        self._num += 1
        return since_s

    def measurements(self, request: Request, whole_s: float) -> AnswerMeasurements:
        """Return the numbers of tokens and times of the answer, at its end.

        Parameters
        ----------
        whole_s : from its request until now.
        """
        first, last = self._first, self._last
        return AnswerMeasurements(
            request.prompt_tokens,
            self._num,
            request.max_tokens,
            whole_s,
            first.scheduled_s - first.arrival_s,
            first.generated_s - first.scheduled_s,
            last.generated_s - first.generated_s,
        )


class GenerationStream:
    """Lets an engine generate, within ``async with``; at its end, what still runs is cancelled.

    Parameters
    ----------
    model : that generates.
    given : what is to be generated.
    queue : where the requests wait until they have a token.
    deadline_s : for all choices together; infinite for none.

    Raises
    ------
    ApiError
        If there is no room in the queue; also by `next`.
    """

    def __init__(
        self,
        model: HostedModel,
        given: EngineRequests,
        queue: QueueLimit,
        metrics: Metrics,
        deadline_s: float = float("inf"),
    ) -> None:
        self._model, self._given, self._queue, self._metrics = model, given, queue, metrics
        self._deadline_s, self._began_s = deadline_s, time.monotonic()
        self._found: asyncio.Queue[ChoiceDelta | Exception] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting = {request.name: request for request in given.requests}
        self._replicas = dict.fromkeys(self._waiting, 0)
        self._has_failed = False
        self._left = set(range(self.num_choices))
        self.usage = Usage(given.num_prompt_tokens)
        queue.enter(len(given.requests), given.num_prompt_tokens)

    @property
    def num_choices(self) -> int:
        """Choices of all prompts."""
        return len(self._given.requests) * self._given.num_samples

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        if self._deadline_s < float("inf"):
            self._timer = loop.call_later(self._deadline_s, self._expire)
        self._tasks = [
            asyncio.create_task(self._run(place, request))
            for place, request in enumerate(self._given.requests)
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._deadline_s < float("inf"):
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for request in list(self._waiting.values()):
            self._leave_queue(request)
        for choice in self._left:
            reason = "error" if self._has_failed else "abort"
            self._metrics.answered(self._model.base, self._replica_of(choice), reason)

    async def next(self) -> ChoiceDelta | None:
        """The next part of any choice; None if all have ended."""
        if not self._left:
            return None
        found = await self._found.get()
        if isinstance(found, Exception):
            self._has_failed = True
            raise found
        if found.finish_reason:
            self._left.discard(found.index)
            reason = "stop" if found.finish_reason == "tool_calls" else found.finish_reason  # as vLLM has it
            self._metrics.answered(self._model.base, self._replica_of(found.index), reason)
        return found

    async def _run(self, place: int, request: Request) -> None:
        """Take the tokens of one prompt, and tell what goes wrong."""
        try:
            await self._take_tokens(place, request)
        except ServeError as error:
            self._found.put_nowait(ApiError.of_engine(error, "prompt"))
        except Exception as error:  # a defect: who waits for the answer is told, and the log has it
            self._found.put_nowait(error)

    async def _take_tokens(self, place: int, request: Request) -> None:
        given, num = self._given, request.num_samples
        decoders = [
            ChoiceDecoder(place * num + each, self._model.tokenizer, given.text, given.echoed[place])
            for each in range(num)
        ]
        scored: ScoredPrompt | None = None
        waiting = set(range(num))  # for their first token

        def is_last(new: NewToken) -> bool:
            nonlocal scored
            if new.prompt_logprobs is not None:  # comes before any token of the other samples
                scored = ScoredPrompt(request.prompt_ids, new.prompt_logprobs)
            delta = decoders[new.sample].take(new, scored if new.sample in waiting else None)
            waiting.discard(new.sample)
            if delta.says_something:
                self._found.put_nowait(delta)
            if delta.finish_reason:
                ended.add(new.sample)
            return bool(delta.finish_reason)

        ended = set[int]()
        samples = [_Sample() for _ in range(num)]
        routed = partial(self._replicas.__setitem__, request.name)
        tokens = self._model.engine.generate(
            request, given.sampling, given.text.stop_token_ids, is_last, routed=routed
        )
        async with aclosing(tokens):
            async for new in tokens:
                self._count(request, new, samples[new.sample])
                if new.sample in ended:
                    ended.discard(new.sample)
                    measurements = samples[new.sample].measurements(request, time.monotonic() - self._began_s)
                    self._metrics.ended(self._model.base, self._replicas[request.name], measurements)

    def _count(self, request: Request, new: NewToken, sample: _Sample) -> None:
        now_s, name, replica = time.monotonic(), self._model.base, self._replicas[request.name]
        if request.name in self._waiting:
            self._leave_queue(request)
            self.usage.cached_tokens += new.num_cached_tokens
            took_s, num = now_s - self._began_s, request.num_samples
            self._metrics.began(name, replica, request.prompt_tokens, new.num_cached_tokens, num, took_s)
        self._metrics.generated(name, replica, sample.take(new, now_s))
        self.usage.completion_tokens += not self._given.text.is_prompt_only

    def _replica_of(self, choice: int) -> int:
        """Return the number of the replica that serves a choice."""
        return self._replicas[self._given.requests[choice // self._given.num_samples].name]

    def _leave_queue(self, request: Request) -> None:
        del self._waiting[request.name]
        self._queue.leave(request.prompt_tokens)

    def _expire(self) -> None:
        """The deadline has come."""
        if all(task.done() for task in self._tasks):
            return
        for task in self._tasks:
            task.cancel()
        self._found.put_nowait(ApiError.of_deadline(self._deadline_s))
