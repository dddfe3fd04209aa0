"""Tools through the server: calls that a model with random weights must make, and calls that it chooses to make."""

from __future__ import annotations

import json

import httpx2
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tests.serve.run.server.served_api import CHAT, END, FakeEngine, call_api, save_tiny
from tests.serve.run.server.test_api_conformance import events, plain, valid
from tests.serve.run.server.test_api_refusals import post, refusal
from tokenizers import AddedToken
from transformers import AutoTokenizer

from trainyard.serve.run.model_tokenizer import ModelTokenizer
from trainyard.serve.run.server.chat_messages import Tool
from trainyard.serve.run.server.tools.tool_use import ToolUse

_PATH = "/v1/chat/completions"


def tool(name, **properties):
    parameters = {
        "type": "object",
        "properties": {key: {"enum": values} for key, values in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


_COUPLE, _BRAKE = tool("couple", car=["box", "tank"], axles=[2, 4]), tool("brake", now=[True, False])
_TOOLS = CHAT | {"tools": [_COUPLE, _BRAKE], "max_tokens": 400, "seed": 3, "temperature": 1.2}
_REQUIRED = _TOOLS | {"tool_choice": "required"}
_ONE = _REQUIRED | {"parallel_tool_calls": False}
_NAMED = _TOOLS | {"tool_choice": {"type": "function", "function": {"name": "couple"}}}
_SHARED = {
    "type": "function",
    "function": {
        "name": "route",
        "parameters": {
            "type": "object",
            "properties": {"start": {"$ref": "#/$defs/Track"}, "stop": {"$ref": "#/properties/start"}},
            "required": ["start", "stop"],
            "additionalProperties": False,
            "$defs": {"Track": {"enum": ["north", "south"]}},
        },
    },
}


def is_call(call):
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "brake":
        return arguments.keys() == {"now"} and arguments["now"] in (True, False)
    return (
        call["function"]["name"] == "couple"
        and arguments.keys() == {"car", "axles"}
        and arguments["car"] in ("box", "tank")
        and arguments["axles"] in (2, 4)
    )


def joined(chunks, index):
    """The message of one choice whose chunks are put together, as clients do it."""
    content, calls, reasons = "", [], []
    for choice in (each for chunk in chunks for each in chunk["choices"] if each["index"] == index):
        content += choice["delta"].get("content") or ""
        reasons.append(choice["finish_reason"])
        for part in choice["delta"].get("tool_calls", ()):
            if part["index"] == len(calls):
                assert part.keys() == {"index", "id", "type", "function"}
                calls.append({name: part[name] for name in ("type", "function")})
            else:
                assert part.keys() == {"index", "function"}
                assert part["index"] == len(calls) - 1
                assert part["function"].keys() == {"arguments"}
                calls[-1]["function"]["arguments"] += part["function"]["arguments"]
    assert set(reasons[:-1]) <= {None}
    return content, calls, reasons[-1]


def said(choice):
    message = choice["message"]
    calls = [{name: call[name] for name in ("type", "function")} for call in message.get("tool_calls", ())]
    return message["content"] or "", calls, choice["finish_reason"]


def test_required_calls_are_calls(url):
    choices = plain(url, "chat/completions", _REQUIRED | {"n": 6})["choices"]
    assert {choice["finish_reason"] for choice in choices} <= {"tool_calls", "length"}
    calls = [choice["message"].get("tool_calls", ()) for choice in choices]
    whole = [each for each, choice in zip(calls, choices, strict=True) if choice["finish_reason"] != "length"]
    assert all(each and all(map(is_call, each)) for each in whole)
    assert len({call["id"] for each in calls for call in each}) == sum(map(len, calls)) >= 6
    assert not any(choice["message"]["content"] for choice in choices)


def test_required_calls_are_one_if_they_are_not_parallel(url):
    for choice in plain(url, "chat/completions", _ONE | {"n": 6})["choices"]:
        (call,) = choice["message"]["tool_calls"]
        assert is_call(call)
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None


def test_a_named_tool_is_called(url):
    found = plain(url, "chat/completions", _NAMED | {"n": 4})
    assert [choice["finish_reason"] for choice in found["choices"]] == [
        "stop"
    ] * 4  # as OpenAI and vLLM have it
    for choice in found["choices"]:
        (call,) = choice["message"]["tool_calls"]
        assert is_call(call)
        assert call["function"]["name"] == "couple"


@pytest.mark.parametrize("body", [_REQUIRED, _ONE, _NAMED], ids=["required", "one", "named"])
@pytest.mark.parametrize("more", [{}, {"max_tokens": 6}, {"logprobs": True}], ids=str)
def test_streamed_calls_joined_are_the_whole_ones(url, body, more):
    body = body | {"n": 3} | more
    whole, chunks = plain(url, "chat/completions", body), events(url, "chat/completions", body)
    valid(ChatCompletion, whole)
    for chunk in chunks:
        valid(ChatCompletionChunk, chunk)
    assert [joined(chunks, index) for index in range(3)] == [said(choice) for choice in whole["choices"]]
    if "max_tokens" in more:
        assert "length" in [choice["finish_reason"] for choice in whole["choices"]]
    elif more:
        told = [
            c["logprobs"] for chunk in chunks for c in chunk["choices"] if c["index"] == 1 and c["logprobs"]
        ]
        tokens = [each for part in told for each in part["content"]]
        assert tokens == whole["choices"][1]["logprobs"]["content"] != []


def test_parameters_may_refer_to_each_other(url):
    for choice in ("required", {"type": "function", "function": {"name": "route"}}):
        body = _ONE | {"tools": [_BRAKE, _SHARED], "tool_choice": choice, "n": 4}
        for found in plain(url, "chat/completions", body)["choices"]:
            (call,) = found["message"]["tool_calls"]
            arguments = json.loads(call["function"]["arguments"])
            assert arguments.keys() == ({"now"} if call["function"]["name"] == "brake" else {"start", "stop"})
            assert set(arguments.values()) <= {"north", "south", True, False}


def test_the_client_of_openai_takes_calls_and_gives_answers(url):
    client = OpenAI(base_url=f"{url}/v1", api_key="any", _strict_response_validation=True)
    given = {
        "model": "tiny",
        "messages": CHAT["messages"],
        "tools": _TOOLS["tools"],
        "parallel_tool_calls": False,
    }
    chat = client.chat.completions.create(**given, tool_choice="required")
    message = chat.choices[0].message
    (call,) = message.tool_calls
    answer = {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "done"}]}
    more = given | {"messages": [*CHAT["messages"], message, answer]}
    assert client.chat.completions.create(**more, tool_choice="none", max_tokens=3).usage.prompt_tokens > 0
    with client.chat.completions.stream(**given, tool_choice="required") as stream:
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
        assert is_call(call.model_dump())


