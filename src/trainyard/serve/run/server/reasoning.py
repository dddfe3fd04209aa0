"""Formats of reasoning before an answer, and the place where the reasoning of an answer begins.

Names are those of vLLM's ``--reasoning-parser``. The tags are tokens of their own, as in vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from trainyard.serve.errors import ServeError
from trainyard.serve.run.model_tokenizer import ModelTokenizer
from trainyard.serve.run.reasoning_tokens import ReasoningTokens

__all__ = ["REASONING_FORMATS", "ReasoningFormat", "reasoning_of_answers", "reasoning_tokens"]

_MOST_TAIL = 16  # tokens behind a closed reasoning at the end of a prompt: spaces


@dataclass(frozen=True)
class ReasoningFormat:
    """A format in which models write their reasoning.

    Attributes
    ----------
    begin, end : texts of the tokens around it.
    is_implied : whether an answer begins within its reasoning even if it does not begin with the first tag.
    """

    begin: str
    end: str
    is_implied: bool


REASONING_FORMATS: Mapping[str, ReasoningFormat] = MappingProxyType(
    {
        "deepseek_r1": ReasoningFormat("<think>", "</think>", is_implied=True),
        "qwen3": ReasoningFormat("<think>", "</think>", is_implied=False),
    }
)
"""Formats in which models write their reasoning, by name."""


def reasoning_tokens(name: str, tokenizer: ModelTokenizer) -> tuple[int, int]:
    """Return the tokens before and behind the reasoning of answers.

    Parameters
    ----------
    name : of the format.

    Raises
    ------
    ServeError
        If the tokenizer has no such tokens.
    """
    tags = REASONING_FORMATS[name].begin, REASONING_FORMATS[name].end
    found = [token for tag in tags for token in tokenizer.ids_of((tag,))]
    if len(found) < len(tags):
        raise ServeError(
            f"--reasoning-parser {name} needs the tokens {' and '.join(tags)}, and the tokenizer of the model does not "
            "have both; leave it out, or serve a model that reasons so"
        )
    begin, end = found
    return begin, end


def reasoning_of_answers(
    name: str, tokenizer: ModelTokenizer, prompt: Sequence[int], *, is_continued: bool
) -> ReasoningTokens | None:
    """Return the tokens of the reasoning in answers to a prompt; None if the answers have no reasoning.

    An answer begins within its reasoning if the prompt ends with the first tag, and spaces. It has no reasoning if the
    prompt ends with the last tag, as in a request that turned reasoning off. Tags further up are of other messages.

    Parameters
    ----------
    name : of the format.
    is_continued : whether the last message of the prompt is continued, so that all behind the last tag is a part of it.
    """
    begin, end = reasoning_tokens(name, tokenizer)
    places = [place for place, token in enumerate(prompt) if token in (begin, end)]
    last = places[-1] if places else -1
    behind = prompt[last + 1 :]
    is_at_end = bool(places) and (
        is_continued or (len(behind) <= _MOST_TAIL and not tokenizer.decode(behind).strip())
    )
    if is_at_end:
        return ReasoningTokens(begin, end, is_open=True) if prompt[last] == begin else None
    if is_continued:
        return None
    return ReasoningTokens(begin, end, is_open=REASONING_FORMATS[name].is_implied)
