"""Bodies that would become millions of values or errors: one short error, little memory, and others are answered."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.serve.run.server.served_api import CHAT, COMPLETION, CONTEXT, FakeEngine, call_api

from trainyard.serve.run.server import body_reader, json_body
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.api_requests import ChatRequest, CompletionRequest, read_request
from trainyard.serve.run.server.embedding_requests import EmbeddingRequest
from trainyard.serve.run.server.json_body import INLINE_BYTES, check_num_values
from trainyard.serve.run.server.messages.requests import MessagesRequest
from trainyard.serve.run.server.request_body import RequestBody
from trainyard.serve.run.server.responses.requests import ResponsesRequest
from trainyard.serve.run.server.tokenizer_requests import DetokenizeRequest, TokenizeRequest

_MOST_BYTES = 8 * 2**20
_MOST_GROWTH = 10 * _MOST_BYTES
_JSON = {"Content-Type": "application/json"}
_MESSAGE = '"messages": [{"role": "user", "content": "a"}]'
_CALL = '{"id": "a", "type": "function", "function": {"name": "f", "arguments": %s}}'


def filled(kind: type[RequestBody], form: str, unit: str, last: str = "", num: int = 0) -> tuple[Any, bytes]:
    """A request with copies of a unit where the form has ``@``: so many, or as many as a body has room for.

    ``%d`` in the unit is the number of each copy.
    """
    head, tail = form.split("@")
    each = (unit % 1_000_000) if "%d" in unit else unit
    num = num or (_MOST_BYTES - len(head) - len(tail) - len(last) - 30) // len(each.encode())
    copies = "".join(unit % (1_000_000 + i) for i in range(num)) if "%d" in unit else unit * num
    return kind, f'{{"model": "M", {head}{copies}{last}{tail}}}'.encode()


def called(arguments: str, more: str = "") -> str:
    """A form of a conversation with calls of tools."""
    call = _CALL % json.dumps(arguments)
    return f'"messages": [{{"role": "assistant", "tool_calls": [{call}{more}]}}]'


_CHAT = partial(filled, ChatRequest)
_COMPLETION = partial(filled, CompletionRequest)
_EMBEDDING = partial(filled, EmbeddingRequest)
_MESSAGES = partial(filled, MessagesRequest)
_RESPONSES = partial(filled, ResponsesRequest)
_BLOCK = '{"type": "text", "text": ""}'
_UNKNOWN = '"a%d": 1, '
_TOOL = _MESSAGE + ', "tools": [{"type": "function", "function": {"name": "f", %s}}]'

KIN: dict[str, Callable[[], tuple[type[RequestBody], bytes]]] = {
    "messages that are numbers": lambda: _CHAT('"messages": [@]', "1,", "1"),
    "messages that are empty": lambda: _CHAT('"messages": [@]', "{},", "{}"),
    "fewer messages that are empty": lambda: _CHAT('"messages": [@]', "{},", "{}", 60_000),
    "fewer messages that are numbers": lambda: _CHAT('"messages": [@]', "1,", "1", 10**6),
    "messages to tokenize": lambda: filled(TokenizeRequest, '"messages": [@]', "{},", "{}", 60_000),
    "parts": lambda: _CHAT('"messages": [{"role": "user", "content": [@]}]', "1,", "1", 10**6),
    "biases": lambda: _COMPLETION('"prompt": "a", "logit_bias": {@}', '"%d": "", ', '"1": 1'),
    "fewer biases": lambda: _COMPLETION('"prompt": "a", "logit_bias": {@}', '"%d": 1e3,', '"1": 1', 250_000),
    "biases of a name": lambda: _COMPLETION('"prompt": "a", "logit_bias": {@}', '"a%d": 1,', '"1": 1', 250_000),
    "ends": lambda: _COMPLETION('"prompt": "a", "stop_token_ids": [@]', "1,", "1"),
    "ends that are strings": lambda: _COMPLETION('"prompt": "a", "stop_token_ids": [@]', '"",', "1", 250_000),
    "stops": lambda: _COMPLETION('"prompt": "a", "stop": [@]', '"",', "1", 250_000),
    "one long stop": lambda: _COMPLETION('"prompt": "a", "stop": "@"', "a"),
    "prompts": lambda: _COMPLETION('"prompt": [@]', '"a",', '"a"'),
    "tokens": lambda: _COMPLETION('"prompt": [@]', "1,", "1"),
    "unknown fields": lambda: _COMPLETION('@"prompt": "a"', _UNKNOWN),
    "fewer unknown fields": lambda: _COMPLETION('@"prompt": "a"', _UNKNOWN, num=250_000),
    "of a message": lambda: _CHAT('"messages": [{@"role": "user", "content": "a"}]', _UNKNOWN, num=250_000),
    "of a part": lambda: _CHAT(
        '"messages": [{"role": "user", "content": [{@"type": "text", "text": "a"}]}]', _UNKNOWN, num=250_000
    ),
    "of a call": lambda: _CHAT(called("{}", ', {@"id": ""}'), _UNKNOWN, num=250_000),
    "of a tool": lambda: _CHAT(_MESSAGE + ', "tools": [{@"type": "function"}]', _UNKNOWN, num=250_000),
    "of a function": lambda: _CHAT(_TOOL % '@"strict": 1', _UNKNOWN, num=250_000),
    "of a format": lambda: _CHAT(_MESSAGE + ', "response_format": {@"type": ""}', _UNKNOWN, num=250_000),
    "of a schema": lambda: _CHAT(
        _MESSAGE + ', "response_format": {"type": "json_schema", "json_schema": {@"schema": {}}}',
        _UNKNOWN,
        num=250_000,
    ),
    "of stream_options": lambda: _CHAT(_MESSAGE + ', "stream_options": {@"x": 1}', _UNKNOWN, num=250_000),
    "one field of a long name": lambda: _CHAT('"messages": [{"role": "user", "content": "a", "@": 1}]', "x"),
    "one unknown field of a long name": lambda: _CHAT(_MESSAGE + ', "@": 1', "x"),
    "metadata": lambda: _CHAT(_MESSAGE + ', "metadata": {@}', _UNKNOWN, '"a": 1', 250_000),
    "the same key": lambda: _CHAT('@"n": 0, ' + _MESSAGE, '"n":1,'),
    "lists in lists": lambda: _CHAT('"messages": @', "["),
    "objects in objects": lambda: _CHAT('"messages": @', '{"a":'),
    "fewer lists in lists": lambda: _CHAT('"messages": @', "[", num=60_000),
    "one long number": lambda: _COMPLETION('"prompt": "a", "n": @', "9"),
    "one long float": lambda: _COMPLETION('"prompt": "a", "n": 0, "temperature": 3.@', "9"),
    "one long exponent": lambda: _COMPLETION('"prompt": "a", "n": 0, "temperature": 1e@', "9"),
    "numbers of 4,300 digits": lambda: _COMPLETION('"prompt": "a", "seed": [@]', "9" * 4300 + ",", "1"),
    "a seed of 4,300 digits": lambda: _COMPLETION('"prompt": "a", "seed": @', "9", num=4300),
    "user": lambda: _COMPLETION('"prompt": "a", "user": "@"', "a"),
    "escapes": lambda: _COMPLETION('"prompt": "a", "user": "@"', "\\u0000"),
    "half a pair": lambda: _COMPLETION('"prompt": "@"', "\\ud83d\\ude00", "\\ud800"),
    "cache_salt": lambda: _COMPLETION('"prompt": "a", "cache_salt": "@"', "a"),
    "role": lambda: _CHAT('"messages": [{"content": "a", "role": "@"}]', "a"),
    "an id": lambda: _CHAT('"messages": [{"role": "tool", "content": "a", "tool_call_id": "@"}]', "a"),
    "messages of another API": lambda: _MESSAGES('"messages": [@]', "1,", "1", 10**6),
    "its messages that are empty": lambda: _MESSAGES('"messages": [@]', "{},", "{}", 60_000),
    "its blocks": lambda: _MESSAGES('"messages": [{"role": "user", "content": [@]}]', "{},", "{}", 60_000),
    "its blocks that are sound": lambda: _MESSAGES(
        '"messages": [{"role": "assistant", "content": [@]}]', _BLOCK + ",", _BLOCK, 60_000
    ),
    "items": lambda: _RESPONSES('"input": [@]', "{},", "{}", 60_000),
    "metadata of a response": lambda: _RESPONSES('"input": "a", "metadata": {@}', _UNKNOWN, '"a": 1', 250_000),
    "includes": lambda: _RESPONSES('"input": "a", "include": [@]', '"a",', '"a"', 250_000),
    "spaces": lambda: (ChatRequest, b" " * _MOST_BYTES),
    "spaces before": lambda: _CHAT("@ " + _MESSAGE + ', "n": 0', " "),
    "no end": lambda: (ChatRequest, b'{"model": "' + b"a" * (_MOST_BYTES - 20)),
    "no UTF-8": lambda: (ChatRequest, b'{"model": "' + b"a" * (_MOST_BYTES - 20) + b'\xff"}'),
    "tools": lambda: _CHAT(_MESSAGE + ', "tools": [@]', "{},", "{}"),
    "fewer tools": lambda: _CHAT(_MESSAGE + ', "tools": [@]', "{},", "{}", 60_000),
    "calls": lambda: _CHAT('"messages": [{"role": "assistant", "tool_calls": [@]}]', "{},", "{}", 60_000),
    "arguments of numbers": lambda: _CHAT(called("[@]"), "1,", "1"),
    "arguments of lists": lambda: _CHAT(called('{"a": [@]}'), "[],", "1"),
    "arguments of many calls": lambda: _CHAT(
        '"messages": [{"role": "assistant", "tool_calls": [@]}]',
        _CALL % json.dumps('{"a": [' + "[]," * 2000 + "1]}") + ",",
        _CALL % '"{}"',
    ),
    "a schema of numbers": lambda: _CHAT(_TOOL % '"parameters": {"enum": [@]}', "1,", "1"),
    "texts to embed": lambda: _EMBEDDING('"input": [@]', '"a",', '"a"'),
    "lists to embed": lambda: _EMBEDDING('"input": [@]', "[1],", "[1]"),
    "tokens of no text": lambda: filled(DetokenizeRequest, '"tokens": [@]', '"",', "1", 250_000),
}  # fmt: skip


@pytest.fixture
def growth() -> Callable[[], int]:
    """By how many bytes this process became larger at most, since the test began."""

    def kib(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))

    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    before = kib("VmRSS")
    return lambda: (kib("VmHWM") - before) * 1024


@pytest.mark.parametrize("name", KIN)
def test_one_short_error_within_little_memory(name, growth):
    kind, content = KIN[name]()
    assert len(content) <= _MOST_BYTES
    made = growth()
    with pytest.raises(ApiError) as caught:
        read_request(kind, content)
    assert growth() - made < _MOST_GROWTH
    assert caught.value.status in (400, 413)
    assert 20 < len(caught.value.message) < 1200
    assert len(caught.value.param) < 300


@pytest.mark.parametrize(
    "name", [name for name in KIN if name.startswith(("fewer messages", "of ", "ends that", "calls", "tokens of"))]
)  # fmt: skip
def test_validation_stops_at_the_first_error(name):
    kind, content = KIN[name]()
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(json.loads(content))
    # Fields beside it may have errors, too: there are few.
    assert caught.value.error_count() <= 6


def _text(num: int) -> str:
    return 'He said: "[a], {b}: \\ 1,2,3"\n' * (num // 32)


_SCHEMA = {
    "type": "object",
    "properties": {
        f"field {i}": {"type": "array", "items": {"enum": [*range(40), "a", "b"]}, "description": _text(100)}
        for i in range(20)
    },
}
_RICH_TOOL = {
    "type": "function",
    "function": {"name": "NAME", "description": _text(500), "parameters": _SCHEMA},
}
_TURN = [
    {"role": "user", "content": [{"type": "text", "text": _text(64)}, {"type": "text", "text": "b"}]},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call-1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1, 2, {"b": "c"}]}'}}]},
    {"role": "tool", "tool_call_id": "call-1", "content": "5"},
    {"role": "assistant", "content": _text(64)},
]  # fmt: skip
HONEST: dict[str, Callable[[], tuple[type[RequestBody], dict[str, Any]]]] = {
    "1,024 prompts": lambda: (CompletionRequest, {"prompt": [_text(4000)] * 1024}),
    "1,024 prompts in tokens": lambda: (CompletionRequest, {"prompt": [[50_000] * 1000] * 1024}),
    "a prompt of a million tokens": lambda: (CompletionRequest, {"prompt": [12_345] * 2**20}),
    "a long text": lambda: (CompletionRequest, {"prompt": _text(5 * 2**20)}),
    "a text of quotes": lambda: (CompletionRequest, {"prompt": '"' * (4 * 2**20 - 100)}),
    "a text of backslashes": lambda: (CompletionRequest, {"prompt": "\\" * (4 * 2**20 - 100)}),
    "a text of commas": lambda: (CompletionRequest, {"prompt": "[{,}]" * 1_600_000}),
    "128 tools": lambda: (ChatRequest, CHAT | {"tools": [
        {"type": "function", "function": _RICH_TOOL["function"] | {"name": f"f{i}"}} for i in range(128)]}),
    "10,000 messages": lambda: (ChatRequest, {"messages": _TURN * 2500}),
    "2,048 texts to embed": lambda: (EmbeddingRequest, {"input": [_text(2000)] * 2048}),
    "biases of a large vocabulary": lambda: (CompletionRequest, {"prompt": "a", "logit_bias": {
        str(token): 1 for token in range(200_000)}}),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_what_is_honest_is_read(name):
    kind, fields = HONEST[name]()
    content = json.dumps(fields | {"model": "M"}).encode()
    assert INLINE_BYTES < len(content) <= _MOST_BYTES
    found = read_request(kind, content)
    for field in fields.keys() & {"prompt", "input"}:
        assert getattr(found, field) == fields[field]


_VALUES = st.recursive(
    st.none() | st.integers() | st.text(st.sampled_from('a"\\,[{}]:\n'), max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.sampled_from('a"\\,[{'), max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


def counts(value: Any) -> tuple[int, int, int]:
    """Strings, keys among them; objects and lists; commas and those together."""
    if isinstance(value, str):
        return 1, 0, 0
    if not isinstance(value, dict | list):
        return 0, 0, 0
    inner = [*value, *value.values()] if isinstance(value, dict) else value
    strings, containers, values = (sum(each) for each in zip((0, 0, 0), *map(counts, inner), strict=True))
    return strings, containers + 1, values + 1 + max(0, len(value) - 1)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(_VALUES, st.booleans())
def test_bounds_hold_to_the_value(value, is_ascii):
    # The last character of a string may hide a quote that ends it: of such strings, up to twice as many pass.
    content = json.dumps(value, ensure_ascii=is_ascii).encode() + b" " * INLINE_BYTES
    strings, containers, values = counts(value)
    with pytest.MonkeyPatch.context() as patch:
        for name, num in (
            ("_MOST_STRINGS", strings),
            ("_MOST_CONTAINERS", containers),
            ("_MOST_VALUES", values),
        ):
            patch.setattr(json_body, name, num)
        check_num_values(content, "it")
        for name, num in (
            ("_MOST_STRINGS", (strings + 1) // 2),
            ("_MOST_CONTAINERS", containers),
            ("_MOST_VALUES", values),
        ):
            with pytest.MonkeyPatch.context() as tighter:
                tighter.setattr(json_body, name, num - 1)
                if num:
                    with pytest.raises(ApiError, match="more than"):
                        check_num_values(content, "it")


def test_large_bodies_are_parsed_two_at_a_time_while_others_are_answered(tokenizer, monkeypatch):
    lock, may_go = threading.Lock(), threading.Event()
    running, most = 0, 0

    def gated(*given: Any) -> Any:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        assert threading.current_thread() is threading.main_thread() or may_go.wait(60)
        with lock:
            running -= 1
        return read_request(*given)

    monkeypatch.setattr(body_reader, "read_request", gated)
    large = json.dumps(COMPLETION | {"user": "u", "n": 0}).encode() + b" " * INLINE_BYTES

    async def work(client, api):
        asked = [client.post("/v1/completions", content=large, headers=_JSON) for _ in range(5)]
        waiting = [asyncio.create_task(each) for each in asked]
        while running < 2 or api._bodies._held_bytes < 5 * len(large):
            await asyncio.sleep(0)
        await asyncio.sleep(0.2)  # for a third one
        health = await client.get("/health")
        small = await client.post("/v1/completions", json=COMPLETION)
        assert not any(task.done() for task in waiting)
        may_go.set()
        return health.status_code, small.status_code, [(await each).status_code for each in waiting]

    assert call_api(tokenizer, FakeEngine([70]), work) == (200, 200, [400] * 5)
    assert most == 3  # one of them is small


def test_bodies_that_come_together_are_bounded_together(tokenizer, monkeypatch):
    whole = json.dumps(COMPLETION | {"n": 0}).encode() + b" " * (2 * INLINE_BYTES)
    monkeypatch.setattr(body_reader, "_MOST_HELD_BYTES", len(whole))

    async def work(client, api):
        may_end = asyncio.Event()

        async def slow():
            yield whole[:-1]
            await may_end.wait()
            yield whole[-1:]

        first = asyncio.create_task(client.post("/v1/completions", content=slow(), headers=_JSON))
        while not api._bodies._held_bytes:
            await asyncio.sleep(0)
        late = await client.post("/v1/completions", content=whole, headers=_JSON)
        small = await client.post("/v1/completions", json=COMPLETION)
        may_end.set()
        found = [late, small, await first, await client.post("/v1/completions", content=whole, headers=_JSON)]
        assert not api._bodies._held_bytes
        return [each.status_code for each in found], late.headers["retry-after"]

    assert call_api(tokenizer, FakeEngine([70]), work) == ([503, 200, 400, 400], "1")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"prompt": ["a"] * 1025}, "n"),
        ({"prompt": ["a"] * 20, "n": 100}, "n"),
        ({"prompt": [[5]] * 1025}, "n"),
        ({"prompt": [5] * CONTEXT}, "prompt"),
        ({"prompt": ["a", [5] * CONTEXT]}, "prompt"),
        ({"prompt": "a", "stop_token_ids": [-1]}, "stop_token_ids"),
    ],
    ids=str,
)
def test_what_can_be_told_before_is_told_before_a_text_becomes_tokens(tokenizer, monkeypatch, more, param):
    monkeypatch.setattr(tokenizer, "encode", None)
    body = COMPLETION | more
    found = call_api(tokenizer, FakeEngine([70]), lambda client, _: client.post("/v1/completions", json=body))
    assert found.status_code == 400
    assert found.json()["error"]["param"] == param


def test_a_server_answers_each_with_one_error_and_goes_on(tokenizer):
    asked = [
        ("messages that are numbers", "/v1/chat/completions"),
        ("fewer messages that are empty", "/v1/chat/completions"),
        ("unknown fields", "/v1/completions"),
        ("fewer unknown fields", "/v1/completions"),
        ("tokens of no text", "/detokenize"),
    ]

    async def work(client, api):
        found = [
            await client.post(path, content=KIN[name]()[1].replace(b'"M"', b'"tiny"'), headers=_JSON)
            for name, path in asked
        ]
        return found, (await client.post("/v1/completions", json=COMPLETION)).status_code

    found, status = call_api(tokenizer, FakeEngine([70]), work)
    assert status == 200
    for answer in found:
        assert answer.status_code in (400, 413)
        assert answer.json().keys() == {"error"}
        assert len(answer.content) < 1000


@pytest.mark.parametrize("number", ["1e999", "-1E+400", "9" * 309 + "e0"])
def test_numbers_above_what_a_float_holds_are_no_json(tokenizer, number):
    """Otherwise they are infinite, which no response can have."""
    schema = f'{{"type": "object", "properties": {{"a": {{"maximum": {number}}}}}}}'
    tool = f'"tools": [{{"type": "function", "name": "f", "parameters": {schema}}}]'
    body = f'{{"model": "tiny", "input": "a", "tool_choice": "none", {tool}}}'

    async def work(client, api):
        return await client.post("/v1/responses", content=body, headers=_JSON)

    found = call_api(tokenizer, FakeEngine([5]), work)
    assert found.status_code == 400
    assert "a number is above 1.8e308" in found.json()["error"]["message"]


@pytest.mark.parametrize("text", ["1e5", '"1e999"', "[1e-999]", "9" * 400, '{"1e999": 0}'])
def test_other_numbers_are_json(text):
    assert json_body.parse_json(text.encode(), "the text") == json.loads(text)