def auto(tokenizer, text, **more):
    """What a model that writes a text is understood to say, whole and streamed; the two are the same."""
    tokens = [*tokenizer.encode(text), END] if isinstance(text, str) else text
    body = CHAT | {"tools": [_COUPLE, _BRAKE]} | more

    async def work(client, api):
        whole = await client.post(_PATH, json=body)
        streamed = await client.post(_PATH, json=body | {"stream": True})
        return whole, streamed.text, api.metrics.text().decode()

    whole, text, metrics = call_api(tokenizer, FakeEngine(tokens), work, tool_call_parser="hermes")
    assert whole.status_code == 200, whole.text
    chunks = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n")[:-2]]
    for chunk in chunks:
        valid(ChatCompletionChunk, chunk)
    (choice,) = valid(ChatCompletion, whole.json()).model_dump(exclude_none=True)["choices"]
    found = said({"message": {"content": None} | choice["message"], "finish_reason": choice["finish_reason"]})
    assert joined(chunks, 0) == found
    assert 'finished_reason="tool_calls"' not in metrics
    return found


_HERMES = '<tool_call>\n{"name": "brake", "arguments": {"now": true}}\n</tool_call>'


def test_calls_that_the_model_chooses(tokenizer):
    def call(name, arguments):
        return {"type": "function", "function": {"name": name, "arguments": arguments}}

    brake = call("brake", '{"now": true}')
    assert auto(tokenizer, _HERMES) == ("", [brake], "tool_calls")
    assert auto(tokenizer, f"Now.\n{_HERMES}\n{_HERMES}") == ("Now.\n", [brake, brake], "tool_calls")
    assert auto(tokenizer, f"{_HERMES}\n{_HERMES}", parallel_tool_calls=False) == ("", [brake], "tool_calls")
    assert auto(tokenizer, "It has 2 < 4 devices.") == ("It has 2 < 4 devices.", [], "stop")
    cut = len(tokenizer.encode(_HERMES[:-20]))
    text, (part,), reason = auto(tokenizer, _HERMES, max_tokens=cut)
    assert (text, part["function"]["name"], reason) == ("", "brake", "length")
    assert '{"now": true}'.startswith(part["function"]["arguments"])
    assert auto(tokenizer, _HERMES, tool_choice="none") == (_HERMES, [], "stop")
    assert auto(tokenizer, _HERMES, stop='"now"') == ("", [call("brake", "{")], "stop")


