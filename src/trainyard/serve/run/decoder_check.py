"""Check of the decoder of a tokenizer: it runs beside all answers, so that its work must be bounded by its input."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trainyard.serve.errors import ServeError

__all__ = ["check_decoder"]

_LONGEST_TOKEN, _MOST_GROWTH, _MOST_DECODERS = 65_536, 64, 64
_REPLACED = {"BPEDecoder": "suffix", "CTC": "word_delimiter_token"}  # by a space


def check_decoder(tokenizer: Any) -> None:
    """Refuse a decoder that may take long, or make a long text of a short one.

    Parameters
    ----------
    tokenizer : of the tokenizers library.

    Raises
    ------
    ServeError
        Says which part of ``tokenizer.json`` is not allowed.
    """
    growth = 1.0
    decoders = list(_decoders(tokenizer.decoder))
    if len(decoders) > _MOST_DECODERS:
        raise ServeError(f"its decoder has {len(decoders)} parts; allowed are {_MOST_DECODERS}")
    for decoder in decoders:
        replaced = _REPLACED.get(decoder["type"])
        if replaced is not None and not decoder[replaced]:  # a space before every character, each time
            raise ServeError(
                f"the {replaced} of its {decoder['type']} is empty; allowed is a text that is not"
            )
        if decoder["type"] != "Replace":
            continue
        pattern, content = decoder["pattern"].get("String", ""), decoder["content"]
        if not pattern:
            raise ServeError(
                "its decoder replaces a regular expression, which may take any time; allowed is a text that is not empty"
            )
        growth *= max(1.0, len(content.encode()) / len(pattern.encode()))
    if growth > _MOST_GROWTH:
        raise ServeError(
            f"its decoder makes texts {growth:.3g} times as long; allowed are {_MOST_GROWTH} times"
        )
    if (longest := _longest(tokenizer.get_vocab(with_added_tokens=True))) > _LONGEST_TOKEN:
        raise ServeError(f"it has a token of {longest} characters; allowed are {_LONGEST_TOKEN}")


def _decoders(decoder: Any) -> Iterator[Mapping[str, Any]]:
    """A decoder, or those that it has in sequence, as ``tokenizer.json`` describes them."""
    if decoder is None:
        return
    waiting = [json.loads(decoder.__getstate__())]
    while waiting:
        described = waiting.pop()
        waiting += described.get("decoders", ())
        yield described


def _longest(tokens: Iterable[str]) -> int:
    return max(map(len, tokens), default=0)
