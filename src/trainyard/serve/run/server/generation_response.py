"""Sends what a model generates for a request, whole or as a stream, as long as the client is there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from trainyard.serve.run.server.answer_writer import AnswerWriter
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.choice_decoder import ChoiceDelta
from trainyard.serve.run.server.generation_stream import GenerationStream

__all__ = ["GenerationResponse", "until_disconnect"]

_MOST_UNREAD_S = 60.0
_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class GenerationResponse(Response):
    """Answers a request; if its client goes away, what is generated for it is cancelled.

    Parameters
    ----------
    generation : what is sent.
    writer : writes it as JSON.
    streams : whether it is sent as it comes.
    """

    def __init__(self, generation: GenerationStream, writer: AnswerWriter, *, streams: bool) -> None:
        super().__init__()
        self._generation, self._writer, self._streams = generation, writer, streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serve = self._stream if self._streams else self._whole
        await until_disconnect(lambda: serve(scope, receive, send), receive)

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        deltas: list[ChoiceDelta] = []
        async with self._generation as generation:
            while delta := await generation.next():
                deltas.append(delta)

        def response() -> JSONResponse:
            return JSONResponse(self._writer.response(deltas, generation.num_choices, generation.usage))

        has_prompt = any(
            delta.prompt is not None for delta in deltas
        )  # a long response: many log-probabilities
        found = await asyncio.to_thread(response) if has_prompt else response()
        await found(scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._generation as generation:
            # What goes wrong before the first token still has a status of its own.
            delta = await generation.next()
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            try:
                for document in self._writer.first_chunks(generation.num_choices):
                    await _send(send, self._event(document))
                while delta:
                    # Log-probabilities of a prompt are many, and take long to write.
                    write = partial(self._events, delta)
                    for event in await asyncio.to_thread(write) if delta.prompt else write():
                        await _send(send, event)
                    delta = await generation.next()
            except ApiError as error:
                await _send(send, self._named(self._writer.error_chunk(error)))
                await send({"type": "http.response.body", "body": b""})
                return
            except Exception:
                await _send(send, self._named(self._writer.error_chunk(ApiError.of_server())))
                raise
        for document in self._writer.last_chunks(generation.usage):
            await _send(send, self._named(document))
        await send({"type": "http.response.body", "body": self._writer.end_of_stream})

    def _events(self, delta: ChoiceDelta) -> list[bytes]:
        return [self._event(document) for document in self._writer.chunks(delta)]

    def _event(self, document: dict[str, Any]) -> bytes:
        return self._named(self._writer.with_usage(document, self._generation.usage))

    def _named(self, document: dict[str, Any]) -> bytes:
        """Write an event of the stream, with its name if the API names events."""
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        name = f"event: {document['type']}\n" if self._writer.names_events else ""
        return f"{name}data: {text}\n\n".encode()


async def _send(send: Send, event: bytes) -> None:
    """Send one event; a client that reads nothing for long is let go."""
    async with asyncio.timeout(_MOST_UNREAD_S):
        await send({"type": "http.response.body", "body": event, "more_body": True})


async def until_disconnect(work: Callable[[], Awaitable[None]], receive: Receive) -> None:
    """Do something until it is done, or the client goes away."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def done() -> None:
        await work()

    working, leaving = asyncio.create_task(done()), asyncio.create_task(gone())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
        await asyncio.gather(leaving, working, return_exceptions=True)
    if not working.cancelled():
        working.result()