def with_tags(folder, *, special):
    """A tokenizer with tokens for tags, as many models have it, and one more."""
    pretrained = AutoTokenizer.from_pretrained(save_tiny(folder))
    tags = [AddedToken(tag, special=special) for tag in ("<tool_call>", "</tool_call>", "<other>")]
    pretrained.add_tokens(tags, special_tokens=special)
    pretrained.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 1024}))
    return ModelTokenizer(folder)


def test_tags_that_are_special_tokens_are_seen(tmp_path):
    tokenizer = with_tags(tmp_path, special=True)
    tokens = tokenizer.encode(f"a<other>{_HERMES}")
    assert tokenizer.decode(tokens) == "a" + _HERMES.removeprefix("<tool_call>").removesuffix("</tool_call>")
    content, calls, reason = auto(tokenizer, [*tokens, END])
    assert (content, len(calls), reason) == ("a", 1, "tool_calls")


_CAR = {
    "type": "object",
    "properties": {"car": {"const": "box"}},
    "required": ["car"],
    "additionalProperties": False,
}
_FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "car", "schema": _CAR}}}


def strict(given):
    return given | {"function": given["function"] | {"strict": True}}


@pytest.mark.parametrize("tags", ["text", "tokens", "special tokens"])
@pytest.mark.parametrize("is_parallel", [True, False], ids=["parallel", "one"])
@pytest.mark.parametrize("has_format", [True, False], ids=["json", "text"])
def test_calls_of_strict_tools_conform_where_the_model_chooses(
    tokenizer, tmp_path, tags, is_parallel, has_format
):
    if tags != "text":
        tokenizer = with_tags(tmp_path, special=tags == "special tokens")
    tools = [Tool(**strict(_BRAKE)), Tool(**_COUPLE)]
    schema = json.dumps(_CAR) if has_format else ""
    form = ToolUse(tools, None, is_parallel).answers("hermes", tokenizer, schema).form
    free = '<tool_call>\n{"name": "couple", "arguments": {"any": 1}}\n</tool_call>'  # it is not strict

    def may_say(text):
        constraint = tokenizer.structured_outputs.constraint(form)
        for token in (*tokenizer.encode(text), END):
            allowed = constraint.allowed()
            if not allowed[token // 32] >> (token % 32) & 1:
                return False
            constraint.take(token)
        return True

    said = {
        _HERMES: True,
        free: True,
        f"{_HERMES}\n{free}": is_parallel,
        "Now. " + _HERMES: not has_format,
        "It has 2 < 4 devices.": not has_format,
        '{"car": "box"}': True,
        '{"car": "tank"}': not has_format,
        _HERMES.replace("true", "1"): False,
        _HERMES.replace("brake", "other"): False,
        "<tool_call>now": False,
    }
    assert {text: may_say(text) for text in said} == said


def test_an_answer_is_a_call_or_conforms_to_the_format(url):
    body = _TOOLS | {"tools": [strict(_BRAKE)], "n": 12, "parallel_tool_calls": False} | _FORMAT
    choices = plain(url, "chat/completions", body)["choices"]
    for choice in choices:
        if choice["finish_reason"] == "stop":
            assert json.loads(choice["message"]["content"]) == {"car": "box"}
        else:
            assert choice["finish_reason"] == "tool_calls"
            assert is_call(*choice["message"]["tool_calls"])
    assert len(choices) == 12


def test_the_template_is_told_of_tools_unless_none_may_be_called(url):
    def num(**more):
        return plain(url, "chat/completions", CHAT | more | {"max_tokens": 1})["usage"]["prompt_tokens"]

    tools = {"tools": [_BRAKE]}
    assert num(**tools, tool_choice="none") == num()
    counted = httpx2.post(f"{url}/tokenize", json={"messages": CHAT["messages"], **tools}).json()["count"]
    assert num(**tools, tool_choice="required") == counted > num()


def called_with(arguments):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "tool_calls": [call]}


def test_arguments_of_earlier_calls_are_objects_for_the_template(tokenizer):
    found = post(tokenizer, "/tokenize", {"messages": [called_with('{"a": 1}')]})
    assert "{'a': 1}" in tokenizer.decode(found[2]["tokens"])


