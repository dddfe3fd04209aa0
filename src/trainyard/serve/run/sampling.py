"""Choosing the next token of each request from logits, on the CPU.

The order is that of vLLM: log-probabilities are of the logits as they come; then what is not allowed is forbidden, biases
are added, penalties are taken, and the temperature divides; min_p, top_k and top_p, in this order, say which tokens may
be drawn. Tokens of equal logits count as sorted by their number.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, float32

from trainyard.serve.errors import ServeError
from trainyard.serve.run.reasoning_tokens import ReasoningTokens

__all__ = [
    "NO_TOKEN",
    "OutputForm",
    "Sampled",
    "SamplingParams",
    "SamplingRow",
    "TokenLogprobs",
    "likeliest",
    "sample",
    "seed_of",
    "token_mask",
]

NO_TOKEN = -1
"""In the place of a token where none can be chosen."""

_LEAST_TEMPERATURE = 1e-5
_RANGES = {
    "temperature": (0.0, 2.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (1e-3, 1e3),
}
_MOST_LOGPROBS = 20
_MOST_BIAS = 100.0
_MOST_TOP_K = 2**31 - 1


class OutputForm(NamedTuple):
    """A form to which an output conforms. At most one attribute is given; an output without any has no form.

    Attributes
    ----------
    json_schema : text of a JSON schema to which the output conforms; "" for none.
    grammar : text of a grammar to which it conforms, in llguidance's form of Lark or in GBNF; "" for none.
    regex : regular expression that the whole output matches, in the form of Rust's regex; "" for none.
    choices : texts of which the output is one; empty for any.
    """

    json_schema: str = ""
    grammar: str = ""
    regex: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen.

    Parameters
    ----------
    temperature : float
        Divides the logits; 0 to 2. The likeliest token is chosen at 0 (below 1e-5).
    top_k : int
        Tokens that may be drawn, the likeliest ones; 1 to 2147483647, or -1 for all.
    top_p : float
        The likeliest tokens may be drawn that have this probability together, of what top_k left; above 0, up to 1.
    min_p : float
        A token may be drawn that has this share of the probability of the likeliest one; 0 to 1.
    seed : int or None
        Of the request's random numbers; None for one that is drawn (`seed_of`).
    repetition_penalty : float
        Of a token in the prompt or the output, a positive logit is divided by this, and another multiplied; 0.001 to
        1000.
    presence_penalty : float
        Is subtracted from the logit of a token in the output; -2 to 2.
    frequency_penalty : float
        Is subtracted for each time that a token is in the output; -2 to 2.
    logit_bias : mapping
        What is added to the logits of tokens; -100 to 100.
    logprobs : int or None
        How many of the likeliest tokens are told with their log-probabilities, 0 to 20, beside the one that is chosen;
        None for nothing.
    form : OutputForm
        Form to which the output conforms.
    reasoning : ReasoningTokens or None
        Tokens around the reasoning behind which the form begins; None if it begins with the output.
    bad_words : tuple of tuple of int
        Sequences of tokens that are not in the output.
    allowed_token_ids : tuple of int or None
        Tokens of which the output consists; None for all.
    prompt_logprobs : int or None
        How many of the likeliest tokens are told with their log-probabilities, 0 to 20, beside each token of the prompt;
        None for nothing.
    min_tokens : int
        Tokens before which none is chosen that would end the answer; 0 or more. It does not go with a form of the output
        (`is_constrained`), which says by itself where answers end.

    Raises
    ------
    ServeError
        If one is not allowed.
    """

    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    form: OutputForm = field(default_factory=OutputForm)
    reasoning: ReasoningTokens | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    prompt_logprobs: int | None = None
    min_tokens: int = 0

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            given = getattr(self, name)
            if not least <= given <= most:
                raise ServeError(f"{name} is {given}; allowed is {least:g} to {most:g}")
        if not 0.0 < self.top_p <= 1.0:
            raise ServeError(
                f"top_p is {self.top_p}; allowed is above 0, up to 1; give 1 to draw from all tokens"
            )
        if self.top_k != -1 and not 1 <= self.top_k <= _MOST_TOP_K:
            raise ServeError(
                f"top_k is {self.top_k}; allowed is 1 to {_MOST_TOP_K}; give -1 to draw from all tokens"
            )
        for name in ("logprobs", "prompt_logprobs"):
            num = getattr(self, name)
            if num is not None and not 0 <= num <= _MOST_LOGPROBS:
                raise ServeError(f"{name} is {num}; allowed is 0 to {_MOST_LOGPROBS}, or None for none")
        if self.min_tokens < 0:
            raise ServeError(f"min_tokens is {self.min_tokens}; allowed is 0 or more")
        if self.min_tokens and self.is_constrained:
            raise ServeError(
                f"min_tokens is {self.min_tokens}, and answers end by the form that they have; leave one out"
            )
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise ServeError("allowed_token_ids is empty; give at least one token, or None for all")
        if not all(self.bad_words):
            raise ServeError("bad_words has a word without tokens; leave it out")
        for token, bias in self.logit_bias.items():
            if token < 0 or not -_MOST_BIAS <= bias <= _MOST_BIAS:
                raise ServeError(
                    f"logit_bias of token {token} is {bias}; allowed are tokens from 0 and -100 to 100"
                )

    @property
    def is_constrained(self) -> bool:
        """Whether the output conforms to a form."""
        return any(self.form)

    @cached_property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is chosen."""
        return self.temperature < _LEAST_TEMPERATURE

    @cached_property
    def biases(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The tokens of `logit_bias`, and the numbers that are added to their logits."""
        num = len(self.logit_bias)
        return (
            np.fromiter(self.logit_bias, np.int64, num),
            np.fromiter(self.logit_bias.values(), np.float32, num),
        )

    @cached_property
    def has_penalties(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


@dataclass(frozen=True, eq=False)
class SamplingRow:
    """A request whose next token is chosen.

    Parameters
    ----------
    seed : of its random numbers (`seed_of`).
    prompt, output : its tokens so far. The random number is that of the place in the output, whatever the batch is.
    allowed : int32 words, of which bit ``i % 32`` of word ``i // 32`` is 1 if token ``i`` may be chosen; None for all.
    """

    params: SamplingParams
    seed: int
    prompt: ArrayLike
    output: Sequence[int] | NDArray[np.integer[Any]]
    allowed: NDArray[np.int32] | None = None


@dataclass(frozen=True, eq=False)
class TokenLogprobs:
    """Natural logarithms of the probabilities before temperature, bias and penalties.

    Parameters
    ----------
    chosen : of the token that was chosen.
    top, logprobs : the likeliest tokens, and theirs.
    """

    chosen: float
    top: NDArray[np.int64]
    logprobs: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Sampled:
    """The tokens of a batch.

    Parameters
    ----------
    tokens : (num_rows,); `NO_TOKEN` where no logit is finite, or some are not numbers.
    logprobs : of the rows that ask for them.
    """

    tokens: NDArray[np.int64]
    logprobs: tuple[TokenLogprobs | None, ...]


def token_mask(tokens: Iterable[int], vocabulary: int) -> NDArray[np.int32]:
    """Bits as `SamplingRow.allowed` has them, which are 1 for some tokens only.

    Parameters
    ----------
    tokens : those that the vocabulary does not have are left out.
    vocabulary : number of tokens.
    """
    listed = np.fromiter(tokens, np.int64)
    bits = np.zeros(-(-vocabulary // 32) * 32, np.bool_)
    bits[listed[(listed >= 0) & (listed < vocabulary)]] = True
    return np.packbits(bits, bitorder="little").view(np.int32)


def seed_of(params: SamplingParams) -> int:
    """The seed of a request: its own, or one that nobody can guess."""
    return secrets.randbits(63) if params.seed is None else params.seed


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> Sampled:
    """Choose the next token of each request.

    Parameters
    ----------
    logits : (num_rows, vocabulary) float32 on the CPU. Rows with a bias, penalties or tokens that are not allowed are
        changed in place.
    rows : one request each.

    Raises
    ------
    ServeError
        If logits have another shape or dtype, or a token is not in the vocabulary.
    """
    from trainyard.serve.run.sampling_kernel import choose_likeliest

    if logits.dim() != 2 or len(logits) != len(rows) or logits.dtype != float32 or not logits.shape[1]:
        raise ServeError(
            f"logits are {tuple(logits.shape)} of {logits.dtype}; allowed are ({len(rows)}, vocabulary) of torch.float32"
        )
    numbers = logits.detach().numpy()
    bases = [
        None if row.params.logprobs is None else likeliest(numbers[i], row.params.logprobs)
        for i, row in enumerate(rows)
    ]
    raw = dict[int, NDArray[np.float32]]()
    for i, row in enumerate(rows):
        if row.allowed is not None or row.params.logit_bias or row.params.has_penalties:
            if bases[i] is not None:
                raw[i] = numbers[i].copy()
            _change(numbers[i], row)
    tokens = np.full(len(rows), NO_TOKEN, np.int64)
    greedy = np.array([i for i, row in enumerate(rows) if row.params.is_greedy], np.int64)
    if len(greedy):
        choose_likeliest(numbers, greedy, tokens)
    if len(greedy) < len(rows):
        _draw(numbers, rows, tokens)
    return Sampled(
        tokens,
        tuple(
            None
            if base is None
            else TokenLogprobs(float(raw.get(i, numbers[i])[tokens[i]]) - base[0], *base[1:])
            for i, base in enumerate(bases)
        ),
    )


def likeliest(row: NDArray[np.float32], num: int) -> tuple[float, NDArray[np.int64], NDArray[np.float64]]:
    """Return the logit that would be certain, and the likeliest tokens with their log-probabilities.

    Parameters
    ----------
    row : logits of all tokens.
    num : likeliest tokens that are wanted.
    """
    from trainyard.serve.run.sampling_kernel import top_logprobs

    num = min(num, len(row))
    top, logprobs = np.empty(num, np.int64), np.empty(num)
    base = top_logprobs(row, np.empty_like(row), top, logprobs)
    return base, top, logprobs


def _change(logits: NDArray[np.float32], row: SamplingRow) -> None:
    """Forbid, add biases and take penalties, in place."""
    from trainyard.serve.run.sampling_kernel import forbid, penalise

    params, size = row.params, len(logits)
    if row.allowed is not None:
        forbid(logits, row.allowed)
    if params.logit_bias:
        biased, biases = params.biases
        if biased.max() >= size:
            raise ServeError(f"logit_bias has token {biased.max()}; allowed is 0 to {size - 1}")
        logits[biased] += biases  # no token is there twice
    if params.has_penalties:
        prompt, output = np.asarray(row.prompt, np.int64), np.asarray(row.output, np.int64)
        for tokens in (prompt, output):
            if len(tokens) and not 0 <= tokens.min() <= tokens.max() < size:
                raise ServeError(f"tokens are {tokens.min()} to {tokens.max()}; allowed is 0 to {size - 1}")
        penalise(
            logits,
            prompt,
            output,
            np.float32(params.repetition_penalty),
            np.float32(params.presence_penalty),
            np.float32(params.frequency_penalty),
            np.zeros(size, np.int32),
        )


def _draw(logits: NDArray[np.float32], rows: Sequence[SamplingRow], tokens: NDArray[np.int64]) -> None:
    """Draw the tokens of the rows that are not greedy."""
    from trainyard.serve.run.sampling_kernel import NUM_BUCKETS, draw

    drawn = [i for i, row in enumerate(rows) if not row.params.is_greedy]
    chosen = [(rows[i].params, rows[i]) for i in drawn]
    kept = np.empty(logits.shape[1] + 1, np.float32)  # one more is written than is kept
    draw(
        logits,
        np.array(drawn, np.int64),
        np.array([1.0 / params.temperature for params, _ in chosen], np.float32),
        np.array([params.top_k for params, _ in chosen], np.int64),
        np.array([params.top_p for params, _ in chosen], np.float64),
        np.array([params.min_p for params, _ in chosen], np.float64),
        np.array([row.seed & 0xFFFFFFFFFFFFFFFF for _, row in chosen], np.uint64),
        np.array([len(row.output) for _, row in chosen], np.int64),
        np.empty(logits.shape[1], np.float32),
        kept,
        kept.view(np.int32),
        np.empty(len(kept), np.int32),
        np.empty(NUM_BUCKETS),
        tokens,
    )
