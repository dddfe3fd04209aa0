"""What is not done is refused by its name, in the form of OpenAI's API; nothing that is sent makes the server fail."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.serve.run.server.served_api import CHAT, COMPLETION, CONTEXT, FakeEngine, call_api, save_tiny

from trainyard.serve.errors import ServeError
from trainyard.serve.run.model_tokenizer import ModelTokenizer
from trainyard.serve.run.server.api_keys import ApiKeys
from trainyard.serve.run.server.api_server import ServerLimits

_JSON = {"Content-Type": "application/json"}
_PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")


def post(tokenizer, path, content, headers=_JSON, **more):
    """Status, headers and document of one answer."""

    async def work(client, api):
        sent = content if isinstance(content, bytes) else json.dumps(content).encode()
        answer = await client.post(path, content=sent, headers=headers)
        return answer.status_code, answer.headers, answer.json()

    return call_api(tokenizer, FakeEngine(list(b"abc")), work, **more)


def refusal(found, status):
    """The error of an answer, whose form is checked."""
    assert found[0] == status, found[2]
    assert found[2].keys() == {"error"}
    error = found[2]["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("audio", {"voice": "alloy"}),
        ("modalities", ["audio"]),
        ("prediction", {"type": "content", "content": "x"}),
        ("store", "yes"),
        ("service_tier", "flex"),
        ("web_search_options", {}),
        ("verbosity", "loud"),
        ("suffix", "x"),
        ("use_beam_search", True),
        ("spaces_between_special_tokens", False),
        ("return_token_ids", True),
        ("nonsense", 1),
    ],
)
@pytest.mark.parametrize(
    ("path", "body"), [(_PATHS[0], CHAT), (_PATHS[1], COMPLETION)], ids=["chat", "completion"]
)
def test_a_field_that_is_not_done_is_refused_by_name(tokenizer, path, body, field, value):
    error = refusal(post(tokenizer, path, body | {field: value}), 400)
    assert error["param"] == field
    assert field in error["message"]
    assert "leave it out" in error["message"]


def test_fields_that_ask_for_nothing_are_taken(tokenizer):
    nothing = {
        "tools": [], "tool_choice": "none", "functions": [], "response_format": {"type": "text"}, "n": 1, "store": True,
        "metadata": {"a": "b"}, "modalities": ["text"], "parallel_tool_calls": True, "service_tier": "auto", "stop": None,
        "logit_bias": {}, "reasoning_effort": None, "min_tokens": 0, "top_k": 0, "cache_salt": None,
        "prompt_cache_key": "k", "safety_identifier": "s", "verbosity": "low", "prompt_cache_retention": "24h",
        "skip_special_tokens": True, "bad_words": [], "structured_outputs": None, "allowed_token_ids": None,
    }  # fmt: skip
    assert post(tokenizer, _PATHS[0], CHAT | nothing)[0] == 200
    assert post(tokenizer, _PATHS[1], COMPLETION | nothing | {"echo": False, "best_of": 1})[0] == 200


@pytest.mark.parametrize(
    ("wrong", "param", "says"),
    [
        ({"temperature": 2.5}, "temperature", "2.5; allowed is 0 to 2"),
        ({"temperature": "1"}, "temperature", "'1'"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"top_k": -2}, "top_k", "-2"),
        ({"top_k": 2**63}, "top_k", "1 to 2147483647"),
        ({"min_p": 2}, "min_p", "allowed is 0 to 1"),
        ({"n": 0}, "n", "0"),
        ({"n": True}, "n", "True"),
        ({"max_tokens": 0}, "max_tokens", "0"),
        ({"max_tokens": 1.5}, "max_tokens", "1.5"),
        ({"seed": 2**70}, "seed", "9223372036854775807"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"stop": ""}, "stop", "1 to 1000"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "a number for each token"),
        ({"logit_bias": {"1000": 1}}, "logit_bias", "0 to 999"),
        ({"logit_bias": {"1": 200}}, "logit_bias", "-100 to 100"),
        ({"repetition_penalty": 0}, "repetition_penalty", "0.001 to 1000"),
        ({"presence_penalty": 3}, "presence_penalty", "-2 to 2"),
        ({"logprobs": 21}, "logprobs", "20"),
        ({"best_of": 2}, "best_of", "allowed is n"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "without stream"),
        ({"stream": True, "stream_options": {"other": 1}}, "stream_options.other", "leave it out"),
        ({"prompt": []}, "prompt", "allowed is a text"),
        ({"prompt": ["a", 1]}, "prompt", "allowed is a text"),
        ({"prompt": ""}, "prompt", "no tokens"),
        ({"prompt": [1000]}, "prompt", "0 to 999"),
        ({"prompt": [-1]}, "prompt", "0 to 999"),
        ({"prompt": ["a"] * 20, "n": 100}, "n", "2000 answers"),
        ({"prompt": [5] * CONTEXT}, "prompt", f"at most {CONTEXT}"),
        ({"prompt": [True]}, "prompt", "allowed is a text"),
        ({"prompt": [1.0]}, "prompt", "allowed is a text"),
        ({"prompt": [10**4000]}, "prompt", "0 to 999"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "0 to 999"),
        ({"stop_token_ids": [5, 1000]}, "stop_token_ids", "0 to 999"),
        ({"stop_token_ids": [10**20]}, "stop_token_ids", "0 to 999"),
        ({"stop_token_ids": [1e20]}, "stop_token_ids.0", "1e+20: allowed is a valid integer"),
        ({"stop_token_ids": [True]}, "stop_token_ids.0", "True: allowed is a valid integer"),
        ({"stop_token_ids": [1.0]}, "stop_token_ids.0", "1.0: allowed is a valid integer"),
        ({"stop_token_ids": [1] * 1001}, "stop_token_ids", "at most 1000"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "a number for each token"),
        ({"logit_bias": {"1": True}}, "logit_bias", "-100 to 100"),
        ({"logit_bias": {"1": "1"}}, "logit_bias", "-100 to 100"),
        ({"logit_bias": {"1": 10**400}}, "logit_bias", "-100 to 100"),
        ({"temperature": 10**400}, "temperature", "allowed is"),
        ({"seed": 10**4000}, "seed", "9223372036854775807"),
        ({"best_of": 10**4000}, "best_of", "allowed is n"),
        ({"user": "a" * 1025}, "user", "1024"),
        ({"model": "a" * 1025}, "model", "1024"),
        ({"priority": 2**40}, "priority", "2147483647"),
        ({"cache_salt": ""}, "cache_salt", "''"),
        ({"min_tokens": 17}, "min_tokens", "max_tokens, which is 16"),
        ({"min_tokens": -1}, "min_tokens", "-1"),
        ({"min_tokens": 2, "response_format": {"type": "json_object"}}, "min_tokens", "by the form"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "20"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "-1"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "leave one out"),
        ({"prompt": [5] * 500, "n": 100, "echo": True, "logprobs": 10}, "logprobs", "allowed are 262144"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "at least 1"),
        ({"allowed_token_ids": [1000]}, "allowed_token_ids", "0 to 999"),
        ({"allowed_token_ids": ["a"] * 9}, "allowed_token_ids.0", "valid integer"),
        ({"bad_words": [""]}, "bad_words.0", "at least 1"),
        ({"bad_words": [7] * 9}, "bad_words.0", "valid string"),
        ({"bad_words": ["a"] * 1001}, "bad_words", "at most 1000"),
        ({"bad_words": ["a" * 101]}, "bad_words.0", "at most 100"),
        ({"metadata": {"a": 1}}, "metadata.a", "valid string"),
        ({"tools": [{}]}, "tools", "leave it out"),
        ({"tool_choice": "required"}, "tool_choice", "leave it out"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_values_that_are_not_allowed(tokenizer, wrong, param, says):
    error = refusal(post(tokenizer, _PATHS[1], COMPLETION | wrong), 400)
    assert error["param"] == param
    assert says in error["message"]
    assert len(error["message"]) < 300


@pytest.mark.parametrize("tokens", [[-1], [1000], [10**20], [1e20], [True], [1.5], ["1"]])
def test_tokens_that_the_model_does_not_know_have_no_text(tokenizer, tokens):
    error = refusal(post(tokenizer, "/detokenize", {"tokens": tokens}), 400)
    assert error["param"] in ("tokens", "tokens.0")


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "at least 1"),
        ([{"role": "tool", "content": "a"}], "tool_call_id"),
        ([{"role": "user"}], "content"),
        ([{"role": "user", "content": "a", "name": "x"}], "messages.0.name"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "image_url"),
        ([{"role": "assistant", "content": "a", "tool_calls": [{}]}], "messages.0.tool_calls.0.id"),
        ("text", "'text'"),
    ],
    ids=str,
)
def test_messages_that_are_not_allowed(tokenizer, messages, says):
    assert (
        says in refusal(post(tokenizer, _PATHS[0], {"model": "tiny", "messages": messages}), 400)["message"]
    )


def test_only_completions_echo(tokenizer):
    assert "does not do it" in refusal(post(tokenizer, _PATHS[0], CHAT | {"echo": True}), 400)["message"]


def test_content_may_be_parts(tokenizer):
    parts = [{"type": "text", "text": "How many "}, {"type": "text", "text": "devices?"}]
    body = {"model": "tiny", "messages": [{"role": "user", "content": parts}]}
    found = [post(tokenizer, _PATHS[0], each)[2]["usage"]["prompt_tokens"] for each in (body, CHAT)]
    assert found[0] == found[1]


def test_a_model_without_a_template_does_not_chat(tmp_path):
    plain = ModelTokenizer(save_tiny(tmp_path, template=None))
    assert "no chat template" in refusal(post(plain, _PATHS[0], CHAT), 400)["message"]
    assert post(plain, _PATHS[1], COMPLETION)[0] == 200


def test_a_template_that_refuses_messages_is_told(tmp_path):
    tokenizer = ModelTokenizer(save_tiny(tmp_path, template="{{ raise_exception('roles must alternate') }}"))
    assert "roles must alternate" in refusal(post(tokenizer, _PATHS[0], CHAT), 400)["message"]


@pytest.mark.parametrize("path", _PATHS)
def test_an_unknown_model_is_not_found(tokenizer, path):
    body = {"model": "other"} | ({"messages": CHAT["messages"]} if "chat" in path else {})
    body |= {"tokens": [1]} if path == "/detokenize" else {} if "chat" in path else {"prompt": "a"}
    error = refusal(post(tokenizer, path, body), 404)
    assert error["code"] == "model_not_found"
    assert "known are tiny" in error["message"]


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_FIELDS = st.sampled_from(
    [
        "model",
        "prompt",
        "messages",
        "n",
        "stop",
        "logit_bias",
        "stream",
        "stream_options",
        "max_tokens",
        "seed",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "min_tokens",
        "echo",
        "temperature",
        "top_p",
        "logprobs",
        "top_logprobs",
        "tokens",
        "priority",
        "user",
        "cache_salt",
        "response_format",
    ]
)
_FIXTURE = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)


@_FIXTURE
@given(st.sampled_from(_PATHS), st.dictionaries(_FIELDS, _VALUES, max_size=3))
@example("/v1/completions", {"prompt": "\ud800"})
@example("/v1/completions", {"temperature": float("inf")})
@example("/v1/completions", {"logit_bias": {"١": 1}})
@example("/v1/chat/completions", {"messages": [None]})
def test_any_fields_are_answered_or_refused(tokenizer, path, fields):
    body = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETION}.get(path, {}) | fields
    found = call_api(
        tokenizer, FakeEngine(list(b"abc")), lambda client, api: _raw(client, path, json.dumps(body).encode())
    )
    assert found.status_code in (200, 400, 404)
    if found.status_code != 200:
        refusal((found.status_code, found.headers, found.json()), found.status_code)


@_FIXTURE
@given(st.sampled_from(_PATHS), st.binary(max_size=60))
@example("/v1/completions", b'{"model": "tiny", "prompt": "\xff"}')
@example("/v1/completions", b"[" * 100_000)
@example("/v1/completions", b'{"model": "tiny", "prompt": ' + b"[" * 900 + b"]" * 900 + b"}")
@example("/v1/completions", b'{"model": "tiny", "prompt": "a", "temperature": NaN}')
@example("/v1/completions", b'{"model": "tiny", "prompt": "a", "seed": ' + b"9" * 5000 + b"}")
def test_any_bytes_are_refused(tokenizer, path, content):
    found = post(tokenizer, path, content)
    refusal(found, 413 if found[0] == 413 else 400)


async def _raw(client, path, content):
    return await client.post(path, content=content, headers=_JSON)


def test_bodies_have_a_type_and_a_size(tokenizer):
    limits = ServerLimits(max_body_bytes=200)
    assert (
        "200 bytes"
        in refusal(post(tokenizer, _PATHS[1], COMPLETION | {"prompt": "a" * 200}, limits=limits), 413)[
            "message"
        ]
    )
    plain = {"Content-Type": "text/plain"}
    assert (
        "application/json" in refusal(post(tokenizer, _PATHS[1], COMPLETION, headers=plain), 415)["message"]
    )


def test_what_is_not_there_and_who_may_not_come(tokenizer):
    async def work(client, api):
        asks = (
            ("GET", "/nope"),
            ("GET", "/v1/completions"),
            ("POST", "/v1/images/generations"),
            ("GET", "/v1/models/no/where"),
        )
        found = [await client.request(method, path) for method, path in asks]
        found.append(await client.get("/v1/models", headers={"Host": "evil.example"}))
        return found

    found = call_api(tokenizer, FakeEngine([5]), work)
    for answer, status in zip(found, (404, 405, 404, 404, 403), strict=True):
        refusal((answer.status_code, answer.headers, answer.json()), status)


def test_keys_name_clients(tokenizer):
    keys = ApiKeys.read(["ann=key-of-ann", "bob=key-of-bob=="])
    engine = FakeEngine([70])

    async def work(client, api):
        async def status(authorization):
            headers = {"Authorization": authorization} if authorization else {}
            answer = await client.post("/v1/completions", json=COMPLETION | {"user": "eve"}, headers=headers)
            return answer.status_code, answer.headers.get("www-authenticate")

        found = [
            await status(each)
            for each in ("", "Bearer no", "Basic key-of-ann", "Bearer key-of-ann", "bearer key-of-bob==")
        ]
        free = [
            (await client.get(path)).status_code
            for path in ("/health", "/ready", "/metrics", "/v1/models", "/no")
        ]
        return found, free

    found, free = call_api(tokenizer, engine, work, keys=keys)
    assert found == [(401, "Bearer")] * 3 + [(200, None)] * 2
    assert free == [200, 200, 401, 401, 401]
    assert [request.client for request in engine.requests] == ["ann", "bob"]


def test_without_keys_the_user_is_the_client(tokenizer):
    engine = FakeEngine([70])

    async def work(client, api):
        await client.post("/v1/completions", json=COMPLETION | {"user": "eve", "priority": -3})

    call_api(tokenizer, engine, work)
    assert [(each.client, each.priority) for each in engine.requests] == [("eve", -3)]


def test_a_priority_that_no_policy_reads_is_refused(tokenizer):
    async def work(client, api):
        plain = await client.post("/v1/completions", json=COMPLETION | {"priority": 0})
        refused = await client.post("/v1/completions", json=COMPLETION | {"priority": 1})
        return plain.status_code, refused.status_code, refused.json()["error"]

    plain, refused, error = call_api(tokenizer, FakeEngine([70]), work, reads_priority=False)
    assert (plain, refused, error["param"]) == (200, 400, "priority")
    assert "--policy vllm+priority" in error["message"]


def test_keys_are_read_from_private_files(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# clients\nann=key-of-ann\n")
    with pytest.raises(ValueError, match="chmod 600"):
        ApiKeys.read([], path)
    path.chmod(0o600)
    assert ApiKeys.read(["bob=key-of-bob"], path).by_key == {"key-of-bob": "bob", "key-of-ann": "ann"}
    for wrong, says in (("ann", "NAME=KEY"), ("ann=short", "8 or more"), ("bob=key-of-ann", "is ann's")):
        with pytest.raises(ServeError, match=says):
            ApiKeys.read(["ann=key-of-ann", wrong])
    assert "key-of-ann" not in repr(ApiKeys.read(["ann=key-of-ann"]))


@pytest.mark.parametrize("logs", [False, True])
def test_prompts_are_logged_only_if_asked(tokenizer, caplog, logs):
    caplog.set_level(logging.DEBUG)

    async def work(client, api):
        await client.post("/v1/completions", json=COMPLETION | {"prompt": "very secret"})
        await client.post("/v1/completions", json=COMPLETION | {"prompt": "very secret", "temperature": 9})
        await client.post(
            "/v1/chat/completions", json=CHAT | {"messages": [{"role": "user", "content": "very secret"}]}
        )

    call_api(tokenizer, FakeEngine([70]), work, logs_prompts=logs)
    assert ("secret" in caplog.text) == logs
    assert caplog.text.count("POST '/v1/completions'") == 2
