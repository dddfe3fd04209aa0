"""A tokenizer with a token for each byte, for models without one. The token of a byte is its value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

__all__ = ["BYTE_END", "BYTE_VOCABULARY", "byte_end", "byte_of_char", "save_byte_tokenizer"]

BYTE_END = 256
"""The token that ends an answer."""
BYTE_VOCABULARY = 257
"""Tokens of bytes, and the end."""

_END = "<|end|>"
_CHAT = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@cache
def byte_of_char() -> Mapping[str, int]:
    """Return the byte of each character by which byte-level tokenizers write bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


def byte_end(vocabulary: int) -> int | None:
    """Return the token that ends an answer of a model; None for a model that knows bytes only."""
    return BYTE_END if vocabulary > BYTE_END else None


def save_byte_tokenizer(folder: Path, vocabulary: int = BYTE_VOCABULARY) -> Path:
    """Save a tokenizer with a token for each byte; return the folder.

    Where the folder has no ``config.json``, one is saved that says the vocabulary.

    Parameters
    ----------
    vocabulary : tokens that the model knows. Those after the bytes and the end are numbers as text, such as " 300", which
        no text is encoded to. If there are fewer than bytes, the last token stands for all bytes from it on, as in the
        training of models of the zoo.
    """
    chars = sorted(byte_of_char(), key=lambda char: byte_of_char()[char])
    space = chars[ord(" ")]
    pieces = [*chars, _END, *(f"{space}{token}" for token in range(BYTE_VOCABULARY, vocabulary))][:vocabulary]
    tokens = {piece: token for token, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(tokens, [], unk_token=pieces[-1] if vocabulary < len(chars) else None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    end = {} if byte_end(vocabulary) is None else {"eos_token": _END}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=_CHAT, **end).save_pretrained(folder)
    config = folder / "config.json"
    if not config.is_file():
        config.write_text(json.dumps({"vocab_size": vocabulary}))
    return folder
