"""Where a request ends is never in doubt: what others on the way may read otherwise is refused, and nothing after it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from trainyard.serve.run.server.server import HttpServer, listening

_NEXT = b"GET /next HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
_CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"
_CHUNKED = b"Transfer-Encoding: chunked"


def post(headers: bytes, body: bytes = b"hello", version: bytes = b"1.1") -> bytes:
    return b"POST /first HTTP/%s\r\nHost: x\r\n%s\r\n\r\n%s" % (version, headers, body)


REFUSED = {
    "both framings": post(b"Content-Length: 5\r\n" + _CHUNKED, _CHUNKS),
    "both, the other way": post(_CHUNKED + b"\r\nContent-Length: 15", _CHUNKS),
    "both, of zero": post(b"Content-Length: 0\r\n" + _CHUNKED, _CHUNKS),
    "chunks in HTTP/1.0": post(_CHUNKED, _CHUNKS, b"1.0"),
    "two lengths": post(b"Content-Length: 5\r\nContent-Length: 6"),
    "two lengths in a list": post(b"Content-Length: 5, 6"),
    "length with a plus": post(b"Content-Length: +5"),
    "length below zero": post(b"Content-Length: -1"),
    "length in hexadecimal": post(b"Content-Length: 0x5"),
    "length with a point": post(b"Content-Length: 5.0"),
    "length without digits": post(b"Content-Length:"),
    "length of 30 digits": post(b"Content-Length: " + b"9" * 30),
    "length of other digits": post("Content-Length: ٥".encode()),
    "length that is folded": post(b"Content-Length: 5\r\n 0"),
    "space before a colon": post(b"Content-Length : 5"),
    "gzip": post(b"Transfer-Encoding: gzip", _CHUNKS),
    "identity": post(b"Transfer-Encoding: identity", _CHUNKS),
    "chunked, gzip": post(b"Transfer-Encoding: chunked, gzip", _CHUNKS),
    "gzip, chunked": post(b"Transfer-Encoding: gzip, chunked", _CHUNKS),
    "chunked twice": post(_CHUNKED + b"\r\n" + _CHUNKED, _CHUNKS),
    "xchunked": post(b"Transfer-Encoding: xchunked", _CHUNKS),
    "vertical tab": post(b"Transfer-Encoding: \x0bchunked", _CHUNKS),
    "fold of no header": b"POST /first HTTP/1.1\r\n Host: x\r\nContent-Length: 5\r\n\r\nhello",
    "bare CR": post(b"X-A: b\rContent-Length: 5"),
    "NUL in a value": post(b"X-A: b\0c\r\nContent-Length: 5"),
    "NUL in a name": post(b"X\0A: b\r\nContent-Length: 5"),
    "no colon": post(b"X-A\r\nContent-Length: 5"),
    "two hosts": post(b"Host: y\r\nContent-Length: 5"),
    "chunk size with a plus": post(_CHUNKED, b"+5\r\nhello\r\n0\r\n\r\n"),
    "chunk size of 21 digits": post(_CHUNKED, b"f" * 21 + b"\r\nhello\r\n0\r\n\r\n"),
    "chunks in bare LF": post(_CHUNKED, b"5\nhello\n0\n\n"),
    "chunk that goes on": post(_CHUNKED, b"5\r\nhelloXX0\r\n\r\n"),
    "many tiny chunks": post(_CHUNKED, b"1\r\na\r\n" * 16_700 + b"0\r\n\r\n"),
}
TAKEN = {
    "plain": post(b"Content-Length: 5"),
    "chunked": post(_CHUNKED, _CHUNKS),
    "another case": post(b"transfer-encoding:\tCHUNKED", _CHUNKS),
    "the same length twice": post(b"Content-Length: 5\r\nContent-Length: 5"),
    "the same length in a list": post(b"Content-Length: 5, 5"),
    # As RFC 9112 allows: a fold is a space (5.2), and a bare LF ends a line of the head (2.2).
    "fold": post(b"X-A: b\r\n c\r\nContent-Length: 5"),
    "fold before chunked": post(b"Transfer-Encoding:\r\n chunked", _CHUNKS),
    "bare LF": b"POST /first HTTP/1.1\nHost: x\nContent-Length: 5\n\nhello",
    "extension of a chunk": post(_CHUNKED, b"5;a=b\r\nhello\r\n0\r\n\r\n"),
    "length in a trailer": post(_CHUNKED, b"5\r\nhello\r\n0\r\nContent-Length: 9\r\n\r\n"),
    "some tiny chunks": post(_CHUNKED, b"1\r\nh\r\n1\r\ne\r\n1\r\nl\r\n1\r\nl\r\n1\r\no\r\n0\r\n\r\n"),
}


async def echoing(scope, receive, send):
    """Answer with the path and the body."""
    if scope["path"] == "/early":
        body = b"early"
    else:
        body = scope["path"].encode() + b" "
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def answer(host: str, port: int, parts: list[bytes]) -> bytes:
    """All that comes back until the server closes the connection."""
    reader, writer = await asyncio.open_connection(host, port)
    found = b""
    for part in parts:
        writer.write(part)
        if part is not parts[-1]:
            found += await reader.readuntil(b"early")
    found += await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return found


@pytest.fixture(scope="module")
def answers() -> Mapping[str, bytes]:
    """What each gets, followed by another request on the same connection."""

    failures: list[str] = []

    async def run() -> dict[str, bytes]:
        asyncio.get_running_loop().set_exception_handler(lambda _, failure: failures.append(str(failure)))
        listener = listening("127.0.0.1", 0)
        server = HttpServer(echoing)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        address = listener.getsockname()
        cases = {name: [content + _NEXT] for name, content in (REFUSED | TAKEN).items()}
        early = post(_CHUNKED, b"1\r\na\r\n").replace(b"/first", b"/early")
        cases["wrong after its answer"] = [early, b"zz\r\n" + _NEXT]
        try:
            return {name: await answer(*address, parts) for name, parts in cases.items()}
        finally:
            server.should_exit = True
            await serving

    found = asyncio.run(run())
    assert not failures
    return found


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_and_nothing_after_it_is_read(answers, name):
    assert answers[name].startswith(b"HTTP/1.1 400 ")
    assert answers[name].count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answers[name].lower()
    assert b"/next" not in answers[name]


@pytest.mark.parametrize("name", TAKEN)
def test_it_is_taken_as_it_says(answers, name):
    assert answers[name].count(b"HTTP/1.1 200 ") == 2
    assert b"/first hello" in answers[name]
    assert answers[name].endswith(b"/next ")


def test_what_goes_wrong_after_an_answer_ends_the_connection(answers):
    assert answers["wrong after its answer"].count(b"HTTP/1.1 ") == 1
    assert answers["wrong after its answer"].endswith(b"early")
