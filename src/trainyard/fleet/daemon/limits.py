"""How much clients may take of the daemon: connections, time to say what they want, and requests at once."""

from __future__ import annotations

import asyncio
import resource
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from fastapi import Request
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

from trainyard.fleet.daemon.refusal import Refusal

__all__ = ["MAX_CONNECTIONS", "ConcurrencyLimit", "body_of", "protocol", "reserve_descriptors"]

MAX_CONNECTIONS = 256
"""Connections that are open at once; more are told so and closed."""

# What the scheduler, the store and the starting of jobs need beside connections.
_RESERVED = 512
_HEADER_S, _BODY_S = 15.0, 30.0
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 5\r\nconnection: close\r\ncontent-type: application/json\r\n\r\n"
    b'{"error": "too many connections are open; ask again in some seconds"}'
)


def reserve_descriptors() -> int:
    """Raise the limit on open files as far as it goes; how many connections leave the daemon enough of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + _RESERVED
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(8, min(MAX_CONNECTIONS, soft - _RESERVED, soft // 2))


class LimitedProtocol(H11Protocol):
    """HTTP as uvicorn speaks it, with limits on how many connections there are and how long one may say and read nothing.

    Where there are too many, the one that has been silent for longest makes room; if all are being answered, the new one
    is told to come again.

    An instance is one connection; those of one server are instances of a subclass (`protocol`).
    """

    max_connections: ClassVar[int]
    header_s: ClassVar[float]
    silent: ClassVar[dict[LimitedProtocol, asyncio.TimerHandle]]  # the longest first

    _is_refused = False
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.max_connections and self.silent:
            next(iter(self.silent))._leave()
        elif len(self.connections) > self.max_connections:
            self._refuse()
            return
        self._listen()

    def _refuse(self) -> None:
        """Answer without having listened; closed at once, what the client says would make its system drop that."""
        self._is_refused = True
        self.transport.write(_BUSY)
        late = len(self.connections) > 2 * self.max_connections
        self.loop.call_later(0.0 if late else 1.0, self.transport.close)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._listen()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.header_s, self._look, self._num_unread())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_read()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        self._is_read()
        super().connection_lost(exc)

    def _listen(self) -> None:
        """Wait for a request, but not for ever."""
        self._forget()
        self.silent[self] = self.loop.call_later(self.header_s, self._leave)

    def _look(self, before: int) -> None:
        """Let a client go that has read nothing of what waits for it; it would wait for ever."""
        now = self._num_unread()
        if now >= before:
            self.transport.abort()
        else:
            self._unread = self.loop.call_later(self.header_s, self._look, now)

    def _is_read(self) -> None:
        if self._unread:
            self._unread.cancel()
        self._unread = None

    def _num_unread(self) -> int:
        return int(self.transport.get_write_buffer_size())

    def _leave(self) -> None:
        if self._unread and len(self.connections) <= self.max_connections:
            self._listen()  # it reads, if slowly
            return
        self._forget()
        self.transport.close()
        if self._num_unread():
            self.transport.abort()

    def _forget(self) -> None:
        if timer := self.silent.pop(self, None):
            timer.cancel()


def protocol(max_connections: int, header_s: float = _HEADER_S) -> type[LimitedProtocol]:
    """What a server speaks on its connections.

    Parameters
    ----------
    header_s : that a client may take until it has said what it wants, and without reading anything of the answer.
    """

    class Limited(LimitedProtocol):
        silent: ClassVar[dict[LimitedProtocol, asyncio.TimerHandle]] = {}

    Limited.max_connections, Limited.header_s = max_connections, header_s
    return Limited


async def body_of(request: Request, max_bytes: int, within_s: float = _BODY_S) -> bytes:
    """The body of a request.

    Raises
    ------
    Refusal
        If it is larger, does not come in time, or the client goes away before it has.
    """
    found = bytearray()
    parts: AsyncIterator[bytes] = request.stream()
    try:
        async with asyncio.timeout(within_s):
            async for part in parts:
                found += part
                if len(found) > max_bytes:
                    raise Refusal(413, f"a job has at most {max_bytes} bytes")
    except TimeoutError as error:
        raise Refusal(408, f"the job did not come within {within_s:g} s; send it at once") from error
    except ClientDisconnect as error:
        raise Refusal(400, f"the connection was closed after {len(found)} bytes of the job") from error
    return bytes(found)


class ConcurrencyLimit:
    """Lets some in at once; the others are told to come again."""

    def __init__(self, count: int, what: str) -> None:
        self._places, self._what = threading.BoundedSemaphore(count), what

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Within it, one place is taken.

        Raises
        ------
        Refusal
            If there is none.
        """
        if not self._places.acquire(blocking=False):
            raise Refusal(429, f"too many {self._what} at once; ask again in a second", retry_s=1)
        try:
            yield
        finally:
            self._places.release()
