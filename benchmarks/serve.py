"""Tokens per processor-second of an engine beside `generate` of transformers, for 1, 8 and 32 requests at once.

Run `python benchmarks/serve.py`. vLLM takes part if `make vllm` has made its environment, or `--vllm-python` names
another one. The model has 45 million parameters, with random weights in float32; prompts and answers have 128 tokens;
one thread computes. The programs take turns. The output is their medians, and the median of the ratios of neighbouring
turns. Of the engine's time it is said what the model takes, what choosing tokens takes, and what the rest takes: the
policy, the cache, the checks and the inputs of the model.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from record import finish, parser
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from trainyard.serve.catalog import parse_policies
from trainyard.serve.requests.request import Request
from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.engine import Engine, EngineOptions
from trainyard.serve.run.sampling import SamplingParams
from trainyard.serve.run.token_chooser import TokenChooser

_REST = "policy, cache, checks and inputs"
_GREEDY, _DRAWN = SamplingParams(temperature=0.0), SamplingParams(temperature=1.0, top_p=0.95, seed=0)


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes
    ----------
    requests : numbers of requests at once.
    tokens : of a prompt, and of an answer.
    pairs : turns of each program.
    """

    requests: tuple[int, ...] = (1, 8, 32)
    tokens: int = 128
    pairs: int = 5


_SMALLEST = Sizes((1, 2), 4, 1)


def made(smallest: bool = False) -> LlamaForCausalLM:
    """The model."""
    torch.manual_seed(0)
    scale = 8 if smallest else 1
    config = LlamaConfig(
        vocab_size=32_000 // scale,
        hidden_size=512 // scale,
        intermediate_size=1376 // scale,
        num_hidden_layers=4,
        num_attention_heads=8 // scale,
        num_key_value_heads=8 // scale,
        max_position_embeddings=2048,
        eos_token_id=None,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    model.eval()
    return model


class _Watch:
    """Processor-seconds that go by in some calls, and how many there were."""

    def __init__(self) -> None:
        self.taken_s, self.num_calls = 0.0, 0

    @contextmanager
    def replacing(self, owner: object, name: str) -> Iterator[None]:
        """Take the time of a function or method meanwhile."""
        call = getattr(owner, name)

        def timed(*given: Any) -> Any:
            start_s = time.process_time()
            found = call(*given)
            self.taken_s += time.process_time() - start_s
            self.num_calls += 1
            return found

        setattr(owner, name, timed)
        try:
            yield
        finally:
            setattr(owner, name, call)


def generated(model: LlamaForCausalLM, prompts: Tensor) -> dict[str, float]:
    """Processor-seconds of `generate`, which answers with as many tokens as a prompt has."""
    start_s = time.process_time()
    with torch.inference_mode():
        model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=prompts.shape[1],
            do_sample=False,
            pad_token_id=0,
        )
    return {"all": time.process_time() - start_s}


