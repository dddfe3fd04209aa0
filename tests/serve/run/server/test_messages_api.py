"""The API of Anthropic, by its own client: texts, tools and errors, whole and streamed."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from anthropic import Anthropic, APIStatusError, BadRequestError, NotFoundError
from anthropic.types import Message
from tests.serve.run.server.served_api import CHAT, CHAT_PATH, CONTEXT, END, FakeEngine, posted, prompt_of

from trainyard.serve.run.server.api_keys import ApiKeys

_TOOL: Any = {
    "name": "brake",
    "description": "Stop a car",
    "input_schema": {
        "type": "object",
        "properties": {"car": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["car"],
        "additionalProperties": False,
    },
}
_ASKED: Any = {
    "model": "tiny",
    "max_tokens": 12,
    "system": "You are a yard.",
    "messages": [{"role": "user", "content": "How many devices?"}],
    "temperature": 0.0,
}
_PATH = "/v1/messages"
_BESIDE = ("temperature", "top_k")  # fields that the client no longer has names for


def asked(**more: Any) -> dict[str, Any]:
    """Arguments of the client."""
    given = _ASKED | more
    beside = {name: given.pop(name) for name in _BESIDE if name in given}
    return given | {"extra_body": beside}


@pytest.fixture(scope="module")
def client(url: str) -> Anthropic:
    return Anthropic(base_url=url, api_key="any", max_retries=0)


def chat_answer(url: str, **more: Any) -> Any:
    body = {**CHAT, "temperature": 0.0, "max_tokens": 12, **more}
    return httpx2.post(f"{url}{CHAT_PATH}", json=body, timeout=600).json()


@pytest.mark.parametrize("more", [{}, {"stop_sequences": ["e"]}, {"temperature": 1.0, "top_k": 1}], ids=str)
def test_answers_are_those_of_chats(client, url, more):
    messages = [{"role": "system", "content": _ASKED["system"]}, *CHAT["messages"]]
    stops = more.get("stop_sequences", [])
    chat = chat_answer(url, messages=messages, stop=stops)
    found = client.messages.create(**asked(**more))
    Message.model_validate(found.model_dump(), strict=True)
    text = "".join(block.text for block in found.content if block.type == "text")
    assert text == chat["choices"][0]["message"]["content"]
    used = found.usage
    assert used.input_tokens + (used.cache_read_input_tokens or 0) == chat["usage"]["prompt_tokens"]
    assert used.output_tokens == chat["usage"]["completion_tokens"]
    is_stopped = chat["choices"][0]["finish_reason"] == "stop"
    expected = ("stop_sequence", "e") if stops and is_stopped else ("max_tokens", None)
    assert (found.stop_reason, found.stop_sequence) == expected
    with client.messages.stream(**asked(**more)) as stream:
        streamed = stream.get_final_message()
    assert [block.text for block in streamed.content] == [block.text for block in found.content]
    assert (streamed.stop_reason, streamed.stop_sequence) == (found.stop_reason, found.stop_sequence)
    assert streamed.usage.output_tokens == used.output_tokens


def test_tools_are_called_and_their_results_given(client):
    given = asked(
        tools=[_TOOL], tool_choice={"type": "any", "disable_parallel_tool_use": True}, max_tokens=200
    )
    found = client.messages.create(**given)
    (call,) = found.content[:1]
    assert found.stop_reason == "tool_use"
    assert (call.type, call.name) == ("tool_use", "brake")
    assert 0 <= call.input["car"] < 100
    with client.messages.stream(**given) as stream:
        streamed = stream.get_final_message()
    assert [block.input for block in streamed.content] == [block.input for block in found.content]
    named = client.messages.create(**given | {"tool_choice": {"type": "tool", "name": "brake"}})
    assert named.stop_reason == "tool_use"  # chats have "stop" there
    results = [{"type": "tool_result", "tool_use_id": block.id, "content": "done"} for block in found.content]
    again = [
        *_ASKED["messages"],
        {"role": "assistant", "content": found.content},
        {"role": "user", "content": results},
    ]
    more = client.messages.create(**asked(messages=again, tools=[_TOOL], tool_choice={"type": "none"}))
    assert more.stop_reason == "max_tokens"


def test_messages_become_those_of_a_chat(tokenizer):
    content = [
        {
            "type": "tool_result",
            "tool_use_id": "a",
            "content": [{"type": "text", "text": "no"}],
            "is_error": True,
        },
        {"type": "text", "text": "Go ", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "on"},
    ]
    messages = [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "So"},
                {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
            ],
        },
        {"role": "user", "content": content},
    ]
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    chat = [
        {"role": "system", "content": "You are a yard."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "So", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "Error: no"},
        {"role": "user", "content": "Go on"},
    ]

    found = prompt_of(tokenizer, _PATH, _ASKED | {"messages": messages})
    assert found == prompt_of(tokenizer, CHAT_PATH, CHAT | {"messages": chat})


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"max_tokens": None}, "max_tokens is missing"),
        ({"max_tokens": 0}, "max_tokens is 0: allowed is greater than or equal to 1"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"container": "c"}, "unknown field 'container'"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "'image'"),
        ({"messages": [{"role": "assistant", "content": "I"}]}, "which this server does not continue"),
        ({"messages": [1, 1]}, "messages.0 is 1"),
        (
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "t"}]}]},
            "of the user and has a thinking",
        ),
        ({"tool_choice": {"type": "tool"}}, "exactly if it has a name"),
        ({"tool_choice": {"type": "any"}}, "tools is empty"),
        ({"tools": [_TOOL]}, "--tool-call-parser"),
        ({"tools": [_TOOL | {"input_schema": {"type": "string"}}]}, "input_schema"),
        ({"stop_sequences": [""]}, "stop_sequences is"),
        ({"messages": [{"role": "user", "content": "x " * CONTEXT}]}, "prompt and answer have at most"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "no"}}}},
            "output_config.format",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_cannot_be_is_told_as_the_api_has_it(tokenizer, more, says):
    engine = FakeEngine([5])
    found = posted(tokenizer, engine, _PATH, _ASKED | more)
    assert found.status_code == 400
    told = found.json()
    assert told.keys() == {"type", "error"}
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert says in told["error"]["message"]
    assert engine.requests == []


def test_the_client_sees_errors_as_its_own(client):
    with pytest.raises(NotFoundError, match="no model 'other'"):
        client.messages.create(**asked(model="other"))
    with pytest.raises(BadRequestError, match="temperature"):
        client.messages.create(**asked(temperature=2.0))


def test_an_error_in_a_stream_is_an_event(tokenizer):
    engine = FakeEngine(tokenizer.encode("a b"), RuntimeError("defect"))
    lines = posted(tokenizer, engine, _PATH, _ASKED | {"stream": True}).text.strip().split("\n\n")
    assert lines[0].startswith("event: message_start\ndata: {")
    assert lines[-1].startswith('event: error\ndata: {"type":"error","error":{"type":"api_error"')


def test_a_call_without_an_object_as_input_is_left_out(tokenizer):
    """Arguments are cut by a token that ends the answer, or are no JSON, or JSON that a response cannot have."""

    def answered(arguments: str, *, is_streamed: bool) -> Any:
        tokens = [*tokenizer.encode(f'So <tool_call>{{"name": "brake", "arguments": {arguments}'), END]
        body = _ASKED | {"tools": [_TOOL], "max_tokens": 200, "stream": is_streamed}
        return posted(tokenizer, FakeEngine(tokens), _PATH, body, "hermes")

    for arguments in ('{"car": 1', "{car}}", '{"car": NaN}}', '{"car": 1e999}}', r'{"car": "\ud800"}}'):
        found = answered(arguments, is_streamed=False)
        assert found.status_code == 200, arguments
        assert [block["type"] for block in found.json()["content"]] == ["text"]
        assert found.json()["stop_reason"] == "end_turn"
        assert '"stop_reason":"end_turn"' in answered(arguments, is_streamed=True).text
    found = answered('{"car": 1}}', is_streamed=False).json()
    assert found["content"][1]["input"] == {"car": 1}
    assert found["stop_reason"] == "tool_use"


def test_keys_may_be_where_the_client_has_them(servers):
    url = servers.url(keys=ApiKeys({"secret-key": "ann"}))
    assert Anthropic(base_url=url, api_key="secret-key").messages.create(**asked()).role == "assistant"
    with pytest.raises(APIStatusError) as error:
        Anthropic(base_url=url, api_key="wrong-key").messages.create(**asked())
    assert error.value.status_code == 401
    assert error.value.response.json()["error"]["type"] == "authentication_error"
