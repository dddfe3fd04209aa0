"""Tokens per processor-second of an engine beside `generate` of transformers, for 1, 8 and 32 requests at once.

Run `python benchmarks/serve.py`. vLLM takes part if `make vllm` has made its environment, or `--vllm-python` names
another one. The model has 45 million parameters, with random weights in float32; prompts and answers have 128 tokens;
one thread computes. The programs take turns. The output is their medians, and the median of the ratios of neighbouring
turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from record import write_record
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from trainyard.serve.catalog import parse_policies
from trainyard.serve.requests.request import Request
from trainyard.serve.run import engine as engines
from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.engine import Engine, EngineOptions
from trainyard.serve.run.sampling import SamplingParams

_TOKENS, _VOCABULARY, _PAIRS = 128, 32_000, 5
_GREEDY, _DRAWN = SamplingParams(temperature=0.0), SamplingParams(temperature=1.0, top_p=0.95, seed=0)


def made() -> LlamaForCausalLM:
    """The model."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=2048,
        eos_token_id=None,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    model.eval()
    return model


class _Watch:
    """Processor-seconds that go by in some calls."""

    def __init__(self) -> None:
        self.taken_s = 0.0

    @contextmanager
    def replacing(self, owner: object, name: str) -> Iterator[None]:
        """Take the time of a function or method meanwhile."""
        call = getattr(owner, name)

        def timed(*given: Any) -> Any:
            start_s = time.process_time()
            found = call(*given)
            self.taken_s += time.process_time() - start_s
            return found

        setattr(owner, name, timed)
        try:
            yield
        finally:
            setattr(owner, name, call)


def generated(model: LlamaForCausalLM, prompts: Tensor, _: SamplingParams) -> dict[str, float]:
    """Processor-seconds of `generate`."""
    start_s = time.process_time()
    with torch.inference_mode():
        model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=_TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
    return {"all": time.process_time() - start_s}


def served(model: CausalModel, prompts: Tensor, sampling: SamplingParams) -> dict[str, float]:
    """Processor-seconds of an engine: of all, of its model and of its sampling; and what else a step takes."""
    ((_, policy),) = parse_policies("vllm")
    engine = Engine(model, policy, EngineOptions(num_blocks=len(prompts) * 17))
    in_model, in_sampling, others_s = _Watch(), _Watch(), []
    start_s = time.process_time()
    with in_model.replacing(model, "logits"), in_sampling.replacing(engines, "sample"):
        for i, prompt in enumerate(prompts.tolist()):
            engine.add(Request(str(i), 0.0, len(prompt), _TOKENS, prompt_ids=tuple(prompt)), sampling)
        while engine.has_work:
            step_start_s, inside_s = time.process_time(), in_model.taken_s + in_sampling.taken_s
            engine.step()
            inside_s = in_model.taken_s + in_sampling.taken_s - inside_s
            others_s.append(time.process_time() - step_start_s - inside_s)
    return {
        "all": time.process_time() - start_s,
        "model": in_model.taken_s,
        "sampling": in_sampling.taken_s,
        "policy, cache, checks and inputs, median of a step": median(others_s),
    }


@contextmanager
def vllm_peer(python: Path) -> Iterator[Callable[[Tensor], dict[str, float]] | None]:
    """What generates for prompts with vLLM in a process of its environment; None where that is not there."""
    if not python.exists():
        yield None
        return
    read, write = os.pipe()
    with tempfile.TemporaryDirectory() as folder, os.fdopen(read) as answers:
        made().save_pretrained(folder)
        cores = sorted(os.sched_getaffinity(0))
        command = [str(python), str(Path(__file__).parent / "serve_vllm.py"), folder, str(write)]
        env = os.environ | {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": str(cores[-1])}
        with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, pass_fds=[write], env=env) as peer:
            os.close(write)
            assert peer.stdin is not None

            def generate(prompts: Tensor) -> dict[str, float]:
                print(json.dumps(prompts.tolist()), file=peer.stdin, flush=True)
                return {"all": json.loads(answers.readline())}

            yield generate
            peer.stdin.close()


def medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of every part."""
    return {name: median(run[name] for run in runs) for name in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm-python", type=Path, default=Path(".venv-vllm/bin/python"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    with vllm_peer(given.vllm_python) as peer:
        write_record("serve", {"rows": measured(peer)})


def measured(peer: Callable[[Tensor], dict[str, float]] | None) -> list[dict[str, Any]]:
    """What was measured for each number of requests."""
    plain, model = made(), CausalModel(made())
    rows = []
    for num in (1, 8, 32):
        prompts = torch.randint(0, _VOCABULARY, (num, _TOKENS), generator=torch.Generator().manual_seed(num))
        ways: dict[str, Callable[[], dict[str, float]]] = {
            "generate": lambda: generated(plain, prompts, _GREEDY),  # noqa: B023
            "engine": lambda: served(model, prompts, _GREEDY),  # noqa: B023
            "engine, drawn": lambda: served(model, prompts, _DRAWN),  # noqa: B023
        }
        if peer is not None:
            ways["vllm"] = partial(peer, prompts)
        for run in ways.values():
            run()
        taken: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        for _ in range(_PAIRS):
            for name, run in ways.items():
                taken[name].append(run())
        to_peer = {
            f"engine_to_{name}": _ratio(taken[name], taken["engine"])
            for name in ("generate", "vllm")
            if name in taken
        }
        drawn = _ratio(taken["engine"], taken["engine, drawn"])
        found = {name: medians(runs) for name, runs in taken.items()}
        rates = {name: num * _TOKENS / each["all"] for name, each in found.items()}
        print(
            f"{num} requests, tokens per CPU-second: " + ", ".join(f"{n} {r:,.0f}" for n, r in rates.items())
        )
        print("  " + ", ".join(f"{n} {r:.2f}" for n, r in to_peer.items()) + f", drawn to greedy {drawn:.2f}")
        print("  " + ", ".join(f"{name} {s * 1e3:,.2f} ms" for name, s in found["engine"].items()))
        rows.append(
            {
                "requests": num,
                "tokens_per_cpu_s": rates,
                **to_peer,
                "drawn_to_greedy": drawn,
                "engine_parts_s": found["engine"],
                "drawn_parts_s": found["engine, drawn"],
            }
        )
    return rows


def _ratio(others: Sequence[dict[str, float]], own: Sequence[dict[str, float]]) -> float:
    """By how much the second takes less, pair by pair."""
    return median(a["all"] / b["all"] for a, b in zip(others, own, strict=True))


if __name__ == "__main__":
    main()
