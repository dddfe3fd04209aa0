"""A real model, SmolLM2-135M-Instruct, asked through `trainyard serve run` by the client of OpenAI."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
import torch
from openai import OpenAI
from tests.serve.run.real_models import QUESTIONS, engine_answers
from tests.serve.run.server.test_serve_run_command import is_engine, serving
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = pytest.mark.long

_GREEDY: dict[str, Any] = {"model": "smollm2", "temperature": 0, "max_tokens": 40}


@pytest.fixture(scope="module")
def server(smollm2: Path) -> Iterator[tuple[int, str]]:
    """The process and the address of a server."""
    with serving(str(smollm2), "--max-retries", "1") as (process, ready):
        yield process.pid, ready["address"]


@pytest.fixture(scope="module")
def client(server: tuple[int, str]) -> OpenAI:
    return OpenAI(base_url=f"{server[1]}/v1", api_key="none", max_retries=0, _strict_response_validation=True)


def said(question: str) -> list[Any]:
    return [{"role": "user", "content": question}]


def object_of(*names: str) -> dict[str, Any]:
    """The schema of an object of texts."""
    properties = {name: {"type": "string"} for name in names}
    return {
        "type": "object",
        "properties": properties,
        "required": list(names),
        "additionalProperties": False,
    }


def test_chats_whole_and_streamed_are_the_answers_of_the_engine(smollm2: Path, client: OpenAI):
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    answers = engine_answers(smollm2, list(QUESTIONS), 40)
    for (question, expected), (prompt, tokens) in zip(QUESTIONS.items(), answers, strict=True):
        whole = client.chat.completions.create(messages=said(question), **_GREEDY)
        stream = client.chat.completions.create(messages=said(question), stream=True, **_GREEDY)
        parts = [chunk.choices[0].delta.content or "" for chunk in stream]
        text = whole.choices[0].message.content
        assert text == "".join(parts) == tokenizer.decode(tokens, skip_special_tokens=True)
        assert expected in text
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage.prompt_tokens == len(prompt)
        assert sum(map(bool, parts)) > 3  # it came piece by piece


def test_an_answer_in_the_form_of_a_schema_is_sensible(client: OpenAI):
    form = {"name": "city", "schema": object_of("city", "country"), "strict": True}
    answer = client.chat.completions.create(
        messages=said("Tell me about Paris as JSON with city and country."),
        response_format={"type": "json_schema", "json_schema": form},
        **_GREEDY,
    )
    found = json.loads(answer.choices[0].message.content)
    assert {name: text.title() for name, text in found.items()} == {"city": "Paris", "country": "France"}


@pytest.mark.parametrize(
    ("question", "name", "arguments"),
    [
        ("What is the weather in Oslo?", "get_weather", {"city": "Oslo"}),
        ("Is it raining in Paris?", "get_weather", {"city": "Paris"}),
        ("What does a share of Apple cost?", "get_share_price", {"company": "Apple"}),
    ],
)
def test_the_tool_is_called_that_the_question_needs(client: OpenAI, question, name, arguments):
    functions = [
        {"name": "get_weather", "description": "Weather of a city", "parameters": object_of("city")},
        {"name": "get_share_price", "description": "Price of a share", "parameters": object_of("company")},
    ]
    told = {"role": "system", "content": f"You call functions. Functions: {json.dumps(functions)}"}
    answer = client.chat.completions.create(
        messages=[told, *said(question)],  # the chat template of the model does not describe tools
        tools=[{"type": "function", "function": each} for each in functions],
        tool_choice="required",
        parallel_tool_calls=False,
        **_GREEDY,
    )
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (name, arguments)
    assert answer.choices[0].finish_reason == "tool_calls"


def test_logprobs_are_those_of_the_model(smollm2: Path, client: OpenAI):
    question = "What is the capital of France?"
    ((prompt, tokens),) = engine_answers(smollm2, [question], 40)
    answer = client.chat.completions.create(messages=said(question), logprobs=True, top_logprobs=3, **_GREEDY)
    found = answer.choices[0].logprobs.content
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1).topk(3).values[: len(found)]
    assert len(found) >= len(tokens) - 1  # all but the one that ends the answer
    tops = torch.tensor([[top.logprob for top in each.top_logprobs] for each in found])
    torch.testing.assert_close(tops, expected, atol=1e-3, rtol=0)
    assert [each.logprob for each in found] == [each.top_logprobs[0].logprob for each in found]
    assert "".join(each.token for each in found).startswith(answer.choices[0].message.content)


def test_an_answer_goes_on_in_the_next_process(server: tuple[int, str], client: OpenAI):
    question = next(iter(QUESTIONS))
    before = client.chat.completions.create(messages=said(question), **_GREEDY)
    stream, text = client.chat.completions.create(messages=said(question), stream=True, **_GREEDY), ""
    for number, chunk in enumerate(stream):
        if number == 2:
            (engine,) = [each for each in psutil.Process(server[0]).children() if is_engine(each)]
            engine.kill()
        text += chunk.choices[0].delta.content or ""
    assert text == before.choices[0].message.content
    assert httpx2.get(f"{server[1]}/ready").status_code == 200
    assert (
        'engine_restarts_total{engine="0",model_name="smollm2"} 1.0'
        in httpx2.get(f"{server[1]}/metrics").text
    )
