"""Splits of small models whose steps take a linear time, and requests for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from trainyard.serve import api
from trainyard.serve.deployment import ServedModel
from trainyard.serve.errors import ServeError
from trainyard.serve.requests.change import with_objectives
from trainyard.serve.requests.generate import IndependentLengths, LogNormal, Poisson, generate_requests
from trainyard.serve.requests.request import TracedRequest
from trainyard.serve.step_time import LinearStepTime


def split_of(
    num_heads: int = 4, usable_bytes: float = 40e9, step_s: float = 7e-3, prompt_token_s: float = 6e-5
) -> Callable[..., ServedModel]:
    """A model of 16 GB; so many shards are a little less than so many times as fast."""

    def split(shards: int, stages: int, ranks: int = 1) -> ServedModel:
        if num_heads % shards:
            raise ServeError(f"{num_heads} heads do not divide by {shards} shards; use fewer")
        factor = shards**-0.9
        return ServedModel(
            "made",
            LinearStepTime(step_s * factor, prompt_token_s * factor, 2e-5 * factor, 3e-8 * factor),
            shards,
            stages,
            int(16e9 / shards / stages),
            2**20 // shards // stages,
            int(usable_bytes),
            10**9,
            4096,
            "made up",
        )

    return split


def serve_small_models(monkeypatch: pytest.MonkeyPatch, folder: Path, **sizes: Any) -> Path:
    """Have commands take a model of `split_of` for every model, in a folder, which is returned."""
    split = split_of(**sizes)

    def served_model(
        model: str, cluster: object, *, tensor_parallel: int, pipeline_stages: int, **more: object
    ) -> ServedModel:
        return split(tensor_parallel, pipeline_stages)

    monkeypatch.setattr(api, "served_model", served_model)
    monkeypatch.chdir(folder)
    return folder


def drawn(
    num: int, rate: float, seed: int = 0, prompt: float = 400.0, output: float = 40.0, **objectives: float
) -> list[TracedRequest]:
    """Requests with drawn arrivals and lengths."""
    lengths = IndependentLengths(LogNormal(prompt, 1.0, 2000), LogNormal(output, 1.0, 300))
    found = generate_requests(num, Poisson(rate), lengths, seed, max_tokens=500)
    return [with_objectives(each, **objectives) for each in found]


def write_trace(path: Path, rows: Iterable[tuple[float, int, int]]) -> str:
    """Write a trace: of each request its arrival in seconds, prompt tokens and output tokens. Return its path."""
    lines = [f"r{n},{arrival_s},{prompt},{output}" for n, (arrival_s, prompt, output) in enumerate(rows)]
    path.write_text("\n".join(["name,arrival_s,prompt_tokens,output_tokens", *lines]))
    return str(path)
