"""Read the bodies of requests: of bounded size, within bounded time, and few large ones at once."""

from __future__ import annotations

import asyncio

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.api_requests import Body, read_request
from trainyard.serve.run.server.json_body import INLINE_BYTES

__all__ = ["BodyReader"]

_RECEIVE_S = 30.0
_MOST_PARSED = 2
_MOST_HELD_BYTES = 256 * 2**20
_RETRY_AFTER_S = 1


class BodyReader:
    """Reads the bodies of all requests of a server.

    Large bodies are parsed and validated in threads, two at a time, so that other requests are answered meanwhile and
    memory stays bounded.

    Parameters
    ----------
    most_bytes : largest body.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._held_bytes = most_bytes, 0
        self._parsing = asyncio.Semaphore(_MOST_PARSED)

    async def read(self, request: Request, kind: type[Body]) -> Body:
        """Read the body of a request.

        Raises
        ------
        ApiError
            If the body is too large, comes too slowly, has another content type, or is no valid request.
        """
        given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if given != "application/json":  # also refuses forms of other web pages, which cannot send this type
            raise ApiError(
                415, f"the body is {given[:100] or 'nothing'!r}; send Content-Type: application/json"
            )
        content = bytearray()
        try:
            await self._receive(request, content)
            if len(content) <= INLINE_BYTES:
                return read_request(kind, content)
            async with self._parsing:
                return await run_in_threadpool(read_request, kind, content)
        finally:
            self._held_bytes -= len(content)

    async def _receive(self, request: Request, content: bytearray) -> None:
        """Append the parts of the body to ``content`` as they come."""
        try:
            async with asyncio.timeout(_RECEIVE_S):
                async for part in request.stream():
                    content += part
                    self._held_bytes += len(part)
                    if len(content) > self._most_bytes:
                        told = f"the body has more than {self._most_bytes} bytes, the most that is allowed; shorten it"
                        raise ApiError(413, told)
                    if self._held_bytes > _MOST_HELD_BYTES and len(content) > INLINE_BYTES:
                        told = "too many large requests come at once; send the request again later"
                        raise ApiError(503, told, code="busy", retry_after_s=_RETRY_AFTER_S)
        except TimeoutError:
            raise ApiError(408, f"the body did not come within {_RECEIVE_S:g} s; send it at once") from None
        except ClientDisconnect:
            raise ApiError(400, "the connection was closed before the end of the body") from None
