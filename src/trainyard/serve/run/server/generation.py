"""The answers to one request of the API, as they come from an engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from trainyard.serve.errors import ServeError
from trainyard.serve.requests.request import Request
from trainyard.serve.run.engine_client import EngineLostError
from trainyard.serve.run.outputs import NewToken
from trainyard.serve.run.server.answer import Answer, Piece
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.asked import Asked
from trainyard.serve.run.server.metrics import Metrics
from trainyard.serve.run.server.queue_limit import QueueLimit
from trainyard.serve.run.server.served_model import ServedModel

__all__ = ["Generation", "Usage"]


@dataclass
class Usage:
    """Tokens that a request used.

    Attributes
    ----------
    prompt, completion : tokens of all prompts, and of all answers so far.
    cached : tokens of the prompts that were in the KV cache.
    """

    prompt: int
    completion: int = 0
    cached: int = 0


class Generation:
    """Lets an engine generate, within ``async with``; at its end, what still runs is cancelled.

    Parameters
    ----------
    model : that answers.
    asked : what is generated.
    queue : where the requests wait until they have a token.
    deadline_s : for all answers together; infinite for none.

    Raises
    ------
    ApiError
        If there is no room in the queue; also by `next`.
    """

    def __init__(
        self,
        model: ServedModel,
        asked: Asked,
        queue: QueueLimit,
        metrics: Metrics,
        deadline_s: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model, self._asked, self._queue, self._metrics = model, asked, queue, metrics
        self._deadline_s, self._clock, self._began_s = deadline_s, clock, clock()
        self._found: asyncio.Queue[Piece | Exception] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting = {request.name: request for request in asked.requests}
        self._has_failed = False
        self.num_left = self.num_answers
        self.usage = Usage(asked.num_prompt_tokens)
        queue.enter(len(asked.requests), asked.num_prompt_tokens)

    @property
    def num_answers(self) -> int:
        """To all prompts."""
        return len(self._asked.requests) * self._asked.num_samples

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        if self._deadline_s < float("inf"):
            self._timer = loop.call_later(self._deadline_s, self._expire)
        self._tasks = [
            asyncio.create_task(self._run(place, request))
            for place, request in enumerate(self._asked.requests)
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
            self._wait_no_longer(request)
        for _ in range(self.num_left):
            self._metrics.answered(self._model.name, "error" if self._has_failed else "abort")

    async def next(self) -> Piece | None:
        """The next piece of any answer; None if all have ended."""
        if not self.num_left:
            return None
        found = await self._found.get()
        if isinstance(found, Exception):
            self._has_failed = True
            raise found
        if found.finish_reason:
            self.num_left -= 1
            self._metrics.answered(self._model.name, found.finish_reason)
        return found

    async def _run(self, place: int, request: Request) -> None:
        """Take the tokens of one prompt, and tell what goes wrong."""
        try:
            await self._take_tokens(place, request)
        except EngineLostError as error:
            self._found.put_nowait(ApiError(503, str(error), code="engine_lost", retry_s=1))
        except ServeError as error:
            self._found.put_nowait(ApiError(400, str(error), param="prompt"))
        except Exception as error:  # a defect: who waits for the answer is told, and the log has it
            self._found.put_nowait(error)
        else:
            self._metrics.ended(self._model.name, self._clock() - self._began_s)

    async def _take_tokens(self, place: int, request: Request) -> None:
        asked, num = self._asked, request.num_samples
        answers = [
            Answer(place * num + each, self._model.text, asked.stops, asked.stop_token_ids)
            for each in range(num)
        ]

        def is_last(new: NewToken) -> bool:
            piece = answers[new.sample].take(new)
            if piece.text or piece.finish_reason:
                self._found.put_nowait(piece)
            return bool(piece.finish_reason)

        before_s = [float("nan")] * num
        tokens = self._model.engine.generate(request, asked.sampling, asked.stop_token_ids, is_last)
        async with aclosing(tokens):
            async for new in tokens:
                self._count(request, new, before_s)

    def _count(self, request: Request, new: NewToken, before_s: list[float]) -> None:
        now_s, name = self._clock(), self._model.name
        if request.name in self._waiting:
            self._wait_no_longer(request)
            self.usage.cached += new.num_cached_tokens
            self._metrics.began(name, request.prompt_tokens, new.num_cached_tokens, now_s - self._began_s)
        since_s = now_s - before_s[new.sample]
        self._metrics.generated(name, since_s if since_s == since_s else None)  # NaN at the first one
        before_s[new.sample] = now_s
        self.usage.completion += 1

    def _wait_no_longer(self, request: Request) -> None:
        del self._waiting[request.name]
        self._queue.leave(request.prompt_tokens)

    def _expire(self) -> None:
        """The deadline has come."""
        if all(task.done() for task in self._tasks):
            return
        for task in self._tasks:
            task.cancel()
        told = f"the answer is not complete after {self._deadline_s:g} s, the deadline of this server; ask for less"
        self._found.put_nowait(ApiError(504, told, code="deadline"))
