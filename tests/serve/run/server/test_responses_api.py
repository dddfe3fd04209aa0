"""OpenAI's API for responses, by its own client: texts, tools and errors, whole and streamed; nothing is stored."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from tests.serve.run.server.served_api import CHAT, CHAT_PATH, END, FakeEngine, posted, prompt_of
from tests.serve.run.server.test_api_conformance import unknown_keys

from trainyard.serve.run.server.api_requests import read_request
from trainyard.serve.run.server.responses.requests import ResponsesRequest

_SCHEMA = {
    "type": "object",
    "properties": {"car": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["car"],
    "additionalProperties": False,
}
_TOOL: Any = {
    "type": "function",
    "name": "brake",
    "description": "Stop a car",
    "parameters": _SCHEMA,
    "strict": True,
}
_ASKED: Any = {
    "model": "tiny",
    "max_output_tokens": 12,
    "instructions": "You are a yard.",
    "input": "How many devices?",
    "temperature": 0.0,
}
_PATH = "/v1/responses"


@pytest.fixture(scope="module")
def client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, _strict_response_validation=True)


def events(url: str, body: Any) -> list[dict[str, Any]]:
    """The documents of a stream, each with the name of its event."""
    text = httpx2.post(f"{url}{_PATH}", json=body | {"stream": True}, timeout=600).text
    found = []
    for event in text.strip().split("\n\n"):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def test_answers_are_those_of_chats(client, url):
    messages = [{"role": "system", "content": _ASKED["instructions"]}, *CHAT["messages"]]
    body = CHAT | {"messages": messages, "temperature": 0.0, "max_tokens": 12}
    chat = httpx2.post(f"{url}{CHAT_PATH}", json=body, timeout=600).json()
    found = client.responses.create(**_ASKED)
    assert found.output_text == chat["choices"][0]["message"]["content"]
    assert (found.usage.input_tokens, found.usage.output_tokens) == (
        chat["usage"]["prompt_tokens"],
        chat["usage"]["completion_tokens"],
    )
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert list(unknown_keys(found)) == []
    with client.responses.stream(**_ASKED) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(deltas) == found.output_text


@pytest.mark.parametrize(
    "more", [{}, {"tools": [_TOOL], "tool_choice": {"type": "function", "name": "brake"}}], ids=str
)
def test_a_stream_ends_with_the_whole_response(url, more):
    body = _ASKED | more | {"max_output_tokens": 60}
    whole = httpx2.post(f"{url}{_PATH}", json=body, timeout=600).json()
    found = events(url, body)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [event["type"] for event in found[:3]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
    ]
    for event in found:
        TypeAdapter(ResponseStreamEvent).validate_python(event)
    last = found[-1]["response"]
    assert found[-1]["type"] == f"response.{whole['status']}"
    drawn = {"id", "call_id", "created_at", "usage"}  # what differs from answer to answer

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items() if name not in drawn}
        return [plain(each) for each in value] if isinstance(value, list) else value

    assert plain(last) == plain(whole)
    Response.model_validate(last, strict=True)
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert done == last["output"]


def test_tools_are_called_and_their_results_given(client):
    given = _ASKED | {"tools": [_TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    found = client.responses.create(**given | {"max_output_tokens": 200})
    (call,) = found.output
    assert (found.status, call.type, call.name, call.status) == (
        "completed",
        "function_call",
        "brake",
        "completed",
    )
    assert 0 <= json.loads(call.arguments)["car"] < 100
    asked = [
        {"role": "user", "content": "Go"},
        call,
        {"type": "function_call_output", "call_id": call.call_id, "output": "done"},
    ]
    more = client.responses.create(**_ASKED | {"input": asked, "tools": [_TOOL], "tool_choice": "none"})
    again = client.responses.create(
        **_ASKED | {"input": [*asked, *more.output, {"role": "user", "content": "?"}]}
    )
    assert again.usage.input_tokens > more.usage.input_tokens


def test_answers_conform_to_a_schema(client):
    shape = {"format": {"type": "json_schema", "name": "car", "schema": _SCHEMA}}
    found = client.responses.create(**_ASKED | {"text": shape, "max_output_tokens": 100})
    assert 0 <= json.loads(found.output_text)["car"] < 100


def test_items_become_messages_of_a_chat(tokenizer):
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {
            "type": "message",
            "role": "assistant",
            "id": "m",
            "status": "completed",
            "content": [{"type": "output_text", "text": "So", "annotations": []}],
        },
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "2"}]},
    ]
    calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in "ab"]
    chat = [
        {"role": "system", "content": "You are a yard."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "So", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
    ]
    found = prompt_of(tokenizer, _PATH, _ASKED | {"input": items})
    assert found == prompt_of(tokenizer, CHAT_PATH, CHAT | {"messages": chat})


@pytest.mark.parametrize(
    ("arguments", "status"),
    [('{"car": 1}}', "completed"), ('{"car": 1', "incomplete"), ("{car}}", "incomplete")],
)
def test_a_call_that_is_no_json_is_incomplete(tokenizer, arguments, status):
    tokens = [*tokenizer.encode(f'<tool_call>{{"name": "brake", "arguments": {arguments}'), END]
    body = _ASKED | {"tools": [_TOOL | {"strict": False}], "max_output_tokens": 200}
    (call,) = posted(tokenizer, FakeEngine(tokens), _PATH, body, "hermes").json()["output"]
    assert call["status"] == status


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (["R1", "A1", "R2", "A2"], [("A1", "R1", 0), ("A2", "R2", 0)]),
        (["A1", "R1", "call"], [("A1", "R1", 1)]),
        (["R1", "call", "R2", "call", "output"], [("", "R1R2", 2), "tool"]),
        (["R1", "user", "A1"], [("", "R1", 0), "user", ("A1", "", 0)]),
        (["A1", "R1"], [("A1", "R1", 0)]),
    ],
    ids=str,
)
def test_reasoning_stays_in_its_answer(items, expected):
    made = {
        "user": {"role": "user", "content": "on"},
        "call": {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        "output": {"type": "function_call_output", "call_id": "a", "output": "1"},
    }
    for place in "12":
        made[f"A{place}"] = {"role": "assistant", "content": f"A{place}"}
        content = [{"type": "reasoning_text", "text": f"R{place}"}]
        made[f"R{place}"] = {"type": "reasoning", "summary": [], "content": content}
    body = {"model": "tiny", "input": [made[item] for item in items]}
    messages = read_request(ResponsesRequest, json.dumps(body).encode()).chat.messages
    found = [
        (each.content, each.given_reasoning, len(each.tool_calls)) if each.role == "assistant" else each.role
        for each in messages
    ]
    assert found == expected


@pytest.mark.parametrize(
    ("more", "param", "says"),
    [
        ({"store": True}, "store", "stores no responses"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send the whole conversation as input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input.0.message.content.0.type",
            "input_text",
        ),
        ({"input": [1]}, "input.0", "1"),
        (
            {"max_output_tokens": 0},
            "max_output_tokens",
            "max_output_tokens is 0: allowed is greater than or equal to 1",
        ),
        ({"background": True}, "background", "False"),
        ({"truncation": "auto"}, "truncation", "disabled"),
        ({"tool_choice": "any"}, "tool_choice", '{"type": "function", "name": NAME}'),
        ({"tool_choice": "required"}, "tool_choice", "tools is empty"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "function"),
        ({"conversation": "c"}, "conversation", "unknown field"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", "has a schema"),
        (
            {"text": {"format": {"type": "json_schema", "schema": {"type": "no"}}}},
            "text.format",
            "text.format",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": "["}]},
            "input.0.arguments",
            "is no JSON",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_cannot_be_is_refused_by_name(tokenizer, more, param, says):
    engine = FakeEngine([5])
    found = posted(tokenizer, engine, _PATH, _ASKED | more)
    assert found.status_code == 400
    told = found.json()["error"]
    assert told["param"] == param
    assert says in told["message"]
    assert engine.requests == []


def test_an_error_in_a_stream_is_an_event(tokenizer):
    engine = FakeEngine(tokenizer.encode("a b"), RuntimeError("defect"))
    last = posted(tokenizer, engine, _PATH, _ASKED | {"stream": True}).text.strip().split("\n\n")[-1]
    assert last.startswith('event: error\ndata: {"type":"error","sequence_number":')
