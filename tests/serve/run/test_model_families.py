"""Families whose attention or positions are their own: scores of transformers' forward pass, and tokens of `generate`."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from tests.serve.run.exact_runs import RUNS, served
from tests.serve.run.model_families import FAMILIES, ORIGINAL, SIZES, made_family
from tests.serve.run.tiny_models import CONTEXT, VOCABULARY, drawn_prompts, generated_by
from torch import Tensor
from transformers import Gemma3Config, LlamaConfig, LlamaForCausalLM

from trainyard.serve.errors import ServeError
from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.cpu_attention import CpuAttention
from trainyard.serve.run.flex_attention import FlexAttention
from trainyard.serve.run.kv_cache import KvCache
from trainyard.serve.run.paged_attention import PagedAttention, attention_batch
from trainyard.serve.run.rope import longest_alike
from trainyard.serve.run.server.cache_size import block_bytes, context_of
from trainyard.serve.run.step_inputs import StepInputs
from trainyard.serve.run.torch_attention import TorchAttention

CHUNKS = ((20, 5), (1, 9), (30, 1), (1, 1), (5, 7))
"""Tokens of two sequences in each step."""
CPU = torch.device("cpu")


@cache
def _sequences() -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(2)
    lengths = (sum(first for first, _ in CHUNKS), sum(second for _, second in CHUNKS))
    return tuple(torch.randint(0, VOCABULARY, (length,), generator=generator) for length in lengths)


@cache
def _wanted(name: str) -> tuple[Tensor, ...]:
    """Scores after every token of each sequence by itself, with the attention that transformers has for it."""
    model = made_family(name)
    with torch.inference_mode():
        return tuple(model(input_ids=each[None], use_cache=False).logits[0] for each in _sequences())


def _largest_difference(name: str, attention: PagedAttention | None = None) -> float:
    """Of scores at the ends of chunks, with both sequences in one step."""
    model = CausalModel(made_family(name), name, attention)
    model.new_cache(10, 16, 0)
    sequences, wanted, tables = _sequences(), _wanted(name), np.array([[7, 2, 9, 4], [1, 8, 0, 3]])
    at, worst = [0, 0], 0.0
    for chunks in CHUNKS:
        parts = [each[begin : begin + n] for each, begin, n in zip(sequences, at, chunks, strict=True)]
        positions = np.concatenate([np.arange(begin, begin + n) for begin, n in zip(at, chunks, strict=True)])
        batch = attention_batch(np.cumsum([0, *chunks]), at, tables, 10, 16)
        inputs = StepInputs(torch.cat(parts).numpy(), positions, batch, {})
        found = model.compute(inputs, (batch.cu_seqlens[1:] - 1).tolist())
        at = [begin + n for begin, n in zip(at, chunks, strict=True)]
        for row, scores, end in zip(found, wanted, at, strict=True):
            worst = max(worst, float((row - scores[end - 1]).abs().max()))
    return worst


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_are_those_of_transformers(name: str):
    assert max(scores.abs().max() for scores in _wanted(name)) > 0.5
    assert _largest_difference(name) < 2e-5


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss", "deepseek_v3"])
@pytest.mark.parametrize("kind", [TorchAttention, FlexAttention])
def test_scores_by_the_attention_of_other_devices_are_those_of_transformers(name: str, kind: type):
    torch._dynamo.reset()
    attention = kind(CPU, "eager") if kind is FlexAttention else kind(CPU)
    assert _largest_difference(name, attention) < 2e-5
    torch._dynamo.reset()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("run", ["chunks", pytest.param("swapping", marks=pytest.mark.slow)])
def test_tokens_are_those_of_generate(name: str, run: str):
    num = 10
    found, steps = served(CausalModel(made_family(name), name), *RUNS[run], num=num)
    assert sum(len(step.batch.preempted) for step in steps) > 0
    prompts = drawn_prompts(num)
    num_close = 0
    for i, (tokens, gaps) in enumerate(generated_by(made_family(name), prompts, 20)):
        first = next((k for k in range(20) if found[i][k] != tokens[k]), None)
        if first is not None:
            assert gaps[first] < 1e-4, f"request {i}, token {first}"
            num_close += 1
    assert num_close <= 1


@pytest.mark.parametrize("name", FAMILIES)
def test_a_block_of_the_cache_has_as_many_bytes_as_the_configuration_says(name: str, tmp_path):
    model = made_family(name)
    model.save_pretrained(tmp_path)
    cache = KvCache(CpuAttention(), CausalModel(model).shapes, 3, 8)
    held = sum(part.nbytes for layer in cache.layers for part in layer)
    assert held == 3 * block_bytes(tmp_path, 8, torch.float32)


def test_sequences_end_where_longrope_takes_other_factors(tmp_path):
    model = made_family("phi3 with longrope")
    model.save_pretrained(tmp_path)
    assert context_of(tmp_path) == CausalModel(model).context == ORIGINAL
    ids = torch.arange(ORIGINAL + 1)[None]
    with torch.inference_mode():
        short, long = (
            model.model.rotary_emb(torch.zeros(1), ids[:, :end])[0][0, 50] for end in (ORIGINAL, None)
        )
    assert not torch.equal(short, long)


def test_sequences_end_where_dynamic_rope_changes(tmp_path):
    model = made_family("llama with dynamic rope")
    model.save_pretrained(tmp_path)
    assert context_of(tmp_path) == CausalModel(model).context == CONTEXT


def test_the_least_length_of_all_layers_counts():
    config = Gemma3Config().get_text_config()
    assert longest_alike("gemma3", config) is None
    long = {"rope_type": "longrope", "original_max_position_embeddings": 40}
    config.rope_parameters = {"full_attention": long, "sliding_attention": {"rope_type": "dynamic"}}
    config.max_position_embeddings = 50
    assert longest_alike("gemma3", config) == 40


@pytest.mark.parametrize(
    ("rope", "says"),
    [
        (
            {"rope_type": "axial"},
            "allowed are default, dynamic, linear, llama3, longrope, proportional, yarn",
        ),
        (
            {"rope_type": "longrope", "original_max_position_embeddings": "4k"},
            "allowed is a number of tokens",
        ),
    ],
)
def test_positions_that_depend_on_what_is_not_known_are_refused(rope, says):
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    model.config.rope_parameters = rope
    with pytest.raises(ServeError, match=says):
        CausalModel(model, "long")
