"""The tokenizer of a model, with its chat template and the tokens that end an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from transformers import AutoTokenizer

from trainyard.reading import shortened, shown
from trainyard.serve.errors import ServeError
from trainyard.serve.run.byte_tokenizer import byte_of_char
from trainyard.serve.run.chat_variables import template_variables
from trainyard.serve.run.decoder_check import check_decoder
from trainyard.serve.run.folder_files import check_files, read_json
from trainyard.serve.run.structured_outputs import StructuredOutputs

__all__ = ["Detokenizer", "ModelTokenizer", "TooManyTokensError"]

_UNKNOWN = "\ufffd"
_MOST_UNDECIDED = 3  # characters that may become another one: UTF-8 has at most 4 bytes for each
_MOST_HELD = 16  # tokens that such characters depend on, and more
_LEAST_CHARS, _LEAST_MORE_TOKENS = 65_536, 1000
_MOST_TOKENS, _MOST_STOP_TOKENS = 10_000_000, 1024


class TooManyTokensError(ServeError):
    """A text has more tokens than it may have.

    Parameters
    ----------
    num_tokens : that it has, or that its beginning has.
    allowed_tokens : that it may have.
    is_part : whether only the beginning was tokenized.
    """

    def __init__(self, num_tokens: int, allowed_tokens: int, *, is_part: bool = False) -> None:
        self.num_tokens, self.allowed_tokens, self.is_part = num_tokens, allowed_tokens, is_part
        super().__init__(f"has {self.count} tokens; allowed are {allowed_tokens}; shorten it")

    @property
    def count(self) -> str:
        """Say how many tokens the text has."""
        return f"more than {self.num_tokens}" if self.is_part else f"{self.num_tokens}"

    def __reduce__(self) -> Any:
        return partial(TooManyTokensError, is_part=self.is_part), (self.num_tokens, self.allowed_tokens)


class ModelTokenizer:
    """The tokenizer of a model.

    Parameters
    ----------
    folder : of the model, in Hugging Face form. No code of it runs; its chat template runs in Jinja's sandbox.

    Attributes
    ----------
    stop_token_ids : tokens that end an answer.
    vocabulary : tokens that the model knows.

    Raises
    ------
    ServeError
        If it has no tokenizer that can be used.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / "tokenizer.json").is_file():
            raise ServeError(f"{folder} has no tokenizer.json; give a folder with the tokenizer of the model")
        check_files(folder)
        config = read_json(folder / "config.json")
        text_config = config.get("text_config") or {}
        try:
            self._pretrained = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            self._tokenizer = self._pretrained.backend_tokenizer
            self.vocabulary = int(config.get("vocab_size") or text_config["vocab_size"])
        except MemoryError:
            raise
        except Exception as error:  # transformers raises whatever comes of what a file says
            told = shortened(f"{type(error).__name__}: {error}")
            raise ServeError(f"the tokenizer of {folder} cannot be read: {told}") from error
        if not 0 < self.vocabulary <= _MOST_TOKENS:
            raise ServeError(
                f"{folder}/config.json has vocab_size {self.vocabulary}; allowed are 1 to {_MOST_TOKENS:,}"
            )
        check_decoder(self._tokenizer)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        generation = read_json(folder / "generation_config.json")
        given = [each.get("eos_token_id") for each in (generation, config, text_config)]
        stops = _stop_token_ids(folder, (*given, self._pretrained.eos_token_id))
        self.stop_token_ids = frozenset(each for each in stops if each < self.vocabulary)
        self._added = self._tokenizer.get_added_tokens_decoder()
        self._special = frozenset(token for token, each in self._added.items() if each.special)
        self._is_byte_level = type(self._tokenizer.decoder).__name__ == "ByteLevel"

    @cached_property
    def structured_outputs(self) -> StructuredOutputs:
        """Return the constraints that make answers conform to JSON schemas and grammars.

        Raises
        ------
        ServeError
            If that is not possible.
        """
        return StructuredOutputs(self._pretrained, self.vocabulary, self.stop_token_ids)

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be written as a prompt."""
        return bool(self._pretrained.chat_template)

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        max_tokens: int | None = None,
        allowed_tokens: int | None = None,
    ) -> tuple[int, ...]:
        """Tokens of a text. Of one that has far more than are kept or allowed, only the beginning is tokenized.

        Parameters
        ----------
        add_special_tokens : whether those are added that the tokenizer puts around a text, such as at its beginning.
        max_tokens : how many are kept: the first ones of the text with all that are put around it; None for all.
        allowed_tokens : how many it may have; None for any number.

        Raises
        ------
        TooManyTokensError
            If it has more than are allowed.
        """
        most = allowed_tokens if max_tokens is None else max_tokens
        beginning = text if most is None else self._beginning(text, most)
        # The call for several texts lets other threads run meanwhile; that for one does not.
        (encoding,) = self._tokenizer.encode_batch_fast(
            [beginning], add_special_tokens=add_special_tokens and max_tokens is None
        )
        if max_tokens is not None:
            around = self._tokenizer.num_special_tokens_to_add(False) if add_special_tokens else 0
            encoding.truncate(max(0, max_tokens - around))
            encoding = self._tokenizer.post_process(encoding, None, add_special_tokens)
        tokens = tuple(encoding.ids)
        if allowed_tokens is not None and len(tokens) > allowed_tokens:
            raise TooManyTokensError(len(tokens), allowed_tokens, is_part=len(beginning) < len(text))
        return tokens

    def _beginning(self, text: str, num_tokens: int) -> str:
        """A beginning of a text that surely has more than some tokens; all of it if none is known to have them."""
        num_chars = max(_LEAST_CHARS, 8 * num_tokens)
        while num_chars < len(text):
            (encoding,) = self._tokenizer.encode_batch_fast([text[:num_chars]], add_special_tokens=False)
            if len(encoding) > 2 * num_tokens + _LEAST_MORE_TOKENS:  # whatever the cut does to the last ones
                return text[:num_chars]
            num_chars *= 4
        return text

    def decode(self, tokens: Sequence[int], shown: Set[int] = frozenset()) -> str:
        """Text of tokens; special tokens have none.

        Parameters
        ----------
        shown : special tokens that have a text nevertheless.
        """
        kept = [token for token in tokens if self.has_text(token, shown)]
        found: str = self._tokenizer.decode(kept, skip_special_tokens=False)
        return found

    def has_text(self, token: int, shown: Set[int] = frozenset()) -> bool:
        """Whether a token is one of text: special ones are not, unless they are shown."""
        return token not in self._special or token in shown

    @property
    def special_ids(self) -> frozenset[int]:
        """The special tokens; they have no text unless a request asks for it."""
        return self._special

    def ids_of(self, texts: Sequence[str]) -> frozenset[int]:
        """Tokens that are one of some texts."""
        found = map(self._tokenizer.token_to_id, texts)
        return frozenset(token for token in found if token is not None)

    def added_of(self, texts: Sequence[str]) -> frozenset[str]:
        """Return the texts that are added tokens, special or not."""
        return frozenset(texts) & {each.content for each in self._added.values()}

    def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] = MappingProxyType({}),
        effort: str = "",
    ) -> str:
        """A conversation as the template of the model writes it.

        Parameters
        ----------
        tools : that the model is told of.
        add_generation_prompt : whether an answer is to follow.
        continue_final_message : whether the last message is left open, so that it is continued.
        variables, effort : see `template_variables`.

        Raises
        ------
        ServeError
            If the model has no template, that cannot write it or does not read one of the variables, or a message with
            calls is continued.
        """
        if not self.has_chat_template:
            raise ServeError("the model has no chat template; use /v1/completions, or a model with one")
        if continue_final_message and messages[-1].get("tool_calls"):
            raise ServeError(
                "continue_final_message is true, and the last message has tool_calls, behind which no text goes on; "
                "leave one of these out"
            )
        try:
            template = self._pretrained.get_chat_template(tools=[dict(each) for each in tools] or None)
            reserved = self._pretrained.special_tokens_map
            variables = template_variables(template, variables, effort, reserved)
            found = self._pretrained.apply_chat_template(
                [dict(each) for each in messages],
                tools=[dict(each) for each in tools] or None,
                tokenize=False,
                chat_template=template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **variables,
            )
        except (MemoryError, ServeError):
            raise
        except Exception as error:  # a template may raise whatever it likes
            told = str(error) or type(error).__name__
            raise ServeError(
                f"the chat template of the model does not take these messages: {shortened(told)}"
            ) from error
        return str(found)

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes of one token, which may be part of a character; special tokens stand for their name."""
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return b""
        if token in self._pretrained.added_tokens_decoder:
            return str(piece).encode()
        if self._is_byte_level and all(char in byte_of_char() for char in piece):
            return bytes(byte_of_char()[char] for char in piece)
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes.fromhex(piece[3:5])
        return str(self._tokenizer.decode([token], skip_special_tokens=False)).encode()


