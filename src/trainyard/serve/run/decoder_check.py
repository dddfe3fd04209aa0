"""Check the decoder of a tokenizer. It runs in the process that answers requests, so that its work must be bounded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from trainyard.serve.errors import ServeError

__all__ = ["check_decoder"]

_LONGEST_TOKEN, _MOST_GROWTH, _MOST_DECODERS = 65_536, 64, 64
# Fields whose text the decoder replaces by a space; an empty one would double the length of a text.
_REPLACED = {"BPEDecoder": "suffix", "CTC": "word_delimiter_token"}


def check_decoder(tokenizer: Any) -> None:
    """Refuse a decoder that may take long, or may make a long text from a short one.

    Parameters
    ----------
    tokenizer : tokenizer of the tokenizers library.

    Raises
    ------
    ServeError
        If a part of ``tokenizer.json`` is not allowed; the message names it.
    """
    growth = 1.0
    decoders = list(_decoders(tokenizer.decoder))
    if len(decoders) > _MOST_DECODERS:
        raise ServeError(f"its decoder has {len(decoders)} parts; allowed are {_MOST_DECODERS}")
    for decoder in decoders:
        replaced = _REPLACED.get(decoder["type"])
        if replaced is not None and not decoder[replaced]:
            raise ServeError(
                f"the {replaced} of its {decoder['type']} is empty; give a text that is not empty"
            )
        if decoder["type"] != "Replace":
            continue
        pattern, content = decoder["pattern"].get("String", ""), decoder["content"]
        if not pattern:
            raise ServeError(
                "its decoder replaces a regular expression or an empty text, which may take long; allowed is another text"
            )
        growth *= max(1.0, len(content.encode()) / len(pattern.encode()))
    if growth > _MOST_GROWTH:
        raise ServeError(
            f"its decoder makes texts {growth:.3g} times as long; allowed are {_MOST_GROWTH} times"
        )
    longest = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=0)
    if longest > _LONGEST_TOKEN:
        raise ServeError(f"it has a token of {longest} characters; allowed are {_LONGEST_TOKEN}")


def _decoders(decoder: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a decoder and the parts of its sequences, as ``tokenizer.json`` describes them."""
    if decoder is None:
        return
    waiting = [json.loads(decoder.__getstate__())]
    while waiting:
        described = waiting.pop()
        waiting += described.get("decoders", ())
        yield described
