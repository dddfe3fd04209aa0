"""Splits of small models whose steps take a linear time."""

from __future__ import annotations

from collections.abc import Callable

from trainyard.serve.deployment import ServedModel
from trainyard.serve.errors import ServeError
from trainyard.serve.requests.change import with_objectives
from trainyard.serve.requests.generate import IndependentLengths, LogNormal, Poisson, generate_requests
from trainyard.serve.requests.request import TracedRequest
from trainyard.serve.step_time import LinearStepTime


def split_of(
    num_heads: int = 4, usable_bytes: float = 40e9, step_s: float = 7e-3, prompt_token_s: float = 6e-5
) -> Callable[..., ServedModel]:
    """A model of 16 GB whose shards are a little less than as many times as fast."""

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


def drawn(
    num: int, rate: float, seed: int = 0, prompt: float = 400.0, output: float = 40.0, **objectives: float
) -> list[TracedRequest]:
    """Requests that come by chance."""
    lengths = IndependentLengths(LogNormal(prompt, 1.0, 2000), LogNormal(output, 1.0, 300))
    found = generate_requests(num, Poisson(rate), lengths, seed, max_tokens=500)
    return [with_objectives(each, **objectives) for each in found]