@pytest.mark.parametrize(
    ("more", "param", "says"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools.0.type", "'function'"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name", "required"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name", "pattern"),
        ({"tools": [tool("f"), tool("f")]}, "tools", "two functions 'f'"),
        ({"tools": [tool("f")] * 129}, "tools", "128"),
        ({"tools": [_BRAKE | {"function": {"name": "f", "parameters": {"type": "array"}}}]},
         "tools.0.function.parameters", '"type": "object"'),
        ({"tools": [_BRAKE | {"function": {"name": "f", "parameters": {"type": "object", "minProperties": "x"}}}],
          "tool_choice": "required"}, "tools", "minProperties"),
        ({"tool_choice": "required"}, "tool_choice", "tools is empty"),
        ({"tools": [_BRAKE], "tool_choice": "any"}, "tool_choice", "none, auto, required"),
        ({"tools": [_BRAKE], "tool_choice": {"type": "allowed_tools"}}, "tool_choice", "none, auto, required"),
        ({"tools": [_BRAKE], "tool_choice": {"type": "function", "function": {"name": "f"}}},
         "tool_choice", "known in tools are brake"),
        ({"tools": [_BRAKE]}, "tool_choice", "--tool-call-parser"),
        ({"tools": [_BRAKE], "tool_choice": "required", "response_format": {"type": "json_object"}},
         "response_format", "do not go together"),
        ({"tools": [_BRAKE], "tool_choice": "required", "ignore_eos": True}, "tools", "ignore_eos"),
        ({"tools": [_BRAKE], "tool_choice": "required", "min_tokens": 2}, "min_tokens", "leave one out"),
    ],
    ids=str,
)  # fmt: skip
def test_tools_that_cannot_be_are_refused(tokenizer, more, param, says):
    error = refusal(post(tokenizer, _PATH, CHAT | more), 400)
    assert error["param"] == param
    assert says in error["message"]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"role": "tool", "content": "a"}, "tool_call_id"),
        ({"role": "user", "content": "a", "tool_call_id": "1"}, "tool_call_id"),
        (called_with("{}") | {"role": "user", "content": "a"}, "allowed is assistant"),
        ({"role": "assistant"}, "content is missing"),
        (called_with("{"), "text of a JSON object"),
        (called_with("[]"), "text of a JSON object"),
    ],
    ids=str,
)  # fmt: skip
def test_messages_of_tools_that_cannot_be_are_refused(tokenizer, message, says):
    assert says in refusal(post(tokenizer, _PATH, CHAT | {"messages": [message]}), 400)["message"]


def nested(num):
    return {"type": "object"} if num < 2 else {"type": "object", "a": nested(num - 1)}


@pytest.mark.parametrize("num", [64, 65, 300])
@pytest.mark.parametrize("choice", ["required", "auto", "none"])
def test_nothing_is_nested_too_deeply(tokenizer, num, choice):
    deep = {"type": "function", "function": {"name": "f", "parameters": nested(num)}}
    found = post(tokenizer, _PATH, CHAT | {"tools": [deep], "tool_choice": choice}, tool_call_parser="hermes")
    called = post(tokenizer, _PATH, CHAT | {"messages": [called_with(json.dumps(nested(num)))]})
    for each in (found, called):
        told = each[2]["error"]["message"] if each[0] != 200 else ""
        assert each[0] in (200, 400)
        assert ("objects and lists within each other" in told) == (num > 64)


def test_what_is_told_of_a_large_schema_is_short(tokenizer):
    parameters = {"type": "object", "properties": {"a": {"enum": list(range(300_000))}}}
    strict = {"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}
    found = post(tokenizer, _PATH, CHAT | {"tools": [strict]}, tool_call_parser="hermes")
    assert len(refusal(found, 400)["message"]) < 2100


def test_a_template_without_tools_is_told(tmp_path):
    plain_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer = ModelTokenizer(save_tiny(tmp_path, template=plain_template))
    engine = FakeEngine(tokenizer.encode('{"now": true}'))

    def ask(choice):
        body = CHAT | {"tools": [_BRAKE], "tool_choice": choice}
        return call_api(
            tokenizer, engine, lambda client, _: client.post(_PATH, json=body), tool_call_parser="hermes"
        )

    assert "template of the model leaves out the tools" in ask("auto").json()["error"]["message"]
    assert ask({"type": "function", "function": {"name": "brake"}}).status_code == 200
