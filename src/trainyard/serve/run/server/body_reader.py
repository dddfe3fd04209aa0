"""The body of a request as it comes: of a bounded size, within a bounded time."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from trainyard.serve.run.server.api_error import ApiError

__all__ = ["read_body"]

_MOST_S = 30.0


async def read_body(request: Request, most_bytes: int) -> bytes:
    """Read a body of JSON.

    Raises
    ------
    ApiError
        If it is too large, comes too slowly, or says that it is something else.
    """
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != "application/json":  # also keeps forms of other pages out, which cannot send such types
        raise ApiError(415, f"the body is {given or 'nothing'!r}; send Content-Type: application/json")
    content = bytearray()
    try:
        async with asyncio.timeout(_MOST_S):
            async for part in request.stream():
                content += part
                if len(content) > most_bytes:
                    told = f"the body has more than {most_bytes} bytes, which is allowed; shorten it"
                    raise ApiError(413, told)
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {_MOST_S:g} s; send it at once") from None
    except ClientDisconnect:
        raise ApiError(400, "the connection was closed before the end of the body") from None
    return bytes(content)
