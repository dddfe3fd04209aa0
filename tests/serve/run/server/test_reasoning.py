"""Reasoning apart from answers: where it begins and ends, in whole answers and in streams, and forms behind it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import Message
from openai.types.responses import Response
from tests.serve.run.server.served_api import CHAT, END, VOCABULARY, FakeEngine, call_api, save_tiny

from trainyard.serve.catalog import parse_policies
from trainyard.serve.errors import ServeError
from trainyard.serve.requests.request import Request
from trainyard.serve.run.causal_model import load_causal_model
from trainyard.serve.run.engine import Engine, EngineOptions
from trainyard.serve.run.model_tokenizer import ModelTokenizer
from trainyard.serve.run.outputs import NewToken
from trainyard.serve.run.reasoning_tokens import ReasoningTokens
from trainyard.serve.run.sampling import OutputForm, SamplingParams
from trainyard.serve.run.server.chat_messages import ChatMessage
from trainyard.serve.run.server.reasoning import reasoning_of_answers, reasoning_tokens

_BEGIN, _END = VOCABULARY, VOCABULARY + 1
_TEMPLATE = (
    "{% if tools %}<|start|>tools\n{{ tools | tojson }}<|end|>{% endif %}"
    "{% for m in messages %}<|start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% elif opens %}<think>\n{% endif %}{% endif %}"
)
_PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def reasoner_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(
        tmp_path_factory.mktemp("reasoning") / "tiny", template=_TEMPLATE, added=("<think>", "</think>")
    )


@pytest.fixture(scope="module")
def reasoner(reasoner_folder: Path) -> ModelTokenizer:
    return ModelTokenizer(reasoner_folder)


def answered(
    tokenizer: ModelTokenizer, parser: str, tokens: list[int], more: dict[str, Any], **given: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The message of a whole answer, and the deltas of a stream."""

    async def work(client, api):
        body = CHAT | {"max_tokens": 100} | more
        whole = await client.post(_PATH, json=body)
        assert whole.status_code == 200, whole.text
        text = (await client.post(_PATH, json=body | {"stream": True})).text
        lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: {")]
        return whole.json()["choices"][0], [json.loads(line)["choices"][0] for line in lines]

    choice, chunks = call_api(tokenizer, FakeEngine(tokens), work, reasoning_parser=parser, **given)
    assert chunks[-1]["finish_reason"] == choice["finish_reason"]
    deltas = [chunk["delta"] for chunk in chunks]
    assert all(each.get("reasoning") == each.get("reasoning_content") for each in deltas)
    for name in ("reasoning", "content"):
        joined = "".join(each.get(name) or "" for each in deltas)
        assert joined == (choice["message"].get(name) or ""), name
    return choice["message"], deltas


def said(message: dict[str, Any]) -> tuple[str | None, str | None]:
    assert message.get("reasoning") == message.get("reasoning_content")
    return message.get("reasoning"), message["content"]


_OPEN, _OFF = {"chat_template_kwargs": {"opens": True}}, {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.mark.parametrize(
    ("parser", "given", "more", "expected"),
    [
        ("qwen3", "<think>why é</think>\n\nso", {}, ("why é", "\n\nso")),
        ("qwen3", "why</think>so", _OPEN, ("why", "so")),
        ("qwen3", "no tags", {}, (None, "no tags")),
        ("qwen3", "so <think>", _OFF, (None, "so <think>")),
        ("qwen3", "<think>cut", {}, ("cut", None)),
        ("qwen3", "<think></think>so", {}, (None, "so")),
        ("qwen3", "<think>a</think>b</think>c", {}, ("a", "b</think>c")),
        ("qwen3", "why</think>so", {"reasoning_effort": "none"}, (None, "why</think>so")),
        ("deepseek_r1", "why</think>so", {}, ("why", "so")),
        ("deepseek_r1", "<think>why</think>so", {}, ("why", "so")),
        ("deepseek_r1", "cut", {}, ("cut", None)),
        ("deepseek_r1", "so", _OFF, (None, "so")),
        ("deepseek_r1", "why</think>so", {"include_reasoning": False}, (None, "so")),
        ("", "<think>why</think>so", {}, (None, "<think>why</think>so")),
    ],
)
def test_reasoning_is_apart(reasoner, parser, given, more, expected):
    tokens = [*reasoner.encode(given), END]
    assert said(answered(reasoner, parser, tokens, more)[0]) == expected


def test_tags_in_earlier_messages_are_no_reasoning_of_the_answer(reasoner):
    messages = [{"role": "user", "content": "What is <think> for?"}]
    tokens = [*reasoner.encode("so"), END]
    assert said(answered(reasoner, "qwen3", tokens, {"messages": messages})[0]) == (None, "so")
    before = {"role": "assistant", "content": "x", "reasoning": "w", "reasoning_content": "w"}
    tokens = [*reasoner.encode("<think>why</think>so"), END]
    more = {"messages": [*messages, before, *messages]}
    assert said(answered(reasoner, "qwen3", tokens, more)[0]) == ("why", "so")


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_a_template_is_given_earlier_reasoning_under_either_name(name):
    message = ChatMessage.model_validate({"role": "assistant", "content": "x", name: "why"})
    assert message.for_template() == {"role": "assistant", "content": "x", "reasoning_content": "why"}


@pytest.mark.parametrize(
    ("content", "given", "expected"),
    [
        ("<think>why", "not</think>so", ("not", "so")),
        ("<think>why</think>so", " it is", (None, " it is")),
        ("so", " it is", (None, " it is")),
    ],
)
@pytest.mark.parametrize("parser", ["qwen3", "deepseek_r1"])
def test_a_message_is_continued_where_it_was(reasoner, parser, content, given, expected):
    messages = [*CHAT["messages"], {"role": "assistant", "content": content}]
    more = {"messages": messages, "continue_final_message": True}
    tokens = [*reasoner.encode(given), END]
    assert said(answered(reasoner, parser, tokens, more)[0]) == expected


def test_calls_and_stops_are_found_behind_and_within_reasoning(reasoner):
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    tokens = [*reasoner.encode(f"<think>I {call}</think>{call}"), END]
    more = {"tools": [{"type": "function", "function": {"name": "f"}}]}
    message, _ = answered(reasoner, "qwen3", tokens, more, tool_call_parser="hermes")
    assert said(message) == (f"I {call}", None)
    assert [each["function"]["name"] for each in message["tool_calls"]] == ["f"]
    tokens = [*reasoner.encode("<think>one two three</think>four"), END]
    assert said(answered(reasoner, "qwen3", tokens, {"stop": "two"})[0]) == ("one ", None)
    assert said(answered(reasoner, "qwen3", tokens, {"stop": "eefo"})[0]) == ("one two three", "four")


def test_a_tokenizer_without_the_tags_is_refused(tokenizer, reasoner):
    assert reasoning_tokens("qwen3", reasoner) == (_BEGIN, _END)
    with pytest.raises(ServeError, match="--reasoning-parser qwen3 needs the tokens <think> and </think>"):
        reasoning_tokens("qwen3", tokenizer)


def test_random_prompts_are_open_only_behind_the_first_tag(reasoner):
    rng, newline = random.Random(0), reasoner.encode("\n")
    for _ in range(100):
        prompt = [rng.choice([_BEGIN, _END, 400, *newline]) for _ in range(rng.randint(1, 6))]
        found = reasoning_of_answers("qwen3", reasoner, prompt, is_continued=False)
        rest = [token for token in prompt if token not in newline]
        last = rest[-1] if rest else None
        assert (found is None) == (last == _END)
        assert (found is not None and found.is_open) == (last == _BEGIN)


@pytest.mark.parametrize("is_open", [True, False])
def test_a_form_holds_behind_reasoning_of_a_model(reasoner_folder, reasoner, is_open):
    ((_, policy),) = parse_policies("vllm")
    forms = reasoner.structured_outputs
    engine = Engine(
        load_causal_model(reasoner_folder),
        policy,
        EngineOptions(num_blocks=200, block_tokens=8),
        constrain=forms.constraint,
    )
    prompt, end_bias = (5, 6, 7), {_END: 5.0}  # so that reasoning ends after a while
    sampling = SamplingParams(
        seed=1,
        form=OutputForm(choices=("yes", "no")),
        reasoning=ReasoningTokens(_BEGIN, _END, is_open),
        logit_bias=end_bias | ({} if is_open else {_BEGIN: 4.0}),
    )
    engine.add(Request("r", 0.0, 3, 400, prompt_ids=prompt, num_samples=8), sampling, frozenset({END}))
    tokens: dict[int, list[int]] = {}
    while engine.has_work:
        for out in engine.step():
            assert isinstance(out, NewToken)
            tokens.setdefault(out.sample, []).append(out.token)
    num_reasoned = 0
    for each in tokens.values():
        has_reasoned = _END in each
        num_reasoned += has_reasoned
        place = each.index(_END) + 1 if has_reasoned else 0
        assert END not in each[:place]
        assert each[-1] == END
        assert reasoner.decode(each[place:]) in ("yes", "no")
    assert num_reasoned == 8 if is_open else 0 < num_reasoned < 8


def api_answer(
    tokenizer: ModelTokenizer, path: str, body: dict[str, Any]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What another API says, whole, and the events of a stream."""
    tokens = [_BEGIN, *tokenizer.encode("so it is"), _END, *tokenizer.encode("yes"), END]

    async def work(client, api):
        whole = await client.post(path, json=body)
        assert whole.status_code == 200, whole.text
        text = (await client.post(path, json=body | {"stream": True})).text
        return whole.json(), [
            json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")
        ]

    return call_api(tokenizer, FakeEngine(tokens), work, reasoning_parser="qwen3")


def test_messages_have_reasoning_as_thinking(reasoner: ModelTokenizer) -> None:
    before = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""}]}
    asked = {"role": "user", "content": "Is it?"}
    body = {"model": "tiny", "max_tokens": 100, "messages": [asked, before, asked]}
    whole, events = api_answer(reasoner, "/v1/messages", body)
    thinking, text = Message.model_validate(whole).content
    assert (thinking.type, thinking.thinking, text.text) == ("thinking", "so it is", "yes")
    deltas = [each["delta"] for each in events if each["type"] == "content_block_delta"]
    assert "".join(each.get("thinking", "") for each in deltas) == "so it is"
    assert "".join(each.get("text", "") for each in deltas) == "yes"
    assert [each["content_block"]["type"] for each in events if each["type"] == "content_block_start"] == [
        "thinking",
        "text",
    ]


def test_responses_have_items_of_reasoning(reasoner: ModelTokenizer) -> None:
    whole, events = api_answer(reasoner, "/v1/responses", {"model": "tiny", "input": "Is it?"})
    reasoning, message = Response.model_validate(whole).output
    assert [part.text for part in reasoning.content] == ["so it is"]
    assert [part.text for part in message.content] == ["yes"]
    kinds = [each["type"] for each in events]
    assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")
    assert (
        "".join(each["delta"] for each in events if each["type"] == "response.reasoning_text.delta")
        == "so it is"
    )
    assert events[-1]["response"]["output"][0]["content"] == whole["output"][0]["content"]
    again = [*whole["output"], {"role": "user", "content": "Sure?"}]
    api_answer(reasoner, "/v1/responses", {"model": "tiny", "input": again})
