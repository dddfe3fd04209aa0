"""POST /v1/embeddings: the vectors of transformers, in the form of OpenAI's API; and what is refused by its name."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from openai import OpenAI
from openai.types import CreateEmbeddingResponse
from tests.serve.run.server.served_api import CHAT, COMPLETION, FakeEngine, Servers, call_api
from tests.serve.run.tiny_encoders import (
    ENCODER_CONTEXT,
    ENCODER_VOCABULARY,
    WIDTH,
    made_encoder,
)

from trainyard.serve.run.embedding_engine import EmbeddingEngineSpec
from trainyard.serve.run.embedding_model import EmbeddingForm
from trainyard.serve.run.engine_client import EngineLostError
from trainyard.serve.run.model_tokenizer import ModelTokenizer
from trainyard.serve.run.server.api_server import ServerLimits

_TEXTS = ("A train yard", "Cars are sorted into trains here, and shards onto devices.", "x", "where " * 12)
_ASKED = {"model": "tiny", "input": "How many devices?"}
_FORM = EmbeddingForm(4, is_normalized=True)


@pytest.fixture(scope="module")
def words(encoder: Path) -> ModelTokenizer:
    return ModelTokenizer(encoder)


@pytest.fixture(scope="module")
def served(encoder: Path) -> Iterator[str]:
    servers = Servers(EmbeddingEngineSpec(encoder))
    yield servers.url()
    servers.close()


def embeddings(url, status=200, **body):
    found = httpx2.post(f"{url}/v1/embeddings", json=_ASKED | body, timeout=600)
    assert found.status_code == status, found.text
    return found.json() if status == 200 else found.json()["error"]


def vectors(document):
    assert [each["index"] for each in document["data"]] == list(range(len(document["data"])))
    return np.array([each["embedding"] for each in document["data"]], np.float32)


def test_embeddings_are_those_of_transformers(served, words):
    found, reference = embeddings(served, input=list(_TEXTS)), made_encoder("bert")
    tokens = [words.encode(text) for text in _TEXTS]
    assert {each[0] for each in tokens} == {2}
    assert {each[-1] for each in tokens} == {3}
    assert found["usage"] == dict.fromkeys(("prompt_tokens", "total_tokens"), sum(map(len, tokens)))
    with torch.inference_mode():
        hidden = [reference(input_ids=torch.tensor([ids])).last_hidden_state[0] for ids in tokens]
    expected = [torch.nn.functional.normalize(each.mean(0), dim=0).numpy() for each in hidden]
    np.testing.assert_allclose(vectors(found), expected, atol=1e-5)


def test_texts_and_their_tokens_have_the_same_embeddings(served, words):
    one, all_ = vectors(embeddings(served, input=_TEXTS[0])), vectors(embeddings(served, input=list(_TEXTS)))
    np.testing.assert_allclose(one[0], all_[0], atol=1e-5)
    tokens = [list(words.encode(text)) for text in _TEXTS]
    np.testing.assert_allclose(vectors(embeddings(served, input=tokens)), all_, atol=1e-5)
    np.testing.assert_allclose(vectors(embeddings(served, input=tokens[1]))[0], all_[1], atol=1e-5)


def test_documents_are_those_of_the_api_and_base64_has_the_same_numbers(served):
    plain, packed = embeddings(served), embeddings(served, encoding_format="base64", user="ann")
    for document in (plain, packed):
        assert document.keys() == {"object", "data", "model", "usage"}
        assert document["data"][0].keys() == {"object", "index", "embedding"}
    found = CreateEmbeddingResponse.model_validate(plain, strict=True)
    assert not found.model_extra
    assert not found.data[0].model_extra
    numbers = np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), "<f4")
    np.testing.assert_array_equal(numbers, vectors(plain)[0])
    for is_strict, more in ((True, {"encoding_format": "float"}), (False, {})):
        # Asked for nothing, the client asks for base64; its own types do not know that form.
        client = OpenAI(base_url=f"{served}/v1", api_key="none", _strict_response_validation=is_strict)
        given = client.embeddings.create(model="tiny", input=_ASKED["input"], **more)
        np.testing.assert_array_equal(np.array(given.data[0].embedding, np.float32), numbers)


def test_fewer_numbers_are_the_first_ones_at_length_one(served):
    whole, fewer = vectors(embeddings(served))[0], vectors(embeddings(served, dimensions=16))[0]
    np.testing.assert_allclose(fewer, whole[:16] / np.linalg.norm(whole[:16]), atol=1e-6)
    np.testing.assert_array_equal(vectors(embeddings(served, dimensions=WIDTH))[0], whole)


def test_a_text_is_cut_where_that_is_asked_for(served, words):
    text = "a " * 200
    assert len(words.encode(text)) == 202
    for most, num in ((5, 5), (-1, ENCODER_CONTEXT)):
        cut = embeddings(served, input=text, truncate_prompt_tokens=most)
        whole = embeddings(served, input="a " * (num - 2))
        assert cut["usage"]["prompt_tokens"] == num
        np.testing.assert_allclose(vectors(cut), vectors(whole), atol=1e-5)
    tokens = embeddings(served, input=list(range(5, 30)), truncate_prompt_tokens=7)
    np.testing.assert_allclose(
        vectors(tokens), vectors(embeddings(served, input=list(range(5, 12)))), atol=1e-5
    )
    error = embeddings(served, 400, input=text)
    assert "has 202 tokens; allowed are 96" in error["message"]
    assert error["code"] == "context_length_exceeded"
    assert words.encode("A train yard", max_tokens=50) == words.encode("A train yard")
    assert (
        words.encode("A train yard", add_special_tokens=False, max_tokens=1)
        == words.encode("A train yard")[1:2]
    )


@pytest.mark.parametrize(
    ("wrong", "param", "says"),
    [
        ({"input": ""}, "input", None),
        ({"input": []}, "input", "allowed is a text"),
        ({"input": [[]]}, "input", "allowed is a text"),
        ({"input": ["a", [1]]}, "input", "allowed is a text"),
        ({"input": {"a": 1}}, "input", "allowed is a text"),
        ({"input": [ENCODER_VOCABULARY]}, "input", "allowed are 0 to 299"),
        ({"input": [5] * 97}, "input", "has 97 tokens; allowed are 96; shorten it"),
        ({"input": ["a"] * 2049}, "input", "has 2049 texts; allowed are 2048"),
        ({"dimensions": 17}, "dimensions", "17; allowed are 16, 32, 64"),
        ({"dimensions": 0}, "dimensions", "0"),
        ({"encoding_format": "int8"}, "encoding_format", "'int8'"),
        ({"truncate_prompt_tokens": 97}, "truncate_prompt_tokens", "1 to 96, or -1"),
        ({"truncate_prompt_tokens": 0}, None, "truncate_prompt_tokens"),
        ({"temperature": 1.0}, "temperature", "unknown field"),
        ({"model": "other"}, "model", "no model 'other'"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_named(served, wrong, param, says):
    if says is None:  # an empty text still has what the tokenizer puts around it
        assert embeddings(served, **wrong)["usage"]["prompt_tokens"] == 2
        return
    error = embeddings(served, 404 if "model" in wrong else 400, **wrong)
    assert param is None or error["param"] == param
    assert says in error["message"]


def test_models_do_what_they_were_made_for(served, words):
    async def work(client, api):
        return await client.post("/v1/embeddings", json=_ASKED)

    found = call_api(words, FakeEngine([]), work)
    error = found.json()["error"]
    assert found.status_code == 400
    assert (error["param"], error["code"]) == ("model", "no_embeddings")
    assert "tiny generates text and gives no embeddings" in error["message"]
    for path, body in (("chat/completions", CHAT), ("completions", COMPLETION)):
        found = httpx2.post(f"{served}/v1/{path}", json=body)
        assert found.status_code == 400
        assert "use /v1/embeddings" in found.json()["error"]["message"]


def test_other_paths_know_the_model(served, words):
    assert httpx2.get(f"{served}/v1/models").json()["data"][0]["max_model_len"] == ENCODER_CONTEXT
    found = httpx2.post(f"{served}/tokenize", json={"prompt": _TEXTS[0]}).json()
    assert found["tokens"] == list(words.encode(_TEXTS[0]))


def test_metrics_count_texts_and_their_tokens(words):
    async def work(client, api):
        await client.post("/v1/embeddings", json=_ASKED | {"input": [[5, 6, 7], [8]]})
        return (await client.get("/metrics")).text

    text = call_api(words, FakeEngine([], embedding_form=_FORM), work)
    for line in (
        'vllm:prompt_tokens_total{engine="0",model_name="tiny"} 4.0',
        'vllm:generation_tokens_total{engine="0",model_name="tiny"} 0.0',
        'vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 2.0',
        'vllm:e2e_request_latency_seconds_count{engine="0",model_name="tiny"} 2.0',
    ):
        assert line in text


@pytest.mark.parametrize(
    ("failure", "limits", "status", "code"),
    [
        (EngineLostError("the engine stopped"), ServerLimits(), 503, "engine_lost"),
        (ValueError("a defect"), ServerLimits(), 500, None),
        (None, ServerLimits(deadline_s=0.01), 504, "deadline"),
    ],
    ids=["lost", "defect", "deadline"],
)
def test_what_fails_is_told_and_leaves_nothing_behind(words, failure, limits, status, code):
    engine = FakeEngine([], failure, _FORM)
    if failure is None:
        engine.gate.clear()

    async def work(client, api):
        found = await client.post("/v1/embeddings", json=_ASKED | {"input": ["a", "b"]})
        return found, api.num_open, api._queues["tiny"].num_requests, (await client.get("/metrics")).text

    found, num_open, num_queued, metrics = call_api(words, engine, work, limits=limits)
    assert (found.status_code, found.json()["error"]["code"]) == (status, code)
    assert num_open == num_queued == 0
    assert 'request_success_total{engine="0",finished_reason="error",model_name="tiny"} 2.0' in metrics
    assert len(engine.cancelled) == (2 if failure is None else 0)


def test_more_than_may_wait_are_told_to_come_again_and_those_that_wait_are_drained(words):
    engine = FakeEngine([], embedding_form=_FORM)

    async def work(client, api):
        engine.gate.clear()
        held = asyncio.create_task(client.post("/v1/embeddings", json=_ASKED | {"input": ["a", "b"]}))
        while len(engine.requests) < 2:
            await asyncio.sleep(0)
        full = await client.post("/v1/embeddings", json=_ASKED)
        draining = asyncio.create_task(api.drain(60))
        await asyncio.sleep(0)
        late = await client.post("/v1/embeddings", json=_ASKED)
        engine.gate.set()
        return full, late, await held, await draining

    full, late, held, drained = call_api(words, engine, work, limits=ServerLimits(max_queued_requests=2))
    assert (full.status_code, full.headers["retry-after"]) == (429, "1")
    assert late.status_code == 503
    assert vectors(held.json()).shape == (2, 4)
    assert drained


def test_a_client_that_goes_away_is_noticed(words):
    engine = FakeEngine([], embedding_form=_FORM)
    engine.gate.clear()

    async def work(client, api):
        sent = [{"type": "http.request", "body": json.dumps(_ASKED).encode()}]

        async def receive():
            if sent:
                return sent.pop()
            while not engine.requests:
                await asyncio.sleep(0)
            return {"type": "http.disconnect"}

        async def send(message):
            raise AssertionError(message)

        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/v1/embeddings", "headers": headers}
        scope |= {"query_string": b"", "http_version": "1.1", "scheme": "http", "raw_path": b"/v1/embeddings"}
        await api.app(scope, receive, send)
        return api.num_open, (await client.get("/metrics")).text

    num_open, metrics = call_api(words, engine, work)
    assert num_open == 0
    assert len(engine.cancelled) == 1
    assert 'request_success_total{engine="0",finished_reason="abort",model_name="tiny"} 1.0' in metrics


_VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.floats(allow_nan=False)
_FIELDS = ("input", "dimensions", "encoding_format", "truncate_prompt_tokens", "user", "model")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(st.dictionaries(st.sampled_from(_FIELDS), _VALUES | st.lists(_VALUES, max_size=3), max_size=3))
@example({"input": [True]})
@example({"input": ["a", "\ud800"]})
@example({"truncate_prompt_tokens": 1})
def test_any_fields_are_answered_or_refused(words, fields):
    content = json.dumps(_ASKED | fields).encode()

    async def work(client, api):
        return await client.post(
            "/v1/embeddings", content=content, headers={"Content-Type": "application/json"}
        )

    found = call_api(words, FakeEngine([], embedding_form=_FORM), work)
    assert found.status_code in (200, 400, 404), found.text
    assert ("error" in found.json()) == (found.status_code != 200)
