"""Embeddings: those of transformers one text at a time, in whatever batches; and what a folder may not say."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.serve.run.tiny_encoders import (
    ENCODER_CONTEXT,
    ENCODER_VOCABULARY,
    ENCODERS,
    WIDTH,
    made_encoder,
    save_encoder,
)
from transformers import T5Config, T5Model

from trainyard.serve.catalog import parse_policies
from trainyard.serve.errors import ServeError
from trainyard.serve.policies.turbotransformers.batching import PaddedStepTime, TurboTransformers
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.run.causal_model import load_causal_model
from trainyard.serve.run.embedding_cost import PaddedBatchCost, measured_batch_cost
from trainyard.serve.run.embedding_engine import EmbeddingEngine
from trainyard.serve.run.embedding_model import EmbeddingModel, load_embedding_model
from trainyard.serve.run.outputs import Embedding, Refused, StepRecord
from trainyard.serve.run.pooling import Pooling
from trainyard.serve.run.sampling import SamplingParams

_COST = PaddedBatchCost(50.0, 1.0)
_POLICY = TurboTransformers(_COST, 6)
_POOLED = {
    "cls": lambda hidden: hidden[0],
    "lasttoken": lambda hidden: hidden[-1],
    "max": lambda hidden: hidden.max(0).values,
    "mean": lambda hidden: hidden.mean(0),
    "mean_sqrt_len_tokens": lambda hidden: hidden.sum(0) / len(hidden) ** 0.5,
}


def drawn_texts(num: int, longest: int = ENCODER_CONTEXT) -> list[tuple[int, ...]]:
    rng = random.Random(1)
    lengths = [1, longest, *(rng.randint(2, longest) for _ in range(num - 2))]
    return [tuple(rng.randrange(5, ENCODER_VOCABULARY) for _ in range(length)) for length in lengths]


def asking(text: Sequence[int], name: str = "r", max_tokens: int = 1) -> Request:
    return Request(name, 0.0, max(1, len(text)), max_tokens, prompt_ids=tuple(text))


def embedded(engine: EmbeddingEngine, texts: Sequence[Sequence[int]]) -> list[np.ndarray]:
    numbers = [engine.add(asking(text, str(place))) for place, text in enumerate(texts)]
    found = {}
    while engine.has_work:
        for out in engine.step():
            assert isinstance(out, Embedding)
            assert out.request not in found
            found[out.request] = out.vector
    return [found[number] for number in numbers]


@pytest.fixture(scope="module")
def model() -> EmbeddingModel:
    return EmbeddingModel(made_encoder("bert"), Pooling("mean"), "bert")


@pytest.mark.parametrize("is_normalized", [True, False])
@pytest.mark.parametrize("mode", _POOLED)
@pytest.mark.parametrize("name", ENCODERS)
def test_embeddings_are_those_of_transformers_one_text_at_a_time(tmp_path, name, mode, is_normalized):
    folder = save_encoder(tmp_path, name, mode, is_normalized=is_normalized)
    loaded, texts = load_embedding_model(folder), drawn_texts(14)
    steps: list[StepRecord] = []
    vectors = embedded(EmbeddingEngine(loaded, _POLICY, seen=steps.append), texts)
    assert max(len(step.batch.items) for step in steps) > 1
    reference = made_encoder(name)
    with torch.inference_mode():
        for text, vector in zip(texts, vectors, strict=True):
            ids = torch.tensor([text])
            hidden = reference(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
            expected = _POOLED[mode](hidden)
            expected = expected / expected.norm() if is_normalized else expected
            assert vector.dtype == np.float32
            torch.testing.assert_close(torch.from_numpy(vector), expected, atol=1e-5, rtol=1e-5)


def test_an_engine_decides_as_a_simulation_does(model):
    from tests.serve.served import Checked

    from trainyard.serve.simulate_requests import simulate_requests

    texts, steps = drawn_texts(40), []
    embedded(EmbeddingEngine(model, _POLICY, seen=steps.append), texts)
    checked = Checked(_POLICY, 10_000)
    requests = [TracedRequest(asking(text, str(place)), 1) for place, text in enumerate(texts)]
    simulate_requests(requests, [checked.instance], PaddedStepTime(_COST))
    assert [step.batch.items for step in steps] == [batch.items for batch in checked.batches if batch.items]


def test_what_is_no_number_is_the_fault_of_the_model():
    wrong = made_encoder("bert")
    with torch.no_grad():
        wrong.embeddings.word_embeddings.weight[7] = torch.nan
    engine = EmbeddingEngine(EmbeddingModel(wrong, Pooling("mean"), "bert"), _POLICY)
    good, bad = (engine.add(asking(text)) for text in ((5, 6), (5, 7)))
    found = {}
    while engine.has_work:
        found |= {out.request: out for out in engine.step()}
    assert isinstance(found[good], Embedding)
    assert isinstance(found[bad], Refused)
    assert found[bad].is_fault_of_model


def test_cancelled_requests_leave_the_plan(model):
    engine, steps = EmbeddingEngine(model, _POLICY), 0
    numbers = [engine.add(asking(text)) for text in drawn_texts(30)]
    engine.step()
    left = [number for number in numbers if engine.serves(number)]
    for number in left[:-2]:
        engine.cancel(number)
    engine.cancel(numbers[0])  # has ended
    found = []
    while engine.has_work:
        found += [out.request for out in engine.step()]
        steps += 1
    assert sorted(found) == left[-2:]
    assert steps <= 2
    assert engine.step() == []
    assert engine.state.num_waiting == engine.state.num_running == 0


@pytest.mark.parametrize(
    ("request_", "sampling", "says"),
    [
        (asking(()), None, "has 0 tokens; allowed are 1 to 96"),
        (asking(range(97)), None, "has 97 tokens; allowed are 1 to 96"),
        (asking((5, 300)), None, "tokens from 5 to 300; allowed are 0 to 299"),
        (asking((5,), max_tokens=2), None, "gives embeddings only"),
        (asking((5,)), SamplingParams(), "gives embeddings only"),
    ],
    ids=["empty", "long", "unknown", "text", "sampled"],
)
def test_what_is_no_text_to_embed_is_refused(model, request_, sampling, says):
    engine = EmbeddingEngine(model, _POLICY)
    with pytest.raises(ServeError, match=says):
        engine.add(request_, sampling)
    assert not engine.has_work


def test_a_policy_that_cuts_texts_is_refused(model):
    ((_, policy),) = parse_policies("sarathi(chunk_tokens=16)")
    engine = EmbeddingEngine(model, policy)
    engine.add(asking(range(5, 90)))
    with pytest.raises(ServeError, match="computes tokens 0 to 16 of 85; a text is embedded as a whole"):
        engine.step()


def test_costs_of_batches_grow_with_what_they_pad(model):
    cost = measured_batch_cost(model)
    assert cost(1, 1) > 0
    assert cost(8, 4) <= cost(64, 4) <= cost(64, 8)


@pytest.mark.parametrize(("name", "longest"), [("bert", 96), ("xlm-roberta", 96), ("qwen3", 96)])
def test_the_longest_text_is_what_the_positions_allow(name, longest):
    found = EmbeddingModel(made_encoder(name), Pooling("mean"))
    assert found.context == longest
    assert found.embed([[5] * longest]).shape == (1, WIDTH)
    with pytest.raises(ServeError, match=r"max_model_len 97; .* at most 96"):
        EmbeddingEngine(found, _POLICY, 97)


def test_the_folder_says_how_long_texts_are_and_which_widths_there_are(tmp_path):
    given = {"max_tokens": 40, "matryoshka_dimensions": [32, 16]}
    found = load_embedding_model(save_encoder(tmp_path / "a", **given))
    assert (found.context, found.form.width, list(found.form.smaller)) == (40, WIDTH, [16, 32])
    found = load_embedding_model(save_encoder(tmp_path / "b", is_matryoshka=True))
    assert (found.context, list(found.form.smaller)) == (96, list(range(1, WIDTH)))
    with pytest.raises(ServeError, match=r"matryoshka_dimensions \[100\]; allowed are numbers from 1 to 64"):
        load_embedding_model(save_encoder(tmp_path / "c", matryoshka_dimensions=[100]))


def test_newer_folders_name_the_kind_of_pooling(tmp_path):
    folder = save_encoder(tmp_path)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "cls"}))
    found, text = load_embedding_model(folder).embed([[7, 8]]), torch.tensor([[7, 8]])
    expected = torch.nn.functional.normalize(made_encoder("bert")(text).last_hidden_state[0, 0], dim=0)
    torch.testing.assert_close(found[0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("file", "document", "says"),
    [
        ("modules.json", {}, "is {}; allowed is a JSON list"),
        ("modules.json", [{"type": "a.Transformer"}], "without type or path"),
        ("modules.json", [{"type": "a.Transformer", "path": ""}], "has modules Transformer; allowed are"),
        ("modules.json", "Transformer Pooling Dense", "Transformer Pooling Dense; allowed are"),
        ("modules.json", "0_Transformer", "the model in '0_Transformer'"),
        ("1_Pooling/config.json", {"pooling_mode_weightedmean_tokens": True}, r"mode \['weightedmean'\]"),
        ("1_Pooling/config.json", {"pooling_mode": ["cls", "mean"]}, r"mode \['cls', 'mean'\]"),
        ("1_Pooling/config.json", {}, r"pooling mode \[\]; allowed is one of cls, lasttoken"),
        ("1_Pooling/config.json", {"pooling_mode": "cls", "include_prompt": False}, "include_prompt"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case"),
        ("sentence_bert_config.json", {"max_seq_length": "long"}, "max_seq_length 'long'"),
    ],
    ids=lambda value: "" if isinstance(value, str) else json.dumps(value),
)
def test_what_a_folder_says_and_is_not_done_is_refused_by_name(tmp_path, file, document, says):
    folder = save_encoder(tmp_path)
    if document == "0_Transformer":
        document = json.loads((folder / file).read_text())
        document[0]["path"] = "0_Transformer"
    elif isinstance(document, str):
        document = [{"type": f"a.{kind}", "path": ""} for kind in document.split()]
    (folder / file).write_text(json.dumps(document))
    with pytest.raises(ServeError, match=says):
        load_embedding_model(folder)


def test_models_that_are_no_encoder_or_decoder_of_text_are_refused():
    config = T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(ServeError, match="T5Model; allowed are models of text"):
        EmbeddingModel(T5Model(config), Pooling("mean"), "t5")


def test_an_encoder_is_not_taken_for_a_model_that_generates(tmp_path: Path):
    folder = save_encoder(tmp_path)
    with pytest.raises(ServeError, match=r"has no weights cls\.predictions.* modules\.json"):
        load_causal_model(folder)
