"""Requests that are drawn with usual arrivals and lengths, and the values that nobody has to give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from trainyard.serve.requests.generate import (
    Conversations,
    Gamma,
    IndependentLengths,
    LogNormal,
    Poisson,
    SharedPrefixes,
    TokenLengths,
    generate_requests,
)
from trainyard.serve.requests.request import MAX_TOKENS, TracedRequest

__all__ = ["BURSTINESS", "LENGTHS", "NUM_REQUESTS", "drawn_requests", "log_normal_lengths"]

NUM_REQUESTS = 1000
LENGTHS: Mapping[str, int] = MappingProxyType({"prompt_tokens": 1024, "output_tokens": 256})
"""Mean tokens of prompts and of outputs."""
BURSTINESS = 1.0
"""Coefficient of variation of the gaps between requests: those of a Poisson process."""
_LONGEST = 20  # times the mean; a longer one is as good as never drawn
_MOST_TOKENS = 10_000_000


def log_normal_lengths(
    prompt_tokens: int = LENGTHS["prompt_tokens"], output_tokens: int = LENGTHS["output_tokens"]
) -> IndependentLengths:
    """Lengths whose standard deviation equals their mean."""
    means = prompt_tokens, output_tokens
    return IndependentLengths(*(LogNormal(mean, 1.0, min(_LONGEST * mean, _MOST_TOKENS)) for mean in means))


def drawn_requests(
    rate_per_s: float,
    num_requests: int = NUM_REQUESTS,
    lengths: TokenLengths | None = None,
    burstiness: float = BURSTINESS,
    seed: int = 0,
    *,
    prefixes: SharedPrefixes | None = None,
    conversations: Conversations | None = None,
    max_tokens: int = MAX_TOKENS,
) -> Iterator[TracedRequest]:
    """Draw requests, in the order of arrival.

    Parameters
    ----------
    rate_per_s : requests that arrive in a second; with conversations, those that begin.
    lengths : by default `log_normal_lengths`.
    burstiness : coefficient of variation of the gaps between arrivals.
    prefixes, conversations, max_tokens : as of `generate_requests`.

    Raises
    ------
    ServeError
        If a number is out of range.
    """
    arrivals = Poisson(rate_per_s) if burstiness == 1 else Gamma(rate_per_s, burstiness)
    return generate_requests(
        num_requests,
        arrivals,
        log_normal_lengths() if lengths is None else lengths,
        seed,
        prefixes=prefixes,
        conversations=conversations,
        max_tokens=max_tokens,
    )
