"""What clients may take of the daemon's server: connections, time to ask, and submissions at once."""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request

from trainyard.fleet.daemon.limits import ConcurrencyLimit, body_of, protocol, reserve_descriptors
from trainyard.fleet.daemon.refusal import Refusal

ASK = b"GET /here HTTP/1.1\r\nhost: localhost\r\n\r\n"


WAITING: list[None] = []


async def wait() -> None:
    """An answer that does not come."""
    WAITING.append(None)
    await asyncio.Event().wait()


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    """Of a server that takes three connections, and lets each be silent for half a second."""
    app = FastAPI()
    app.add_api_route("/here", lambda: "yes")
    app.add_api_route("/wait", wait)
    app.add_api_route("/much", lambda: "much " * 1_000_000)
    WAITING.clear()
    speaks = protocol(max_connections=3, header_s=0.5)
    server = uvicorn.Server(uvicorn.Config(app, http=speaks, lifespan="off", log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield listener.getsockname()
        server.should_exit = server.force_exit = True
        thread.join()


def answer_of(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    connection.settimeout(60.0)
    found = b""
    while part := connection.recv(4096):
        found += part
    return found


def test_the_longest_silent_makes_room(address: tuple[str, int]) -> None:
    silent = [socket.create_connection(address) for _ in range(3)]
    with socket.create_connection(address) as more:
        more.sendall(ASK)
        assert b"200 OK" in answer_of(more)
    assert [answer_of(connection) for connection in silent] == [b"", b"", b""]


def test_where_all_are_being_answered_the_next_is_told_to_come_again(address: tuple[str, int]) -> None:
    busy = [socket.create_connection(address) for _ in range(3)]
    for number, connection in enumerate(busy, 1):
        connection.sendall(ASK.replace(b"here", b"wait"))
        for _ in range(6000):
            if len(WAITING) == number:
                break
            time.sleep(0.01)
    with socket.create_connection(address) as more:
        more.sendall(ASK)
        said = answer_of(more)
    assert said.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 5" in said
    for connection in busy:
        connection.close()


@pytest.mark.parametrize("begun", [b"GET /he", ASK + b"GET /he"], ids=["first", "second"])
def test_who_does_not_finish_a_request_is_let_go(begun: bytes, address: tuple[str, int]) -> None:
    with socket.create_connection(address) as connection:
        connection.sendall(begun)
        assert answer_of(connection).count(b"200 OK") == begun.count(b"/here")


def test_who_does_not_read_the_answer_is_let_go(address: tuple[str, int]) -> None:
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        deaf.connect(address)
        with pytest.raises(ConnectionError, match=r"reset by peer|Broken pipe"):
            ask_on(deaf)


def ask_on(connection: socket.socket) -> None:
    """Ask for a minute, and read nothing."""
    for _ in range(6000):
        with suppress(BlockingIOError):
            connection.send(ASK.replace(b"here", b"much"), socket.MSG_DONTWAIT)
        time.sleep(0.01)


def test_a_client_that_goes_away_amid_a_job_is_no_fault_of_the_daemon() -> None:
    parts = iter(
        [{"type": "http.request", "body": b"name: x", "more_body": True}, {"type": "http.disconnect"}]
    )

    async def receive() -> Any:
        return next(parts)

    with pytest.raises(Refusal, match="closed after 7 bytes"):
        asyncio.run(body_of(Request({"type": "http"}, receive), 100))


def test_who_sends_a_job_slowly_is_told_so() -> None:
    async def receive() -> Any:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b"n", "more_body": True}

    with pytest.raises(Refusal, match=r"did not come within 0\.05 s; send it at once") as refused:
        asyncio.run(body_of(Request({"type": "http"}, receive), 10**6, within_s=0.05))
    assert refused.value.status == 408


@pytest.mark.parametrize(("allowed", "count"), [(600, 88), (700, 188), (4096, 256), (100, 8)])
def test_descriptors_are_kept_for_what_is_no_connection(allowed: int, count: int) -> None:
    """In a process of its own, which may not open more files than so many."""

    def look(end: Any) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(64, allowed), allowed))
        end.send((reserve_descriptors(), resource.getrlimit(resource.RLIMIT_NOFILE)[0]))

    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=look, args=(theirs,))
    process.start()
    found, soft = ours.recv()
    process.join()
    assert (found, soft) == (count, min(allowed, 768))


def test_only_some_may_pass_at_once() -> None:
    gate = ConcurrencyLimit(1, "jobs are submitted")
    with gate.taken(), pytest.raises(Refusal, match="too many jobs are submitted at once") as refused:
        gate.taken().__enter__()
    assert (refused.value.status, refused.value.retry_s) == (429, 1)
    with gate.taken():
        pass
