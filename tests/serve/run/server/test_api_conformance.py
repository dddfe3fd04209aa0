"""Answers of a real server, held against the types of OpenAI's own client, and streams against their rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from openai import NotFoundError, OpenAI
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel
from tests.serve.run.server.served_api import CHAT, COMPLETION, CONTEXT, END

_ASKED = [
    {},
    {"n": 3, "temperature": 1.3, "top_p": 0.9, "top_k": 50, "min_p": 0.01},
    {"stop": ["e", "qq"], "temperature": 0.0},
    {"logit_bias": {str(END): 100}},
    {"presence_penalty": 1, "frequency_penalty": 0.5, "repetition_penalty": 1.2, "ignore_eos": True},
    {"store": False, "tools": [], "response_format": {"type": "text"}, "user": "u", "suffix": None},
]
_LOGPROBS = {"chat/completions": {"logprobs": True, "top_logprobs": 3}, "completions": {"logprobs": 3}}
_BODIES = {"chat/completions": CHAT, "completions": COMPLETION}
_OWN_KEYS = {"max_model_len", "parent"}  # of a model, as vLLM has them


def unknown_keys(value: Any) -> Iterator[str]:
    """Keys that OpenAI's types do not have."""
    if isinstance(value, BaseModel):
        yield from value.model_extra or ()
        for name in type(value).model_fields:
            yield from unknown_keys(getattr(value, name))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from unknown_keys(each)


def valid(kind: type[BaseModel], document: Any) -> Any:
    found = kind.model_validate(document, strict=True)
    assert set(unknown_keys(found)) <= _OWN_KEYS
    return found


