"""Changes to the requests of a trace: arrivals scaled, prompts cut, objectives added."""

from __future__ import annotations

import math
from dataclasses import replace

from trainyard.serve.errors import ServeError
from trainyard.serve.requests.request import PrefixBlocks, TracedRequest

LONGER = ("leave_out", "cut_prompt")
"""What may become of requests that are too long."""


def check_scale(factor: float) -> None:
    """Refuse what times cannot be multiplied by.

    Raises
    ------
    ServeError
        If it is not above 0 and finite.
    """
    if not 0 < factor < math.inf:
        raise ServeError(f"time_scale {factor}: it multiplies arrivals, and is a finite number above 0")


def scaled(traced: TracedRequest, factor: float) -> TracedRequest:
    """A request that comes ``factor`` times as late, after time 0 or after its parent."""
    request = traced.request
    return traced._replace(request=replace(request, arrival_s=request.arrival_s * factor))


def cut(traced: TracedRequest, prompt_tokens: int) -> TracedRequest:
    """A request without the end of its prompt.

    A block that is cut within has a key of its own, which it shares with those that are cut at the same token of the same
    block.
    """
    request = traced.request
    prefix = request.prefix
    if prefix is not None:
        whole, rest = divmod(prompt_tokens, prefix.tokens_per_block)
        keys = prefix.keys[:whole]
        if rest:
            keys = (*keys, hash((prefix.keys[whole], rest)))
        prefix = PrefixBlocks(keys, prefix.tokens_per_block)
    shorter = replace(
        request, prompt_tokens=prompt_tokens, prompt_ids=request.prompt_ids[:prompt_tokens], prefix=prefix
    )
    return traced._replace(request=shorter)


def with_objectives(
    traced: TracedRequest, ttft_s: float = math.inf, tpot_s: float = math.inf, e2e_s: float = math.inf
) -> TracedRequest:
    """A request with objectives, each where it has none of its own."""
    own = traced.request
    if min(ttft_s, tpot_s, e2e_s) == math.inf:
        return traced
    found = replace(
        own,
        ttft_s=own.ttft_s if own.ttft_s < math.inf else ttft_s,
        tpot_s=own.tpot_s if own.tpot_s < math.inf else tpot_s,
        e2e_s=own.e2e_s if own.e2e_s < math.inf else e2e_s,
    )
    return traced._replace(request=found)
