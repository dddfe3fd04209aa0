"""Requests that are drawn: when they come, how long they are, which prefixes they share, and how conversations go on.

All is drawn from one seed. Arrivals, lengths, prefixes and conversations have streams of random numbers of their own, so
that another choice for one of them leaves the others as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, count, repeat
from typing import Protocol

import numpy as np

from trainyard.serve.errors import ServeError
from trainyard.serve.requests.request import MAX_TOKENS, PrefixBlocks, Request, TracedRequest

_MOST = 10**7  # tokens, turns and prefixes; more is a mistake, and prefixes are held
_MOST_REQUESTS = 2**53
_CVS = (1e-3, 1e3)  # beyond, squares of it leave what a number can be


class ArrivalProcess(Protocol):
    """Gaps between requests; the first one comes at 0."""

    def gaps_s(self, rng: np.random.Generator) -> Iterator[float]:
        """Seconds from each request to the next, without end."""


class WholeNumbers(Protocol):
    """Whole numbers of at least 1."""

    def draw(self, rng: np.random.Generator) -> int:
        """Draw a length."""


class TokenLengths(Protocol):
    """Lengths of prompt and output."""

    def draw(self, rng: np.random.Generator) -> tuple[int, int]:
        """Tokens of a prompt, and of its output."""


@dataclass(frozen=True)
class ConstantGaps:
    """Requests at equal distances.

    Attributes
    ----------
    gap_s : from one to the next; 0 has all come at once.
    """

    gap_s: float

    def __post_init__(self) -> None:
        _check("gap_s", self.gap_s, 0)

    def gaps_s(self, rng: np.random.Generator) -> Iterator[float]:
        return repeat(self.gap_s)


@dataclass(frozen=True)
class Poisson:
    """Requests that come independently of each other.

    Attributes
    ----------
    rate_per_s : requests per second, in the mean.
    """

    rate_per_s: float

    def __post_init__(self) -> None:
        _check_above_0("rate_per_s", self.rate_per_s)

    def gaps_s(self, rng: np.random.Generator) -> Iterator[float]:
        while True:
            yield float(rng.exponential(1 / self.rate_per_s))


@dataclass(frozen=True)
class Gamma:
    """Requests in bursts, or more evenly than by chance.

    Attributes
    ----------
    rate_per_s : requests per second, in the mean.
    cv : coefficient of variation of the gaps, their standard deviation by their mean: above 1 is bursts, 1 is `Poisson`.
    """

    rate_per_s: float
    cv: float

    def __post_init__(self) -> None:
        _check_above_0("rate_per_s", self.rate_per_s)
        _check_cv(self.cv)

    def gaps_s(self, rng: np.random.Generator) -> Iterator[float]:
        shape = self.cv**-2
        while True:
            yield float(rng.gamma(shape, 1 / (shape * self.rate_per_s)))


@dataclass(frozen=True)
class Constant:
    """The same number each time."""

    value: int

    def __post_init__(self) -> None:
        _check_whole("value", self.value, 1)

    def draw(self, rng: np.random.Generator) -> int:
        return self.value


@dataclass(frozen=True)
class Uniform:
    """All numbers from ``least`` to ``most`` equally often."""

    least: int
    most: int

    def __post_init__(self) -> None:
        _check_whole("least", self.least, 1)
        _check_whole("most", self.most, self.least)

    def draw(self, rng: np.random.Generator) -> int:
        return int(rng.integers(self.least, self.most, endpoint=True))


@dataclass(frozen=True)
class LogNormal:
    """Numbers whose logarithm is normal, rounded, and brought between 1 and ``most``.

    Attributes
    ----------
    mean : of the numbers, before that.
    cv : coefficient of variation, their standard deviation by their mean.
    most : the largest one.
    """

    mean: float
    cv: float
    most: int

    def __post_init__(self) -> None:
        _check_above_0("mean", self.mean)
        _check_cv(self.cv)
        _check_whole("most", self.most, 1)

    def draw(self, rng: np.random.Generator) -> int:
        variance = math.log1p(self.cv**2)
        drawn = rng.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance))
        return max(1, round(min(drawn, self.most)))


@dataclass(frozen=True)
class IndependentLengths:
    """Lengths of prompts and of outputs that have nothing to do with each other.

    Attributes
    ----------
    prompt_tokens, output_tokens : what each is drawn from.
    """

    prompt_tokens: WholeNumbers
    output_tokens: WholeNumbers

    def draw(self, rng: np.random.Generator) -> tuple[int, int]:
        return self.prompt_tokens.draw(rng), self.output_tokens.draw(rng)


@dataclass(frozen=True)
class LengthPairs:
    """Lengths that stand in a list, such as one of ``read_lengths``, each equally often.

    Attributes
    ----------
    pairs : tokens of prompt and of output.
    """

    pairs: tuple[tuple[int, int], ...] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.pairs:
            raise ServeError("pairs is empty; allowed is 1 pair of lengths or more")
        for name, length in (("least", min(map(min, self.pairs))), ("largest", max(map(max, self.pairs)))):
            _check_whole(f"the {name} length of pairs", length, 1)

    def draw(self, rng: np.random.Generator) -> tuple[int, int]:
        return self.pairs[int(rng.integers(len(self.pairs)))]


@dataclass(frozen=True)
class SharedPrefixes:
    """Beginnings of prompts, such as system prompts; each first request of a conversation has one before its own tokens.

    Attributes
    ----------
    num_prefixes : how many there are.
    prefix_tokens : length of each.
    tokens_per_block : of the blocks in which prompts are given; what of a prefix fills no block is not shared.
    exponent : of the law of Zipf: the n-th is drawn in proportion to 1 / n**exponent, with 0 all equally often.
    """

    num_prefixes: int
    prefix_tokens: int
    tokens_per_block: int
    exponent: float = 0.0

    def __post_init__(self) -> None:
        for name in ("num_prefixes", "prefix_tokens", "tokens_per_block"):
            _check_whole(name, getattr(self, name), 1)
        _check("exponent", self.exponent, 0)


@dataclass(frozen=True)
class Conversations:
    """Requests that go on: each further one has the prompt and the output of the one before it, and then its own tokens.

    Attributes
    ----------
    turns : how many requests one has.
    mean_thinking_s : from the end of a request to the next one; it is exponential.
    tokens_per_block : of the blocks in which prompts are given.
    """

    turns: WholeNumbers
    mean_thinking_s: float
    tokens_per_block: int

    def __post_init__(self) -> None:
        _check("mean_thinking_s", self.mean_thinking_s, 0)
        _check_whole("tokens_per_block", self.tokens_per_block, 1)


def generate_requests(
    num_requests: int,
    arrivals: ArrivalProcess,
    lengths: TokenLengths,
    seed: int = 0,
    *,
    prefixes: SharedPrefixes | None = None,
    conversations: Conversations | None = None,
    max_tokens: int = MAX_TOKENS,
) -> Iterator[TracedRequest]:
    """Draw requests; they come in the order of their arrivals, and those of a conversation directly after its first.

    Parameters
    ----------
    num_requests : of all conversations together; the last one may be cut off.
    arrivals : of the first requests of conversations; without ``conversations``, of all.
    lengths : of what is new in a prompt, and of the output. One longer than ``max_tokens`` ends there.
    prefixes : before the first prompt of each conversation; by default prompts share none.
    conversations : how requests go on; by default they do not.
    max_tokens : that clients take at most, the same for all.

    Raises
    ------
    ServeError
        If a number is out of range, or prefixes and conversations have blocks of different lengths.
    """
    _check_whole("num_requests", num_requests, 1, _MOST_REQUESTS)
    _check_whole("seed", seed, 0, _MOST_REQUESTS)
    _check_whole("max_tokens", max_tokens, 1)
    sizes = {each.tokens_per_block for each in (prefixes, conversations) if each is not None}
    if len(sizes) > 1:
        given = " and ".join(map(str, sorted(sizes)))
        raise ServeError(
            f"tokens_per_block is {given}; allowed is one, the same for prefixes and conversations"
        )
    return _drawn(num_requests, arrivals, lengths, seed, prefixes, conversations, max_tokens)


def _drawn(
    num_requests: int,
    arrivals: ArrivalProcess,
    lengths: TokenLengths,
    seed: int,
    prefixes: SharedPrefixes | None,
    conversations: Conversations | None,
    max_tokens: int,
) -> Iterator[TracedRequest]:
    for_gaps, for_lengths, for_prefixes, for_turns = np.random.default_rng(seed).spawn(4)
    first_s = accumulate(arrivals.gaps_s(for_gaps), initial=0.0)
    blocks = _Blocks(prefixes, conversations, for_prefixes)
    number = 0
    while number < num_requests:
        blocks.begin()
        arrival_s, context_tokens, parent = next(first_s), blocks.prefix_tokens, ""
        turns = conversations.turns.draw(for_turns) if conversations else 1
        for _ in range(min(turns, num_requests - number)):
            new_tokens, output_tokens = lengths.draw(for_lengths)
            output_tokens = min(output_tokens, max_tokens)
            prompt_tokens = context_tokens + new_tokens
            prefix = blocks.of(prompt_tokens)
            request = Request(str(number), arrival_s, prompt_tokens, max_tokens, prefix=prefix, parent=parent)
            yield TracedRequest(request, output_tokens)
            context_tokens, parent = prompt_tokens + output_tokens, str(number)
            number += 1
            if conversations:
                arrival_s = float(for_turns.exponential(conversations.mean_thinking_s))


class _Blocks:
    """Keys of the blocks of prompts.

    A block that is whole has the same key in all further prompts of its conversation; the last one, which goes on in the
    next prompt, has one that no other has.

    Attributes
    ----------
    prefix_tokens : of the prefix with which a conversation begins.
    """

    def __init__(
        self, prefixes: SharedPrefixes | None, conversations: Conversations | None, rng: np.random.Generator
    ) -> None:
        self._size = next((each.tokens_per_block for each in (prefixes, conversations) if each), 0)
        self._prefixes, self._rng = prefixes, rng
        self.prefix_tokens = prefixes.prefix_tokens if prefixes else 0
        self._num_shared = self.prefix_tokens // self._size if self._size else 0
        self._unused = count(self._num_shared * (prefixes.num_prefixes if prefixes else 0))
        self._whole: list[int] = []
        if prefixes:
            weights = np.arange(1, prefixes.num_prefixes + 1, dtype=float) ** -prefixes.exponent
            self._sums = np.cumsum(weights / weights.sum())

    def begin(self) -> None:
        """Draw the prefix of another conversation."""
        self._whole = []
        if self._prefixes:
            drawn = np.searchsorted(self._sums, self._rng.random() * self._sums[-1], side="right")
            first = int(drawn) * self._num_shared
            self._whole = list(range(first, first + self._num_shared))

    def of(self, prompt_tokens: int) -> PrefixBlocks | None:
        """The blocks of the next prompt of the conversation; None where there is nothing to share."""
        if not self._size:
            return None
        num_whole, rest = divmod(prompt_tokens, self._size)
        while len(self._whole) < num_whole:
            self._whole.append(next(self._unused))
        last = [next(self._unused)] if rest else []
        return PrefixBlocks((*self._whole, *last), self._size)


def _check_whole(name: str, value: int, least: int, most: int = _MOST) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ServeError(f"{name} is {value}; allowed is a whole number from {least} to {most}")


def _check(name: str, value: float, least: int) -> None:
    if not least <= value < math.inf:
        raise ServeError(f"{name} is {value}; allowed is a finite number of at least {least}")


def _check_above_0(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ServeError(f"{name} is {value}; allowed is a finite number above 0")


def _check_cv(cv: float) -> None:
    least, most = _CVS
    if not least <= cv <= most:
        raise ServeError(f"cv is {cv}; allowed is a number from {least:g} to {most:g}")
