"""Sends the answers to a request, whole or as a stream, as long as the client is there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from trainyard.serve.run.server.answer import Piece
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.documents import Documents
from trainyard.serve.run.server.generation import Generation

__all__ = ["Answering"]

_MOST_UNREAD_S = 60.0
_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class Answering(Response):
    """Answers a request; if its client goes away, what is generated for it is cancelled.

    Parameters
    ----------
    generation : what gives the answers.
    documents : writes them.
    streams : whether they are sent piece by piece.
    """

    def __init__(self, generation: Generation, documents: Documents, *, streams: bool) -> None:
        super().__init__()
        self._generation, self._documents, self._streams = generation, documents, streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serve = self._stream if self._streams else self._whole
        await _while_there(lambda: serve(scope, receive, send), receive)

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        pieces: list[Piece] = []
        async with self._generation as generation:
            while piece := await generation.next():
                pieces.append(piece)
        found = self._documents.whole(pieces, generation.num_answers, generation.usage)
        await JSONResponse(found)(scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._generation as generation:
            # What goes wrong before the first token still has a status of its own.
            piece = await generation.next()
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            try:
                for document in self._documents.first_chunks(generation.num_answers):
                    await _send_event(send, document)
                while piece:
                    for document in self._documents.chunks(piece):
                        await _send_event(send, document)
                    piece = await generation.next()
            except ApiError as error:
                await _send_event(send, error.document())
                await send({"type": "http.response.body", "body": b""})
                return
            except Exception:
                await _send_event(send, ApiError.of_server().document())
                raise
        for document in self._documents.last_chunks(generation.usage):
            await _send_event(send, document)
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _send_event(send: Send, document: dict[str, Any]) -> None:
    """Send one event; a client that reads nothing for long is let go."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    async with asyncio.timeout(_MOST_UNREAD_S):
        await send({"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": True})


async def _while_there(work: Callable[[], Awaitable[None]], receive: Receive) -> None:
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
