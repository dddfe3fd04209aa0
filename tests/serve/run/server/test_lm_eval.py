"""lm-evaluation-harness against a server: its log-likelihoods are those of transformers."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from trainyard.serve.run.model_tokenizer import ModelTokenizer

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("lm_eval") is None, reason="needs lm_eval: pip install 'lm_eval[api]'"),
]

_QUESTIONS = [
    {"question": "What pulls a train?", "choices": ["a locomotive", "a boat", "rain"], "answer": 0},
    {"question": "Where are trains sorted?", "choices": ["in a pond", "in a yard", "at sea"], "answer": 1},
    {"question": "How many rails?", "choices": ["two", "none", "nine hundred"], "answer": 0},
]
_TASKS: dict[str, dict[str, Any]] = {
    "choice": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}],
    },
    "rolling": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{question}}",
        "metric_list": [{"metric": "word_perplexity"}],
    },
    "written": {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{choices[answer]}}",
        "generation_kwargs": {"until": ["e", "zz", "\n"], "max_gen_toks": 12, "temperature": 0},
        "metric_list": [{"metric": "exact_match"}],
    },
}


def samples(url: str, folder: Path, tmp_path: Path, *, as_tokens: bool) -> dict[str, list[dict[str, Any]]]:
    """What the harness logs of each task."""
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(map(json.dumps, _QUESTIONS)))
    for name, task in _TASKS.items():
        more = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(task | more | {"test_split": "test"}))
    model = f"model=tiny,base_url={url}/v1/completions,tokenizer_backend=huggingface,tokenizer={folder}"
    model += f",tokenized_requests={as_tokens},max_length=256,num_concurrent=1"
    command = [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", model]
    command += ["--tasks", ",".join(_TASKS), "--include_path", str(tmp_path), "--log_samples"]
    command += ["--output_path", str(tmp_path / "out"), "--batch_size", "4" if as_tokens else "1"]
    offline = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    ran = subprocess.run(command, env=os.environ | offline, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-4000:]
    found = {}
    for name in _TASKS:
        (file,) = (tmp_path / "out").rglob(f"samples_{name}_*.jsonl")
        found[name] = sorted(map(json.loads, file.read_text().splitlines()), key=lambda each: each["doc_id"])
    return found


def log_likelihood(model: Any, context: Sequence[int], tokens: Sequence[int]) -> tuple[float, bool]:
    """Of tokens behind others, and whether each of them is the likeliest one, by transformers."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*context, *tokens]])).logits[0, len(context) - 1 : -1].double()
    chosen = torch.log_softmax(logits, -1)[range(len(tokens)), list(tokens)].sum()
    return float(chosen), logits.argmax(-1).tolist() == list(tokens)


@pytest.mark.parametrize("as_tokens", [True, False])
def test_the_harness_finds_what_transformers_does(
    url, folder, tokenizer: ModelTokenizer, tmp_path, as_tokens
):
    model = AutoModelForCausalLM.from_pretrained(folder)
    found = samples(url, folder, tmp_path, as_tokens=as_tokens)
    for question, of_choice, of_rolling, of_written in zip(_QUESTIONS, *found.values(), strict=True):
        context = tokenizer.encode(question["question"])
        for choice, ((told, is_greedy),) in zip(question["choices"], of_choice["resps"], strict=True):
            whole = tokenizer.encode(f"{question['question']} {choice}")
            assert whole[: len(context)] == context
            right, is_likeliest = log_likelihood(model, context, whole[len(context) :])
            assert math.isclose(float(told), right, rel_tol=1e-4)
            assert is_greedy in (is_likeliest, str(is_likeliest))
        ((told,),) = of_rolling["resps"]
        right, _ = log_likelihood(model, (0,), context)  # behind the token that ends texts
        assert math.isclose(float(told), right, rel_tol=1e-4)
        ids = torch.tensor([context])
        whole = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)[0, len(context) :]
        text = tokenizer.decode(whole.tolist())
        ends = [text.find(stop) for stop in ("e", "zz", "\n") if stop in text]
        assert of_written["resps"][0][0] == text[: min(ends, default=len(text))]