def served(model: CausalModel, prompts: Tensor, sampling: SamplingParams) -> dict[str, float]:
    """Processor-seconds of an engine: of all, of its model, of choosing tokens, and of the rest.

    Raises
    ------
    AssertionError
        If a step did not compute the model once and choose once: what is counted apart would not be all of it.
    """
    ((_, policy),) = parse_policies("vllm")
    num, tokens = prompts.shape
    blocks = num * (-(-2 * tokens // 16) + 1)
    engine = Engine(model, policy, EngineOptions(blocks))
    in_model, choosing, rests_s = _Watch(), _Watch(), list[float]()
    start_s = time.process_time()
    with in_model.replacing(model, "compute"), choosing.replacing(TokenChooser, "choose"):
        for i, prompt in enumerate(prompts.tolist()):
            engine.add(Request(str(i), 0.0, tokens, tokens, prompt_ids=tuple(prompt)), sampling)
        while engine.has_work:
            step_start_s, inside_s = time.process_time(), in_model.taken_s + choosing.taken_s
            engine.step()
            inside_s = in_model.taken_s + choosing.taken_s - inside_s
            rests_s.append(time.process_time() - step_start_s - inside_s)
    all_s = time.process_time() - start_s
    if not in_model.num_calls == choosing.num_calls == len(rests_s):
        raise AssertionError(
            f"{len(rests_s)} steps computed the model {in_model.num_calls} times and chose {choosing.num_calls} times"
        )
    rest_s = all_s - in_model.taken_s - choosing.taken_s
    return {
        "all": all_s,
        "model": in_model.taken_s,
        "choosing tokens": choosing.taken_s,
        _REST: rest_s,
        f"{_REST}, median of a step": median(rests_s),
    }


@contextmanager
def vllm_peer(python: Path, smallest: bool) -> Iterator[Callable[[Tensor], dict[str, float]] | None]:
    """What generates for prompts with vLLM in a process of its environment; None where that is not there."""
    if not python.exists():
        yield None
        return
    read, write = os.pipe()
    with tempfile.TemporaryDirectory() as folder, os.fdopen(read) as answers:
        made(smallest).save_pretrained(folder)
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
    options = parser(__doc__)
    options.add_argument("--vllm-python", type=Path, default=Path(".venv-vllm/bin/python"))
    given = options.parse_args()
    torch.set_num_threads(1)
    with vllm_peer(given.vllm_python, given.smallest) as peer:
        finish("serve", {"rows": measured(peer, given.smallest)}, given.smallest)


def measured(peer: Callable[[Tensor], dict[str, float]] | None, smallest: bool) -> list[dict[str, Any]]:
    """What was measured for each number of requests."""
    sizes = _SMALLEST if smallest else Sizes()
    plain, model = made(smallest), CausalModel(made(smallest))
    rows = []
    for num in sizes.requests:
        generator = torch.Generator().manual_seed(num)
        prompts = torch.randint(0, model.vocabulary, (num, sizes.tokens), generator=generator)
        ways: dict[str, Callable[[], dict[str, float]]] = {
            "generate": lambda: generated(plain, prompts),  # noqa: B023
            "engine": lambda: served(model, prompts, _GREEDY),  # noqa: B023
            "engine, drawn": lambda: served(model, prompts, _DRAWN),  # noqa: B023
        }
        if peer is not None:
            ways["vllm"] = partial(peer, prompts)
        for run in ways.values():
            run()
        taken: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        for _ in range(sizes.pairs):
            for name, run in ways.items():
                taken[name].append(run())
        to_peer = {
            f"engine_to_{name}": _ratio(taken[name], taken["engine"])
            for name in ("generate", "vllm")
            if name in taken
        }
        drawn = _ratio(taken["engine"], taken["engine, drawn"])
        found = {name: medians(runs) for name, runs in taken.items()}
        rates = {name: num * sizes.tokens / each["all"] for name, each in found.items()}
        print(
            f"{num} requests, tokens per CPU-second: " + ", ".join(f"{n} {r:,.0f}" for n, r in rates.items())
        )
        print("  " + ", ".join(f"{n} {r:.2f}" for n, r in to_peer.items()) + f", drawn to greedy {drawn:.2f}")
        print("  " + ", ".join(f"{name} {s * 1e3:,.2f} ms" for name, s in found["engine"].items()))
        shares = {
            name: median(run[_REST] / run["all"] for run in taken[name])
            for name in ("engine", "engine, drawn")
        }
        print(f"  {_REST} of all: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items()))
        rows.append(
            {
                "requests": num,
                "tokens_per_cpu_s": rates,
                **to_peer,
                "drawn_to_greedy": drawn,
                "engine_parts_s": found["engine"],
                "drawn_parts_s": found["engine, drawn"],
                "rest_of_all": shares,
            }
        )
    return rows


def _ratio(others: Sequence[dict[str, float]], own: Sequence[dict[str, float]]) -> float:
    """By how much the second takes less, pair by pair."""
    return median(a["all"] / b["all"] for a, b in zip(others, own, strict=True))


if __name__ == "__main__":
    main()
