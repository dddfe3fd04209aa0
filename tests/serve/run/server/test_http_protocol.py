"""Connections that say what they want too slowly, and more of them than there may be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from trainyard.serve.run.server.server import HttpServer, listening

_REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


async def answering(scope, receive, send):
    await asyncio.sleep(0.4)  # longer than headers may take
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def with_server(work: Callable[[Connect], Awaitable[None]], **bounds: float) -> None:
    async def run() -> None:
        listener = listening("127.0.0.1", 0)
        server = HttpServer(answering, **bounds)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        host, port = listener.getsockname()
        try:
            await asyncio.wait_for(work(lambda: asyncio.open_connection(host, port)), 30)
        finally:
            server.should_exit = True
            await serving

    asyncio.run(run())


async def answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(2)
    return head.split(b"\r\n")[0]


async def ended(closed: asyncio.Task[bytes]) -> bytes:
    """What came before the connection ended; nothing where it was reset."""
    try:
        return await closed
    except ConnectionError:
        return b""


@pytest.mark.parametrize("num_before", [0, 1], ids=["at first", "after a request"])
def test_headers_that_come_byte_by_byte_end_the_connection(num_before):
    async def work(connect: Connect) -> None:
        reader, writer = await connect()
        for _ in range(num_before):
            writer.write(_REQUEST)
            assert await answer(reader) == b"HTTP/1.1 200 OK"
        closed = asyncio.create_task(reader.read())
        with suppress(ConnectionError):
            while not closed.done():
                writer.write(b"a")
                await asyncio.sleep(0.02)
        assert await ended(closed) == b""

    with_server(work, header_timeout_s=0.2)


def test_who_says_nothing_is_let_go():
    async def work(connect: Connect) -> None:
        reader, _ = await connect()
        assert await reader.read() == b""

    with_server(work, header_timeout_s=0.2)


@pytest.mark.parametrize("framing", ["Content-Length: 9999999", "Transfer-Encoding: chunked"])
def test_a_body_that_goes_on_after_its_answer_ends_the_connection(framing):
    """Whoever is refused could hold connections for ever by it."""

    async def work(connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(f"POST / HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n".encode())
        assert await answer(reader) == b"HTTP/1.1 200 OK"
        closed = asyncio.create_task(reader.read())
        with suppress(ConnectionError):
            while not closed.done():
                writer.write(b"1\r\na\r\n")
                await asyncio.sleep(0.02)
        assert await ended(closed) == b""

    with_server(work, header_timeout_s=0.2)


def test_answers_may_take_longer_than_headers():
    async def work(connect: Connect) -> None:
        reader, writer = await connect()
        for _ in range(2):
            writer.write(_REQUEST)
            assert await answer(reader) == b"HTTP/1.1 200 OK"

    with_server(work, header_timeout_s=0.2)


def test_one_connection_more_is_told_to_come_again():
    async def work(connect: Connect) -> None:
        first, second = await connect(), await connect()
        late, _ = await connect()
        status, _, headers = (await late.read()).partition(b"\r\n")
        assert status.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1\r\n" in headers
        second[1].close()
        await second[1].wait_closed()
        first[1].write(_REQUEST)
        assert await answer(first[0]) == b"HTTP/1.1 200 OK"
        again, writer = await connect()
        writer.write(_REQUEST)
        assert await answer(again) == b"HTTP/1.1 200 OK"

    with_server(work, max_connections=2)
