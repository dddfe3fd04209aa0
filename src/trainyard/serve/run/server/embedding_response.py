"""Lets an engine embed the texts of a request, and answers with the embeddings, as long as the client is there."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from functools import partial

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trainyard.serve.errors import ServeError
from trainyard.serve.requests.request import Request
from trainyard.serve.run.outputs import Floats
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.embedding_requests import EmbeddingRequest
from trainyard.serve.run.server.generation_response import until_disconnect
from trainyard.serve.run.server.hosted_model import HostedModel
from trainyard.serve.run.server.metrics import Metrics
from trainyard.serve.run.server.queue_limit import QueueLimit

__all__ = ["EmbeddingResponse"]


class EmbeddingResponse(Response):
    """Answers a request for embeddings; if its client goes away, what is not embedded is cancelled.

    Parameters
    ----------
    model : that gives them.
    body : how they are written, and of how many numbers each is.
    requests : one for each text.
    queue : where the requests wait.
    deadline_s : for all texts together; infinite for none.

    Raises
    ------
    ApiError
        If there is no room in the queue; also while it answers.
    """

    def __init__(
        self,
        model: HostedModel,
        body: EmbeddingRequest,
        requests: tuple[Request, ...],
        queue: QueueLimit,
        metrics: Metrics,
        deadline_s: float = float("inf"),
    ) -> None:
        super().__init__()
        self._model, self._body, self._requests = model, body, requests
        self._queue, self._metrics, self._deadline_s = queue, metrics, deadline_s
        self._began_s = time.monotonic()
        self._waiting = {request.name: request for request in requests}
        self._replicas = dict.fromkeys(self._waiting, 0)
        queue.enter(len(requests), sum(each.prompt_tokens for each in requests))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = "abort"
        try:
            await until_disconnect(lambda: self._answer(scope, receive, send), receive)
        except Exception:
            reason = "error"
            raise
        finally:
            for request in list(self._waiting.values()):
                self._leave_queue(request)
                self._metrics.answered(self._model.name, self._replicas[request.name], reason)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        tasks = [asyncio.create_task(self._embed(request)) for request in self._requests]
        limit_s = None if self._deadline_s == float("inf") else self._deadline_s
        try:
            async with asyncio.timeout(limit_s):
                vectors = await asyncio.gather(*tasks)
        except TimeoutError:
            raise ApiError.of_deadline(self._deadline_s) from None
        except ServeError as error:
            raise ApiError.of_engine(error, "input") from error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        content = await run_in_threadpool(self._document, vectors)
        await Response(content, media_type="application/json")(scope, receive, send)

    async def _embed(self, request: Request) -> Floats:
        vector = await self._model.engine.embed(request, partial(self._replicas.__setitem__, request.name))
        self._leave_queue(request)
        took_s, replica = time.monotonic() - self._began_s, self._replicas[request.name]
        self._metrics.embedded(self._model.name, replica, request.prompt_tokens, took_s)
        return vector

    def _leave_queue(self, request: Request) -> None:
        del self._waiting[request.name]
        self._queue.leave(request.prompt_tokens)

    def _document(self, vectors: list[Floats]) -> bytes:
        """The answer as JSON, written vector by vector, so that other threads run between."""
        used = sum(request.prompt_tokens for request in self._requests)
        usage = json.dumps({"prompt_tokens": used, "total_tokens": used})
        data = ",".join(self._item(place, vector) for place, vector in enumerate(vectors))
        name = json.dumps(self._model.name)
        return f'{{"object":"list","data":[{data}],"model":{name},"usage":{usage}}}'.encode()

    def _item(self, place: int, vector: Floats) -> str:
        form = self._model.require_embeddings()
        if self._body.dimensions is not None:
            vector = vector[: self._body.dimensions]
            if form.is_normalized and len(vector) < form.width:
                vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
        embedding: str | list[float] = vector.tolist()
        if self._body.encoding_format == "base64":
            embedding = base64.b64encode(vector.astype("<f4").tobytes()).decode()
        return json.dumps({"object": "embedding", "index": place, "embedding": embedding}, allow_nan=False)
