"""A tokenizer with a token for each byte, for models without one."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from trainyard.serve.errors import ServeError

__all__ = ["BYTE_END", "BYTE_VOCABULARY", "save_byte_tokenizer"]

BYTE_END = 256
"""The token that ends an answer."""
BYTE_VOCABULARY = 257
"""Tokens of bytes, and the end."""

_END = "<|end|>"
_CHAT = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def save_byte_tokenizer(folder: Path, vocabulary: int = BYTE_VOCABULARY) -> Path:
    """Save a tokenizer with a token for each byte; return the folder.

    Where the folder has no ``config.json``, one is saved that says the vocabulary.

    Parameters
    ----------
    vocabulary : tokens that the model knows. Those after the bytes and the end are numbers as text, such as " 300", which
        no text is encoded to.

    Raises
    ------
    ServeError
        If there are fewer tokens than bytes and an end.
    """
    if vocabulary < BYTE_VOCABULARY:
        raise ServeError(
            f"a vocabulary of {vocabulary} tokens; a token for each byte and one for the end are {BYTE_VOCABULARY}; give "
            "a model that knows as many"
        )
    space = "\u0120"  # as byte-level tokenizers write it
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), _END]
    pieces += [f"{space}{token}" for token in range(BYTE_VOCABULARY, vocabulary)]
    tokenizer = Tokenizer(models.BPE({piece: token for token, piece in enumerate(pieces)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=_END, chat_template=_CHAT).save_pretrained(
        folder
    )
    config = folder / "config.json"
    if not config.is_file():
        config.write_text(json.dumps({"vocab_size": vocabulary}))
    return folder
