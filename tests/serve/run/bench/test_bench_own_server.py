"""The load generator against the server of `trainyard serve run`, with an engine that computes nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest
from tests.serve.run.bench.bench_server import serving
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from trainyard.serve.errors import ServeError
from trainyard.serve.requests.generate import IndependentLengths, LogNormal, Poisson, generate_requests
from trainyard.serve.requests.request import Request
from trainyard.serve.run.bench.load_generator import generate_load
from trainyard.serve.run.bench.request_format import WORDS
from trainyard.serve.run.bench.summary import failures, summary
from trainyard.serve.run.bench.target import Target
from trainyard.serve.run.model_tokenizer import ModelTokenizer
from trainyard.serve.run.outputs import EngineState, NewToken
from trainyard.serve.run.sampling import SamplingParams
from trainyard.serve.run.server.api_keys import ApiKeys
from trainyard.serve.run.server.api_server import ApiServer
from trainyard.serve.run.server.hosted_model import HostedModel

_LONGEST = 60
_KEY = "a-key-of-a-test"


class CountingEngine:
    """Says one word again and again, until the answer is as long as it may be."""

    max_model_len = _LONGEST
    embedding_form = None
    num_restarts = num_stuck = 0
    options = None
    state = EngineState()
    is_ready = True

    @property
    def replicas(self):
        return (self,)

    async def generate(
        self,
        request: Request,
        sampling: SamplingParams,
        stop_token_ids: frozenset[int] = frozenset(),
        is_last: Callable[[NewToken], bool] = lambda token: False,
        routed: Callable[[int], None] = lambda number: None,
    ) -> AsyncGenerator[NewToken, None]:
        for number in range(request.max_tokens):
            reason = "length" if number == request.max_tokens - 1 else ""
            token = NewToken(0, 0, 1 + number % 50, None, reason, 0)
            is_last(token)
            yield token


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    folder = tmp_path_factory.mktemp("words")
    tokenizer = Tokenizer(
        models.WordLevel({"?": 0} | {word: i + 1 for i, word in enumerate(WORDS)}, unk_token="?")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    chat = "{% for m in messages %}{{ m.content }}{% endfor %}"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="?", chat_template=chat).save_pretrained(
        folder
    )
    config = {"model_type": "llama", "vocab_size": len(WORDS) + 1}
    (Path(folder) / "config.json").write_text(json.dumps(config))
    return ModelTokenizer(folder)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_a_trace_is_served(tokenizer: ModelTokenizer, endpoint: str):
    api = ApiServer({"words": HostedModel("words", tokenizer, CountingEngine())}, ApiKeys({_KEY: "tester"}))
    lengths = IndependentLengths(LogNormal(40, 0.8, 200), LogNormal(10, 0.5, 40))
    requests = list(generate_requests(40, Poisson(200.0), lengths, seed=3))
    fits = [each for each in requests if each.request.prompt_tokens < _LONGEST]
    with serving(api.app) as url:
        run = generate_load(Target(url, endpoint, api_key=_KEY), requests)
        with pytest.raises(ServeError, match=r"status 401: a key is needed"):
            generate_load(Target(url, endpoint), requests)
        with pytest.raises(ServeError, match=r"HTTP 404: no model 'other' is served here; known are words"):
            generate_load(Target(url, endpoint, "other", _KEY), requests)
    assert run.format.model == "words"
    assert run.format.sends_tokens == (endpoint == "completions")
    assert run.format.fixes_length
    assert run.format.includes_usage
    found = summary(run)
    assert 0 < found["failed"] == len(requests) - len(fits)
    ((kind, num, message),) = failures(run)
    assert (kind, num) == ("HTTP 400", found["failed"])
    assert f"prompt and answer have at most {_LONGEST}" in message
    # Each word is a token, so that prompts are as long as in the trace in either form.
    assert found["total_input_tokens"] == sum(each.request.prompt_tokens for each in fits)
    lengths_of = [min(each.output_tokens, _LONGEST - each.request.prompt_tokens) for each in fits]
    assert found["total_output_tokens"] == sum(lengths_of)
