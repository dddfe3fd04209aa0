"""HTTP connections: bounded in number and in the time that headers take, and without doubt about where a request ends."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["BoundedHttpProtocol"]

_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
)
_MOST_TINY_CHUNKS = 16_384
_LEAST_CHUNK_BYTES = 64  # of those beyond


class _StrictConnection(h11.Connection):
    """Also refuses a request whose end others may see elsewhere, and a body in very many tiny chunks."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER)
        self._num_chunks = self._num_bytes = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._num_chunks = self._num_bytes = 0
            names = {name for name, _ in event.headers}
            if b"transfer-encoding" in names and (b"content-length" in names or event.http_version < b"1.1"):
                raise h11.RemoteProtocolError("Transfer-Encoding beside Content-Length, or in HTTP/1.0")
        elif isinstance(event, h11.Data):
            self._num_chunks += event.chunk_start
            self._num_bytes += len(event.data)
            if self._num_chunks > _MOST_TINY_CHUNKS + self._num_bytes // _LEAST_CHUNK_BYTES:
                raise h11.RemoteProtocolError("too many tiny chunks")
        return event


class BoundedHttpProtocol(H11Protocol):
    """A connection of uvicorn; it has no bounds of these kinds of its own.

    Parameters
    ----------
    max_connections : of the server; one more is answered with status 503 and closed.
    header_timeout_s : from the first byte of a request, or from the begin of the connection, to the end of its headers,
        and from an answer to the end of a body that was not waited for; then the connection is closed.
    """

    def __init__(self, *args: Any, max_connections: int, header_timeout_s: float, **more: Any) -> None:
        super().__init__(*args, **more)
        self.conn = _StrictConnection()
        self._max_connections, self._header_timeout_s = max_connections, header_timeout_s
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._max_connections:
            transport.write(_BUSY)
            transport.close()
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_headers()

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # it is answered already, at least in part
            self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and self._header_timer is None:
            self._header_timer = self.loop.call_later(self._header_timeout_s, self.transport.close)

    def _watch_headers(self) -> None:
        if self.conn.their_state is h11.SEND_BODY and self.conn.our_state in (h11.DONE, h11.MUST_CLOSE):
            return  # it is answered
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._stop_timer()
        elif self._header_timer is None:
            self._header_timer = self.loop.call_later(self._header_timeout_s, self.transport.close)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
