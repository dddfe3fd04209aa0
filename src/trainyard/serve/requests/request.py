"""A request: what a client asks of a model, and what policies see of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from trainyard.serve.errors import ServeError

__all__ = ["MAX_TOKENS", "PrefixBlocks", "Request", "TracedRequest"]

_INF = float("inf")
_COUNTS = ("prompt_tokens", "max_tokens", "num_samples")
_MOST_SAMPLES = 1024
_LARGEST_ID = 2**63 - 1  # blocks are known by their tokens, of 64 bits each
_LATEST_S = 1e10  # three hundred years; much later, a number of seconds has no room for milliseconds

MAX_TOKENS = 4096
"""That a client takes at most, where nothing says it; no output of the public traces is longer."""


class PrefixBlocks(NamedTuple):
    """A prompt by blocks of tokens, where its text is not known.

    Attributes
    ----------
    keys : one for each block, the last of which may be shorter. Two requests with the same key have the same tokens from
        the beginning of their prompts to the end of that block.
    tokens_per_block : in all blocks but the last.
    """

    keys: tuple[int, ...]
    tokens_per_block: int


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks of a model.

    Attributes
    ----------
    name : that no other request has.
    arrival_s : when it comes, from the beginning of the trace.
    prompt_tokens : length of the prompt.
    max_tokens : how many tokens the client takes at most.
    model : which model answers; "" where there is one.
    client : that sent it.
    prompt_ids : the prompt's tokens; empty where only its length is known.
    prefix : the prompt by blocks, where these are known; None otherwise.
    ttft_s : objective: time from its arrival to its first token; infinite where there is none.
    tpot_s : objective: mean time between its tokens, after the first.
    e2e_s : objective: time from its arrival to its last token.
    weight : of its client: its share of the service, relative to those of others.
    priority : a smaller one is more urgent.
    parent : name of the request that it continues: it comes ``arrival_s`` after the end of that one; "" for none. If its
        prompt is long enough, and its ``prefix`` has all whole blocks of the parent's prompt, it begins with that prompt
        and its answer.
    adapter : name of the adapter that it uses on its model; "" for none. Only requests with the same one share blocks of
        the KV cache.
    cache_salt : a secret of its client; "" for none. Only requests with the same one share blocks of the KV cache.
    reads_cache : whether it reuses blocks of the KV cache that hold the beginning of its prompt. If not, its whole prompt
        is computed, as what is wanted of its tokens is not in the cache.
    num_samples : how many answers to its prompt are wanted (n of the API; parallel sampling).
    trains : whether its prompt trains its adapter, beside requests that are answered (Miao et al., "FlexLLM", arXiv
        2402.18789): all of its tokens go forward and then backward through the model, whose own weights stay as they are.
        Nothing is generated: ``max_tokens`` is 0, as are the output tokens of a trace.

    Raises
    ------
    ServeError
        If a number is out of range, or the prompt has another length than its tokens or blocks.
    """

    name: str
    arrival_s: float
    prompt_tokens: int
    max_tokens: int
    model: str = ""
    client: str = ""
    prompt_ids: tuple[int, ...] = ()
    prefix: PrefixBlocks | None = None
    ttft_s: float = _INF
    tpot_s: float = _INF
    e2e_s: float = _INF
    weight: float = 1.0
    priority: int = 0
    parent: str = ""
    adapter: str = ""
    cache_salt: str = ""
    reads_cache: bool = True
    num_samples: int = 1
    trains: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.arrival_s <= _LATEST_S:
            raise self._error("arrival_s", self.arrival_s, f"a time from 0 s to {_LATEST_S:.0e} s")
        if self.trains:
            self._check_training()
        for name in ("prompt_tokens", "num_samples") if self.trains else _COUNTS:
            if getattr(self, name) < 1:
                raise self._error(name, getattr(self, name), "1 or more")
        if self.num_samples > _MOST_SAMPLES:
            raise self._error("num_samples", self.num_samples, f"at most {_MOST_SAMPLES:,}")
        for name in ("ttft_s", "tpot_s", "e2e_s", "weight"):
            if not getattr(self, name) > 0:
                raise self._error(name, getattr(self, name), "above 0")
        if self.prompt_ids and len(self.prompt_ids) != self.prompt_tokens:
            raise self._error("prompt_ids", len(self.prompt_ids), f"{self.prompt_tokens}, one for each token")
        for wrong in (each for each in self.prompt_ids if not 0 <= each <= _LARGEST_ID):
            raise self._error("one of prompt_ids", wrong, f"0 to {_LARGEST_ID}")
        if self.prefix is not None:
            self._check_prefix(self.prefix)

    @property
    def has_objectives(self) -> bool:
        """Whether it is to be served within some time."""
        return min(self.ttft_s, self.tpot_s, self.e2e_s) < _INF

    def _check_training(self) -> None:
        """What trains generates nothing, and has an adapter."""
        if not self.adapter:
            raise self._error("adapter", "''", "the name of the one that it trains")
        if self.max_tokens or self.num_samples != 1:
            raise self._error(
                "max_tokens, num_samples", (self.max_tokens, self.num_samples), "0 and 1 where it trains"
            )
        if min(self.ttft_s, self.tpot_s) < _INF:
            raise self._error("ttft_s, tpot_s", (self.ttft_s, self.tpot_s), "e2e_s alone where it trains")

    def _check_prefix(self, prefix: PrefixBlocks) -> None:
        keys, size = prefix
        if size < 1 or len(keys) != -(-self.prompt_tokens // size):
            allowed = (
                f"one for each {size} of its {self.prompt_tokens} tokens"
                if size > 0
                else "blocks of 1 token or more"
            )
            raise self._error("prefix", f"{len(keys)} keys", allowed)

    def _error(self, what: str, given: object, allowed: str) -> ServeError:
        return ServeError(f"request {self.name!r}: {what} is {given}; allowed is {allowed}")


class TracedRequest(NamedTuple):
    """A request of a trace, with what only the trace knows.

    Attributes
    ----------
    request : what clients say and policies see.
    output_tokens : how many tokens it will have, its last one with it, or how many each of its samples will, where they
        differ; no policy sees this.
    """

    request: Request
    output_tokens: int | tuple[int, ...]

    @property
    def by_sample(self) -> tuple[int, ...]:
        """Output tokens of each sample.

        Raises
        ------
        ServeError
            If there are not as many numbers as samples, or one is below 1; or if it trains, and has any.
        """
        num, given = self.request.num_samples, self.output_tokens
        lengths = given if isinstance(given, tuple) else (given,) * num
        if self.request.trains:
            allowed, fits = "0 where it trains", lengths == (0,)
        else:
            allowed = f"1 or more, one number or one for each of {num} samples"
            fits = len(lengths) == num and min(lengths) >= 1
        if not fits:
            raise ServeError(f"request {self.request.name!r}: output_tokens is {given}; allowed is {allowed}")
        return lengths

    @property
    def max_output_tokens(self) -> int:
        """Output tokens of the sample that has most."""
        given = self.output_tokens
        return max(given) if isinstance(given, tuple) else given

    @property
    def longest_answer_tokens(self) -> int:
        """Output tokens of the sample that has most, as far as its client takes them."""
        return min(self.max_output_tokens, self.request.max_tokens)
