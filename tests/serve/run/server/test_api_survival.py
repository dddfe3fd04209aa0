"""Many clients, clients that go away or do not read, full queues, engines that are lost, and the end of the server."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time

import httpx2
import pytest
from tests.serve.run.server.served_api import CHAT, COMPLETION, END, FakeEngine, call_api

from trainyard.serve.errors import ServeError
from trainyard.serve.run.engine_client import EngineLostError
from trainyard.serve.run.server import body_reader, generation_response, server
from trainyard.serve.run.server.api_server import ServerLimits

_LONG = {"model": "tiny", "prompt": [7] * 20, "max_tokens": 450, "ignore_eos": True}


_OF_ENGINE = 'engine="0",'


def metric(url, name, labels=_OF_ENGINE):
    """The value of a metric; 0 if it is not there yet."""
    text = httpx2.get(f"{url}/metrics").text
    found = re.search(rf'^{name}{{{labels}model_name="tiny"}} (\S+)$', text, re.M)
    return float(found[1]) if found else 0.0


def until(is_so):
    for _ in range(600):
        if is_so():
            return
        time.sleep(0.05)
    raise AssertionError("it never was so")


def is_idle(url):
    return (
        metric(url, "vllm:num_requests_running")
        == metric(url, "vllm:num_requests_waiting")
        == metric(url, "vllm:kv_cache_usage_perc")
        == 0
    )


def test_two_hundred_clients_at_once_get_their_own_answers(url, tokenizer):
    async def run():
        async with httpx2.AsyncClient(base_url=url, timeout=600, limits=httpx2.Limits()) as client:

            async def ask(number):
                token = 300 + number
                body = COMPLETION | {"max_tokens": 3, "temperature": 0, "logit_bias": {str(token): 100}}
                answer = await client.post("/v1/completions", json=body | {"prompt": f"client {number}"})
                return answer.json()["choices"][0]["text"] == tokenizer.decode([token] * 3)

            return await asyncio.gather(*map(ask, range(200)))

    assert asyncio.run(run()) == [True] * 200
    until(lambda: is_idle(url))


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_goes_away_frees_the_cache(servers, streams):
    url = servers.url()
    body = _LONG | {"stream": streams, "n": 30}  # which takes seconds
    if streams:
        with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=600) as answer:
            next(answer.iter_raw())
    else:
        with pytest.raises(httpx2.ReadTimeout, match="timed out"):
            httpx2.post(f"{url}/v1/completions", json=body, timeout=0.3)
    until(lambda: is_idle(url))
    until(lambda: metric(url, "vllm:request_success_total", _OF_ENGINE + 'finished_reason="abort",') == 30)
    assert 0 < metric(url, "vllm:generation_tokens_total") < 30 * 450


def test_who_does_not_read_keeps_nobody_waiting(servers):
    url = servers.url()
    address = httpx2.URL(url)
    content = json.dumps(_LONG | {"stream": True, "n": 30, "logprobs": 5, "max_tokens": 200}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc.decode()}\r\nContent-Type: application/json\r\n"
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((address.host, address.port))
        slow.sendall(f"{head}Connection: close\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
        until(lambda: metric(url, "vllm:generation_tokens_total") > 0)
        quick = httpx2.post(f"{url}/v1/completions", json=COMPLETION, timeout=600)
        assert quick.status_code == 200
        until(lambda: is_idle(url))  # although nothing was read
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)
        slow.settimeout(60)
        found = bytearray()
        while part := slow.recv(2**20):
            found += part
    assert b"data: [DONE]" in found
    assert found.count(b'"finish_reason":"length"') == 30


def test_who_reads_nothing_of_a_stream_for_long_is_let_go(tokenizer, monkeypatch):
    monkeypatch.setattr(generation_response, "_MOST_UNREAD_S", 0.05)
    engine, content = FakeEngine([70] * 5), json.dumps(COMPLETION | {"stream": True}).encode()
    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers}
    received = [{"type": "http.request", "body": content}]

    async def receive():
        return received.pop() if received else await asyncio.Event().wait()

    async def send(message):
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def work(client, api):
        async with asyncio.timeout(60) as limit:
            with pytest.raises(TimeoutError):
                await api.app(scope | {"query_string": b""}, receive, send)
        assert not limit.expired()

    call_api(tokenizer, engine, work)
    assert len(engine.requests) == 1


@pytest.mark.skipif(
    not hasattr(socket, "TCP_USER_TIMEOUT"), reason="needs Linux: this system has no TCP_USER_TIMEOUT"
)
def test_who_reads_nothing_of_an_answer_for_long_is_let_go(monkeypatch):
    monkeypatch.setattr(server, "_MOST_UNREAD_MS", 200)

    async def answer(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(2**26)})  # more than the system holds

    async def run():
        with server.listening("127.0.0.1", 0) as listener, socket.socket() as slow:
            found = server.HttpServer(answer)
            serving = asyncio.create_task(found.serve(sockets=[listener]))
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(listener.getsockname())
            slow.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            while not found.server_state.total_requests:
                await asyncio.sleep(0.01)
            while found.server_state.connections:
                await asyncio.sleep(0.01)
            found.should_exit = True
            await serving

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_body_that_does_not_come_is_not_waited_for(servers, monkeypatch):
    monkeypatch.setattr(body_reader, "_RECEIVE_S", 0.05)
    address = httpx2.URL(servers.url())
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc.decode()}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((address.host, address.port), 60) as slow:
        slow.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        assert slow.recv(2**16).startswith(b"HTTP/1.1 408 ")


def test_counts_are_those_of_the_requests(servers):
    url = servers.url()
    body = COMPLETION | {"prompt": [9] * 30, "max_tokens": 4, "ignore_eos": True}
    for _ in range(2):
        httpx2.post(f"{url}/v1/completions", json=body, timeout=600)
    httpx2.post(
        f"{url}/v1/completions", json=body | {"ignore_eos": False, "logit_bias": {str(END): 100}}, timeout=600
    )
    httpx2.post(f"{url}/v1/completions", json=body | {"n": 0}, timeout=600)
    assert metric(url, "vllm:prompt_tokens_total") == metric(url, "vllm:prefix_cache_queries_total") == 90
    assert metric(url, "vllm:prefix_cache_hits_total") >= 48  # three blocks of eight, twice
    assert metric(url, "vllm:generation_tokens_total") == 9
    assert metric(url, "vllm:request_success_total", _OF_ENGINE + 'finished_reason="length",') == 2
    assert metric(url, "vllm:request_success_total", _OF_ENGINE + 'finished_reason="stop",') == 1
    assert metric(url, "vllm:time_to_first_token_seconds_count") == 3
    assert metric(url, "vllm:inter_token_latency_seconds_count") == 6
    assert metric(url, "vllm:e2e_request_latency_seconds_count") == 3
    (replica,) = servers.engine.replicas
    assert metric(url, "vllm:num_preemptions_total") == replica.state.num_preemptions
    refused = httpx2.get(f"{url}/metrics").text
    assert 'trainyard:requests_rejected_total{model_name="",status="400"} 1.0' in refused


@pytest.mark.parametrize(
    "limits",
    [ServerLimits(max_queued_requests=2), ServerLimits(max_queued_tokens=7)],
    ids=["requests", "tokens"],
)
def test_more_than_may_wait_are_told_to_come_again(tokenizer, limits):
    engine = FakeEngine([70, 71])
    body = COMPLETION | {"prompt": [5, 6, 7]}

    async def work(client, api):
        engine.gate.clear()
        held = [asyncio.create_task(client.post("/v1/completions", json=body)) for _ in range(2)]
        while len(engine.requests) < 2:
            await asyncio.sleep(0)
        late = await client.post("/v1/completions", json=body)
        health = await client.get("/health")
        engine.gate.set()
        done = [(await each).status_code for each in held]
        again = await client.post("/v1/completions", json=body)
        return late, health.status_code, done, again.status_code

    late, health, done, again = call_api(tokenizer, engine, work, limits=limits)
    assert (late.status_code, late.headers["retry-after"]) == (429, "1")
    assert late.json()["error"]["code"] == "queue_full"
    assert (health, done, again) == (200, [200, 200], 200)


@pytest.mark.parametrize("streams", [False, True])
def test_what_takes_longer_than_the_deadline_is_cancelled(tokenizer, streams):
    engine = FakeEngine([70, 71])

    async def work(client, api):
        engine.gate.clear()
        return await client.post("/v1/completions", json=COMPLETION | {"stream": streams})

    found = call_api(tokenizer, engine, work, limits=ServerLimits(deadline_s=0.05))
    assert (found.status_code, found.json()["error"]["code"]) == (504, "deadline")
    assert len(engine.cancelled) == 1


@pytest.mark.parametrize("tokens", [[], [70, 71, 72]], ids=["before", "after the first token"])
@pytest.mark.parametrize("body", [COMPLETION, CHAT], ids=["completion", "chat"])
def test_a_lost_engine_is_an_error(tokenizer, body, tokens):
    path = "/v1/chat/completions" if body is CHAT else "/v1/completions"

    def ask(**more):
        engine = FakeEngine(tokens, EngineLostError("the engine stopped"))
        return call_api(tokenizer, engine, lambda client, api: client.post(path, json=body | more))

    whole, stream = ask(), ask(stream=True)
    assert (whole.status_code, whole.json()["error"]["code"]) == (503, "engine_lost")
    if not tokens:
        assert stream.status_code == 503
        return
    events = [json.loads(line.removeprefix("data: ")) for line in stream.text.strip().split("\n\n")]
    assert "error" in events[-1]
    assert not any("error" in event for event in events[:-1])
    assert not any(choice["finish_reason"] for event in events[:-1] for choice in event["choices"])


def test_what_an_engine_refuses_is_told(tokenizer):
    engine = FakeEngine([], ServeError("no room for it"))
    found = call_api(tokenizer, engine, lambda client, api: client.post("/v1/completions", json=COMPLETION))
    assert (found.status_code, found.json()["error"]["message"]) == (400, "no room for it")


def test_an_error_of_the_server_itself_says_nothing_of_it(tokenizer):
    engine = FakeEngine([70])
    engine.generate = None
    found = call_api(tokenizer, engine, lambda client, api: client.post("/v1/completions", json=COMPLETION))
    assert found.status_code == 500
    assert "NoneType" not in found.text


def test_an_engine_that_is_not_ready_is_waited_for(tokenizer):
    engine = FakeEngine([70])
    engine.is_ready = False

    async def work(client, api):
        ready, health = await client.get("/ready"), await client.get("/health")
        return ready.status_code, health.status_code, await client.post("/v1/completions", json=COMPLETION)

    ready, health, found = call_api(tokenizer, engine, work)
    assert (ready, health, found.status_code) == (503, 200, 503)
    assert int(found.headers["retry-after"]) > 0


def test_at_the_end_running_requests_finish_and_new_ones_are_refused(tokenizer):
    engine = FakeEngine([70, 71])

    async def work(client, api):
        engine.gate.clear()
        held = asyncio.create_task(client.post("/v1/completions", json=COMPLETION))
        while not engine.requests:
            await asyncio.sleep(0)
        assert not await api.drain(0.01)
        draining = asyncio.create_task(api.drain(60))
        paths = ("/ready", "/health", "/metrics", "/v1/models")
        found = [(await client.get(path)).status_code for path in paths]
        late = await client.post("/v1/completions", json=COMPLETION)
        engine.gate.set()
        return found, late, (await held).status_code, await draining

    found, late, status, drained = call_api(tokenizer, engine, work)
    assert found == [503, 200, 200, 503]
    assert (late.status_code, late.json()["error"]["code"]) == (503, "stopping")
    assert (status, drained) == (200, True)
