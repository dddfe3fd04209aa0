"""Prompts drawn for requests of which only the length is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from trainyard.serve.errors import ServeError
from trainyard.serve.requests.request import Request, TracedRequest

__all__ = ["with_prompt_ids"]


def with_prompt_ids(
    requests: Iterable[TracedRequest], vocabulary: int, seed: int = 0
) -> Iterator[TracedRequest]:
    """Requests with random tokens for prompts of which only the length is known; equal prefix blocks get equal tokens.

    Each request takes as many tokens as it will have, so that a real model ends where the trace does.

    Parameters
    ----------
    vocabulary : number of tokens.
    seed : of what is drawn.
    """
    for number, (request, output_tokens) in enumerate(requests):
        ids = request.prompt_ids or _drawn(request, number, vocabulary, seed)
        if not isinstance(output_tokens, int):
            raise ServeError(
                f"request {request.name!r} has samples of unlike lengths; allowed are those of one length"
            )
        known = replace(request, prompt_ids=ids, prefix=None, max_tokens=output_tokens)
        yield TracedRequest(known, output_tokens)


def _drawn(request: Request, number: int, vocabulary: int, seed: int) -> tuple[int, ...]:
    prefix = request.prefix
    if prefix is None:
        rng = np.random.default_rng((seed, 0, number))
        return tuple(rng.integers(0, vocabulary, request.prompt_tokens).tolist())
    found: list[int] = []
    for key in prefix.keys:
        rng = np.random.default_rng((seed, 1, key))
        found += rng.integers(0, vocabulary, prefix.tokens_per_block).tolist()
    return tuple(found[: request.prompt_tokens])