class Detokenizer:
    """Text of tokens that come one by one. A character whose bytes are in several tokens comes when it is whole.

    Parameters
    ----------
    tokenizer : of the model.
    shown : special tokens that have a text.
    """

    def __init__(self, tokenizer: ModelTokenizer, shown: Set[int] = frozenset()) -> None:
        self._tokenizer, self._shown = tokenizer, shown
        # Tokens from the last ones that gave text; what these give alone, and some characters more, is not given again.
        self._tokens: list[int] = []
        self._num_given = self._num_chars_given = 0

    def take(self, token: int) -> str:
        """Take the next token; return the text that is certain now."""
        if not self._tokenizer.has_text(token, self._shown):
            return ""
        self._tokens.append(token)
        new = self._new()
        num_undecided = min(len(new) - len(new.rstrip(_UNKNOWN)), _MOST_UNDECIDED)
        if new and not num_undecided:
            self._tokens = self._tokens[self._num_given :]
            self._num_given, self._num_chars_given = len(self._tokens), 0
            return new
        if len(self._tokens) <= self._num_given + 2 * _MOST_HELD:
            return ""
        # No character is so long: all but the last ones are no text. What is held is bounded, as it is read each time.
        self._tokens, self._num_given = self._tokens[-_MOST_HELD:], 0
        self._num_chars_given = max(0, len(self._decode(self._tokens)) - num_undecided)
        return new[: len(new) - num_undecided]

    def rest(self) -> str:
        """Return the text that was held back, at the end of the tokens."""
        new = self._new()
        self._tokens, self._num_given, self._num_chars_given = [], 0, 0
        return new

    def _new(self) -> str:
        num = len(self._decode(self._tokens[: self._num_given])) + self._num_chars_given
        return self._decode(self._tokens)[num:]

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens, self._shown)


def _stop_token_ids(folder: Path, given: Sequence[Any]) -> frozenset[int]:
    """The tokens that end an answer, of all places that name some. They are sent with each request."""
    found = [
        number
        for each in given
        for number in (each if isinstance(each, list) else [each])
        if number is not None
    ]
    wrong = [each for each in found if type(each) is not int or each < 0]
    if wrong or len(found) > _MOST_STOP_TOKENS:
        told = shown(wrong[0]) if wrong else f"{len(found)} tokens"
        raise ServeError(
            f"{folder} has eos_token_id {told}; allowed are up to {_MOST_STOP_TOKENS} numbers of tokens, from 0 on"
        )
    return frozenset(found)
