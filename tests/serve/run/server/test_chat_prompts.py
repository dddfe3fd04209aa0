"""Prompts of chats as requests ask for them, and what of an answer's tokens becomes text."""

from __future__ import annotations

from typing import Any

import pytest
from tests.serve.run.server.served_api import CHAT, COMPLETION, END, FakeEngine, call_api

from trainyard.serve.errors import ServeError
from trainyard.serve.run.chat_variables import template_variables
from trainyard.serve.run.model_tokenizer import ModelTokenizer

_START = 1  # the token <|start|>, which is special
_TEMPLATE = (
    "{{ bos_token }}{% generation %}{% set own = 1 %}{% for m in messages %}{% if loop.last %}{% break %}{% endif %}"
    "{{ m.content }}{% endfor %}{% endgeneration %}{{ strftime_now('%d') }}{{ own }}{{ style }}{{ documents }}"
)


def asked(
    tokenizer: ModelTokenizer, path: str, body: dict[str, Any], tokens: list[int]
) -> tuple[int, Any, str]:
    """Status and document of an answer that has some tokens, and the text of the prompt."""
    engine = FakeEngine(tokens)
    answer = call_api(tokenizer, engine, lambda client, _: client.post(f"/v1/{path}", json=body))
    shown = tokenizer.special_ids
    prompt = tokenizer.decode(engine.requests[-1].prompt_ids, shown) if engine.requests else ""
    return answer.status_code, answer.json(), prompt


def test_a_final_message_is_continued(tokenizer):
    messages = [*CHAT["messages"], {"role": "assistant", "content": "There are "}]
    body = CHAT | {"messages": messages, "continue_final_message": True}
    status, _, prompt = asked(tokenizer, "chat/completions", body, [70])
    assert status == 200
    assert prompt.endswith("<|start|>assistant\nThere are ")
    status, found, _ = asked(tokenizer, "chat/completions", body | {"add_generation_prompt": True}, [70])
    assert status == 400
    assert found["error"]["param"] == "continue_final_message"
    _, _, prompt = asked(tokenizer, "chat/completions", CHAT | {"add_generation_prompt": False}, [70])
    assert prompt.endswith("How many devices?<|end|>")
    _, _, prompt = asked(tokenizer, "chat/completions", CHAT, [70])
    assert prompt.endswith("<|start|>assistant\n")


def test_a_message_with_calls_is_not_continued(tokenizer):
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [*CHAT["messages"], {"role": "assistant", "content": "x", "tool_calls": [call]}]
    body = CHAT | {"messages": messages, "continue_final_message": True}
    status, found, _ = asked(tokenizer, "chat/completions", body, [70])
    assert status == 400
    assert "the last message has tool_calls" in found["error"]["message"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"chat_template_kwargs": {"enable_thinking": False}}, "does not read 'enable_thinking'"),
        ({"chat_template_kwargs": {"messages": []}}, "does not read 'messages'"),
        ({"chat_template_kwargs": {"tokenize": True}}, "does not read 'tokenize'"),
        ({"reasoning_effort": "low"}, "does not read 'reasoning_effort'"),
    ],
)
def test_what_a_template_does_not_read_is_refused(tokenizer, more, says):
    status, found, _ = asked(tokenizer, "chat/completions", CHAT | more, [70])
    assert status == 400
    assert says in found["error"]["message"]
    assert asked(tokenizer, "chat/completions", CHAT | {"chat_template_kwargs": {}}, [70])[0] == 200


def test_the_variables_of_a_template_are_those_that_it_reads():
    given = {"style": [1]}
    assert template_variables(_TEMPLATE, given, "", {"bos_token"}) == given
    for name in ("bos_token", "documents", "own", "loop", "m", "strftime_now", "other"):
        with pytest.raises(ServeError, match=f"does not read '{name}'.*it reads style"):
            template_variables(_TEMPLATE, {name: 1}, "", {"bos_token"})
    with pytest.raises(ServeError, match="reasoning_effort"):
        template_variables(_TEMPLATE, given, "high", {"bos_token"})


@pytest.mark.parametrize(
    ("given", "effort", "expected"),
    [
        ({}, "high", {"reasoning_effort": "high", "enable_thinking": True}),
        ({}, "none", {"reasoning_effort": "none", "enable_thinking": False}),
        ({"enable_thinking": False}, "low", {"reasoning_effort": "low", "enable_thinking": False}),
        ({}, "", {}),
    ],
)
def test_effort_is_told_by_the_names_that_templates_read(given, effort, expected):
    template = "{{ reasoning_effort }}{% if enable_thinking %}{% endif %}"
    assert template_variables(template, given, effort) == expected


def test_an_answer_has_its_stop_if_that_is_asked_for(tokenizer):
    tokens = [*tokenizer.encode("one two three"), END]
    body = COMPLETION | {"max_tokens": 50}
    for stops, plain, included in (
        (["two"], "one ", "one two"),
        (["e two", "two t", "wo"], "on", "one two"),
        ([f"{i} none" for i in range(16)], "one two three", "one two three"),
    ):
        for is_included, expected in ((False, plain), (True, included)):
            more = {"stop": stops, "include_stop_str_in_output": is_included}
            status, found, _ = asked(tokenizer, "completions", body | more, tokens)
            assert (status, found["choices"][0]["text"]) == (200, expected)
            assert found["choices"][0]["finish_reason"] == "stop"


def test_special_tokens_are_shown_if_that_is_asked_for(tokenizer):
    tokens = [*tokenizer.encode("one"), _START, *tokenizer.encode("two"), END]
    for more, expected in (
        ({}, "onetwo"),
        ({"skip_special_tokens": False}, "one<|start|>two"),
        ({"skip_special_tokens": False, "include_stop_str_in_output": True}, "one<|start|>two<|end|>"),
        ({"skip_special_tokens": False, "stop_token_ids": [_START]}, "one"),
        ({"skip_special_tokens": False, "stop": ["<|start|>"]}, "one"),
    ):
        _, found, _ = asked(tokenizer, "completions", COMPLETION | {"max_tokens": 50} | more, tokens)
        assert found["choices"][0]["text"] == expected
