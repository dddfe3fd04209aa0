"""Log-probabilities of prompts over HTTP: those of transformers, in the forms of OpenAI and of vLLM."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from tests.serve.run.server.served_api import CHAT, COMPLETION
from tests.serve.run.server.test_api_conformance import events, plain
from transformers import AutoModelForCausalLM

from trainyard.serve.run.model_tokenizer import ModelTokenizer

_TEXT = COMPLETION["prompt"]


def expected(folder: Path, tokens: Sequence[int]) -> np.ndarray:
    """Log-probabilities of all tokens after each of some tokens, by transformers."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        found: np.ndarray = torch.log_softmax(model(torch.tensor([tokens])).logits[0].double(), -1).numpy()
    return found


def check_prompt(told: dict[str, Any], right: np.ndarray, tokens: Sequence[int], num: int) -> None:
    """Hold the first entries of logprobs, as OpenAI has them, against what is right."""
    assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
    for place, token in enumerate(tokens[1:], 1):
        row, top = right[place - 1], told["top_logprobs"][place]
        assert math.isclose(told["token_logprobs"][place], row[token], abs_tol=2e-4)
        assert math.isclose(max(top.values()), row.max(), abs_tol=2e-4)
        assert num <= len(top) <= num + 1
        assert told["tokens"][place] in top


@pytest.mark.parametrize("as_tokens", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 1, 2])
def test_an_echoed_prompt_has_them(url, folder, tokenizer, as_tokens, max_tokens):
    tokens = list(tokenizer.encode(_TEXT))
    body = COMPLETION | {"prompt": tokens if as_tokens else _TEXT, "echo": True, "logprobs": 2}
    body |= {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    for _ in range(2):  # the second time, the prompt is in the cache
        answer = plain(url, "completions", body)
        (choice,) = answer["choices"]
        told = choice["logprobs"]
        assert choice["text"].startswith(_TEXT)
        assert (choice["text"] == _TEXT) == (max_tokens == 0)
        assert "".join(told["tokens"]) == choice["text"]
        assert [
            choice["text"][at:].startswith(token)
            for at, token in zip(told["text_offset"], told["tokens"], strict=True)
        ]
        assert len(told["tokens"]) == len(tokens) + max_tokens
        check_prompt(told, expected(folder, tokens), tokens, 2)
        assert choice["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == max_tokens
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_offsets_count_the_characters_before_each_token(url, tokenizer):
    body = COMPLETION | {
        "prompt": "Zug für 🚂 é",
        "echo": True,
        "logprobs": 0,
        "max_tokens": 4,
        "temperature": 0,
    }
    (choice,) = plain(url, "completions", body)["choices"]
    told, text = choice["logprobs"], choice["text"]
    for at, token in zip(told["text_offset"], told["tokens"], strict=True):
        assert token.startswith("bytes:") or text[at:].startswith(token)
    assert told["text_offset"] == sorted(told["text_offset"])
    assert told["text_offset"][len(tokenizer.encode(body["prompt"]))] == len(body["prompt"])


def test_each_answer_to_each_prompt_has_its_own(url, folder, tokenizer):
    prompts = [list(tokenizer.encode(text)) for text in ("one train", "two trains and more", _TEXT)]
    body = COMPLETION | {"prompt": prompts, "echo": True, "logprobs": 1, "max_tokens": 1, "n": 2, "seed": 1}
    choices = plain(url, "completions", body)["choices"]
    assert [choice["index"] for choice in choices] == list(range(6))
    for choice in choices:
        tokens = prompts[choice["index"] // 2]
        check_prompt(choice["logprobs"], expected(folder, tokens), tokens, 1)


def test_a_stream_has_them_with_its_first_chunk(url):
    body = COMPLETION | {"echo": True, "logprobs": 1, "max_tokens": 3, "temperature": 0}
    whole = plain(url, "completions", body)["choices"][0]
    chunks = [chunk["choices"][0] for chunk in events(url, "completions", body)]
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    assert chunks[0]["text"].startswith(_TEXT)
    told = {
        name: [each for chunk in chunks for each in chunk["logprobs"][name]] for name in whole["logprobs"]
    }
    assert (told["tokens"], told["text_offset"]) == (
        whole["logprobs"]["tokens"],
        whole["logprobs"]["text_offset"],
    )
    assert told["token_logprobs"][1:] == pytest.approx(whole["logprobs"]["token_logprobs"][1:])
    assert told["top_logprobs"][0] is None
    assert list(map(set, told["top_logprobs"][1:])) == list(map(set, whole["logprobs"]["top_logprobs"][1:]))


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_prompt_logprobs_are_those_of_vllm(url, folder, tokenizer, path):
    is_chat = path != "completions"
    body = (CHAT if is_chat else COMPLETION) | {"prompt_logprobs": 2, "max_tokens": 1}
    answer = plain(url, path, body)
    found = (answer if is_chat else answer["choices"][0])["prompt_logprobs"]
    tokens: Sequence[int] = tokenizer.encode(_TEXT)
    if is_chat:
        tokens = httpx2.post(f"{url}/tokenize", json={"messages": CHAT["messages"]}).json()["tokens"]
    right = expected(folder, tokens)
    assert found[0] is None
    assert len(found) == len(tokens)
    for row, token, entry in zip(right[:-1], tokens[1:], found[1:], strict=True):
        assert next(iter(entry)) == str(token)
        assert 2 <= len(entry) <= 3
        assert {1, 2} <= {each["rank"] for each in entry.values()}
        for other, each in entry.items():
            assert math.isclose(each["logprob"], row[int(other)], abs_tol=2e-4)
            assert each["decoded_token"] == tokenizer.bytes_of(int(other)).decode("utf-8", "replace")


def test_without_an_answer_there_must_be_something_to_tell(url, tokenizer: ModelTokenizer):
    body = COMPLETION | {"max_tokens": 0}
    refused = httpx2.post(f"{url}/v1/completions", json=body)
    assert refused.status_code == 400
    assert "echo or prompt_logprobs" in refused.json()["error"]["message"]
    assert plain(url, "completions", body | {"echo": True})["choices"][0]["text"] == _TEXT
    found = plain(url, "completions", body | {"prompt_logprobs": 0})["choices"][0]
    assert found["text"] == ""
    assert len(found["prompt_logprobs"]) == len(tokenizer.encode(_TEXT))