def events(url: str, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The documents of a stream; its framing is checked."""
    with httpx2.stream("POST", f"{url}/v1/{path}", json=body | {"stream": True}, timeout=600) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        raw = b"".join(answer.iter_raw()).decode()
    assert raw.endswith("\n\n")
    lines = raw[:-2].split("\n\n")
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def plain(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx2.post(f"{url}/v1/{path}", json=body, timeout=600)
    assert answer.status_code == 200, answer.text
    return answer.json()


def text_of(choice: dict[str, Any]) -> str:
    said = choice.get("message") or choice.get("delta") or choice
    return said.get("content") or said.get("text") or ""


@pytest.mark.parametrize("more", _ASKED, ids=str)
@pytest.mark.parametrize("path", list(_BODIES))
@pytest.mark.parametrize("tells", [False, True], ids=["text", "logprobs"])
def test_a_stream_joined_is_the_whole_answer(url, path, more, tells):
    body = _BODIES[path] | {"max_tokens": 12, "seed": 3} | more | (_LOGPROBS[path] if tells else {})
    whole, chunks = plain(url, path, body), events(url, path, body)
    num = body.get("n", 1)
    assert [choice["index"] for choice in whole["choices"]] == list(range(num))
    assert len({chunk["id"] for chunk in chunks}) == 1
    for index, expected in enumerate(whole["choices"]):
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert "".join(map(text_of, mine)) == text_of(expected)
        assert [c["finish_reason"] for c in mine][:-1] == [None] * (len(mine) - 1)
        assert mine[-1]["finish_reason"] == expected["finish_reason"] in ("stop", "length")
        if path == "chat/completions":
            assert mine[0]["delta"] == {"role": "assistant", "content": ""}
            assert not any("role" in c["delta"] for c in mine[1:])
        told = [c["logprobs"] for c in mine if c["logprobs"]]
        if tells and path == "chat/completions":
            assert [each for part in told for each in part["content"]] == expected["logprobs"]["content"]
        elif tells:
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                assert [each for part in told for each in part[name]] == expected["logprobs"][name]


@pytest.mark.parametrize("more", _ASKED, ids=str)
@pytest.mark.parametrize("tells", [False, True], ids=["text", "logprobs"])
def test_documents_are_those_of_the_api(url, more, tells):
    def asked(path):
        return _BODIES[path] | {"max_tokens": 6} | more | (_LOGPROBS[path] if tells else {})

    valid(ChatCompletion, plain(url, "chat/completions", asked("chat/completions")))
    valid(Completion, plain(url, "completions", asked("completions")))
    for chunk in events(url, "chat/completions", asked("chat/completions")):
        valid(ChatCompletionChunk, chunk)
    for chunk in events(url, "completions", asked("completions")):
        for choice in chunk["choices"]:  # null until the end, which OpenAI's types leave out
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        valid(Completion, chunk)


@pytest.mark.parametrize("path", list(_BODIES))
def test_a_stream_ends_with_what_was_used_if_asked(url, path):
    body = _BODIES[path] | {"max_tokens": 5, "ignore_eos": True, "n": 2}
    chunks = events(url, path, body | {"stream_options": {"include_usage": True}})
    assert len(chunks) > 2  # one for each sample, at least
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    usage = chunks[-1]["usage"]
    assert usage["completion_tokens"] == 10
    assert usage["total_tokens"] == usage["prompt_tokens"] + 10
    assert usage["prompt_tokens"] == plain(url, path, body)["usage"]["prompt_tokens"] > 0
    assert not any("usage" in chunk for chunk in events(url, path, body))


@pytest.mark.parametrize("path", list(_BODIES))
def test_every_chunk_says_what_was_used_if_asked(url, path):
    asked = {"include_usage": True, "continuous_usage_stats": True}
    body = _BODIES[path] | {"max_tokens": 5, "ignore_eos": True, "stream_options": asked}
    chunks = events(url, path, body)
    used = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert used == sorted(used)
    assert used[-1] == 5
    body["stream_options"] = {"continuous_usage_stats": True}  # says nothing without the other
    assert not any("usage" in chunk for chunk in events(url, path, body))


def test_the_client_of_openai_is_content(url):
    client = OpenAI(base_url=f"{url}/v1", api_key="any", _strict_response_validation=True)
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "trainyard"
    chat = client.chat.completions.create(
        model="tiny",
        messages=CHAT["messages"],
        max_completion_tokens=7,
        seed=1,
        logprobs=True,
        top_logprobs=2,
    )
    stream = client.chat.completions.create(
        model="tiny", messages=CHAT["messages"], max_completion_tokens=7, seed=1, stream=True
    )
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in stream) == chat.choices[0].message.content
    )
    assert len(client.completions.create(model="tiny", prompt=["a", "b"], n=2).choices) == 4
    # What it answered may be said to it again as it is.
    client.chat.completions.create(
        model="tiny", messages=[*CHAT["messages"], chat.choices[0].message, CHAT["messages"][0]], max_tokens=3
    )
    with pytest.raises(NotFoundError, match="known are tiny"):
        client.completions.create(model="other", prompt="a")


def test_prompts_have_four_forms(url):
    texts = ["The cluster", "A rank"]
    tokens = [httpx2.post(f"{url}/tokenize", json={"prompt": text}).json()["tokens"] for text in texts]
    more = {"model": "tiny", "temperature": 0, "max_tokens": 6, "n": 2}

    def answers(prompt):
        return [choice["text"] for choice in plain(url, "completions", more | {"prompt": prompt})["choices"]]

    one, other = answers(texts[0]), answers(texts[1])
    assert one[0] == one[1] != other[0]
    assert answers(texts) == one + other == answers(tokens)
    assert answers(tokens[0]) == one


def test_an_answer_ends_before_a_stop(url):
    body = COMPLETION | {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    whole = plain(url, "completions", body)["choices"][0]["text"]
    stop = whole[5:8]
    found = plain(url, "completions", body | {"stop": stop})
    assert found["choices"][0]["text"] == whole[: whole.index(stop)]
    assert found["choices"][0]["finish_reason"] == "stop"
    assert found["usage"]["completion_tokens"] < 12


def test_an_end_token_ends_an_answer_and_is_not_in_it(url):
    forced = COMPLETION | {"logit_bias": {str(END): 100}, "max_tokens": 4, "logprobs": 0}
    found = plain(url, "completions", forced)
    assert (found["choices"][0]["text"], found["choices"][0]["finish_reason"]) == ("", "stop")
    assert found["choices"][0]["logprobs"]["tokens"] == []
    assert found["usage"]["completion_tokens"] == 1
    on = plain(url, "completions", forced | {"ignore_eos": True})
    assert (on["choices"][0]["finish_reason"], on["usage"]["completion_tokens"]) == ("length", 4)


def test_an_answer_does_not_end_before_its_least_tokens(url):
    body = COMPLETION | {"logit_bias": {str(END): 100}, "min_tokens": 3, "max_tokens": 9, "n": 4, "seed": 1}
    found = plain(url, "completions", body)
    assert found["usage"]["completion_tokens"] == 4 * (3 + 1)
    assert [choice["finish_reason"] for choice in found["choices"]] == ["stop"] * 4
    chat = plain(url, "chat/completions", CHAT | {"stop_token_ids": list(range(900)), "min_tokens": 5})
    assert chat["usage"]["completion_tokens"] > 5


def test_stops_are_looked_for_behind_the_least_tokens(url):
    body = COMPLETION | {
        "temperature": 0,
        "max_tokens": 12,
        "ignore_eos": True,
        "logit_bias": {str(END): -100},
    }
    whole = plain(url, "completions", body | {"logprobs": 0})["choices"][0]
    start = whole["logprobs"]["text_offset"][6]
    stop = whole["text"][0]
    found = plain(url, "completions", body | {"stop": stop, "min_tokens": 6})["choices"][0]
    assert whole["text"].startswith(found["text"])
    assert len(found["text"]) >= start
    behind = whole["text"].find(stop, start)
    assert found["text"] == (whole["text"] if behind < 0 else whole["text"][:behind])
    assert plain(url, "completions", body | {"stop": stop})["choices"][0]["text"] == ""


def test_prompts_are_echoed(url):
    body = {"model": "tiny", "temperature": 0, "max_tokens": 6, "n": 2}
    tokens = [
        httpx2.post(f"{url}/tokenize", json={"prompt": text}).json()["tokens"] for text in ("a car", "é")
    ]
    for prompt in (["a car", "é"], tokens, "a car", tokens[1]):
        given = body | {"prompt": prompt}
        answers = [choice["text"] for choice in plain(url, "completions", given)["choices"]]
        texts = ["a car", "é"] if len(answers) == 4 else ["a car" if prompt == "a car" else "é"]
        expected = [
            text + answer for text, answer in zip([t for t in texts for _ in "nn"], answers, strict=True)
        ]
        whole = plain(url, "completions", given | {"echo": True})
        assert [choice["text"] for choice in whole["choices"]] == expected
        chunks = events(url, "completions", given | {"echo": True})
        for index, text in enumerate(expected):
            mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
            assert "".join(map(text_of, mine)) == text
            assert [c["finish_reason"] is None for c in mine] == [True] * (len(mine) - 1) + [False]


def test_answers_are_cut_at_the_longest_sequence(url):
    found = plain(url, "completions", {"model": "tiny", "prompt": [5] * (CONTEXT - 3), "max_tokens": 100})
    assert found["usage"]["total_tokens"] <= CONTEXT
    assert found["choices"][0]["finish_reason"] in ("length", "stop")


def test_logprobs_say_where_tokens_are(url):
    body = COMPLETION | {
        "max_tokens": 20,
        "logprobs": 2,
        "seed": 5,
        "ignore_eos": True,
        "logit_bias": {str(END): -100},
    }
    (choice,) = plain(url, "completions", body)["choices"]
    told = choice["logprobs"]
    assert len({len(told[name]) for name in told}) == 1
    assert len(told["tokens"]) == 20
    for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
        if not token.startswith("bytes:"):
            assert choice["text"][offset:].lstrip("\ufffd").startswith(token)
    assert all(token in likely for token, likely in zip(told["tokens"], told["top_logprobs"], strict=True))


def test_only_equal_salts_share_cached_blocks(url):
    def cached(prompt, **salt):
        body = {"model": "tiny", "prompt": [prompt] * 40, "max_tokens": 1, **salt}
        return plain(url, "completions", body)["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [cached(11), cached(11)] == [0, 32]
    assert [cached(11, cache_salt="a"), cached(11, cache_salt="a"), cached(11, cache_salt="b")] == [0, 32, 0]


def test_a_reset_of_the_prefix_cache_forgets_what_was_cached(url):
    def cached():
        body = {"model": "tiny", "prompt": [13] * 40, "max_tokens": 1}
        return plain(url, "completions", body)["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [cached(), cached()] == [0, 32]
    assert httpx2.post(f"{url}/reset_prefix_cache").status_code == 200
    assert [cached(), cached()] == [0, 32]


def test_tokens_and_text(url):
    def post(path, **body):
        return httpx2.post(f"{url}/{path}", json=body).json()

    found = post("tokenize", prompt="a 😀 car")
    assert (found["count"], found["max_model_len"]) == (len(found["tokens"]), CONTEXT)
    assert post("detokenize", tokens=found["tokens"]) == {"prompt": "a 😀 car"}
    chat = post("tokenize", messages=CHAT["messages"])
    assert chat["count"] == plain(url, "chat/completions", CHAT | {"max_tokens": 1})["usage"]["prompt_tokens"]
    assert post("tokenize", messages=CHAT["messages"], add_generation_prompt=False)["count"] < chat["count"]


def test_models_and_requests_have_names(url):
    listed = httpx2.get(f"{url}/v1/models").json()
    assert listed["object"] == "list"
    assert [valid(Model, each).id for each in listed["data"]] == ["tiny"]
    assert (
        httpx2.get(f"{url}/v1/models", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    )
    made = [
        httpx2.get(f"{url}/health", headers={"X-Request-Id": "a b"}).headers["x-request-id"] for _ in range(2)
    ]
    assert len(set(made)) == 2
    assert httpx2.get(f"{url}/ready").status_code == httpx2.get(f"{url}/health").status_code == 200
    assert httpx2.get(f"{url}/version").json().keys() == {"version"}
