"""Work with the tokenizer of a model: tokenize texts and conversations, decode tokens, check JSON schemas.

Another process may do the work (`trainyard.serve.run.limited_tokenizer`), so that its inputs and results are pickled.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, Literal, TypeVar

from trainyard.serve.errors import ServeError
from trainyard.serve.run.model_tokenizer import ModelTokenizer
from trainyard.serve.run.sampling import OutputForm

__all__ = ["CheckConstraint", "DecodeTokens", "EncodeConversation", "EncodeTexts", "TokenizerTask", "Tokens"]

Tokens = tuple[int, ...]
R_co = TypeVar("R_co", covariant=True)

_MOST_CHARS = 1 << 25
_TOKEN_BYTES = 8
_MOST_PROBLEM_CHARS = 2000


class TokenizerTask(ABC, Generic[R_co]):
    """One piece of work.

    Attributes
    ----------
    kind : "tokens" for prompts, "constraint" for a check of a JSON schema or grammar.
    """

    kind: ClassVar[Literal["tokens", "constraint"]] = "tokens"

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Approximate size of the input."""

    @abstractmethod
    def do(self, tokenizer: ModelTokenizer) -> R_co:
        """Do the work.

        Raises
        ------
        ServeError
            If the work cannot be done.
        """


@dataclass(frozen=True)
class EncodeTexts(TokenizerTask[tuple[Tokens, ...]]):
    """The tokens of texts.

    Attributes
    ----------
    add_special_tokens : whether the tokenizer adds its special tokens around each text.
    max_tokens : number of tokens of each text that are kept; None for all.
    allowed_tokens : most tokens of each text; None for any number.
    """

    texts: tuple[str, ...]
    add_special_tokens: bool = True
    max_tokens: int | None = None
    allowed_tokens: int | None = None

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.texts))

    def do(self, tokenizer: ModelTokenizer) -> tuple[Tokens, ...]:
        encode = partial(
            tokenizer.encode,
            add_special_tokens=self.add_special_tokens,
            max_tokens=self.max_tokens,
            allowed_tokens=self.allowed_tokens,
        )
        return tuple(map(encode, self.texts))


@dataclass(frozen=True)
class EncodeConversation(TokenizerTask[tuple[Tokens, ...]]):
    """The tokens of a conversation, written as one prompt by the chat template of the model.

    Attributes
    ----------
    messages, tools : as JSON.
    must_show_tools : whether to refuse a template that writes the same prompt without the tools.
    variables : of the template, as JSON.
    effort : how much the model is to reason; "" where nothing says it.
    add_generation_prompt, continue_final_message : see `ModelTokenizer.chat_prompt`.
    add_special_tokens, allowed_tokens : see `EncodeTexts`.
    """

    messages: str
    tools: str = "[]"
    must_show_tools: bool = False
    variables: str = "{}"
    effort: str = ""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    allowed_tokens: int | None = None

    @classmethod
    def of(
        cls, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], **more: Any
    ) -> EncodeConversation:
        """Make the work from messages and tools in the form that chat templates read."""
        return cls(json.dumps(messages), json.dumps(tools), **more)

    @property
    def num_bytes(self) -> int:
        return len(self.messages) + len(self.tools) + len(self.variables)

    def do(self, tokenizer: ModelTokenizer) -> tuple[Tokens, ...]:
        write = partial(
            tokenizer.chat_prompt,
            json.loads(self.messages),
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            variables=json.loads(self.variables),
            effort=self.effort,
        )
        prompt = write(tools=json.loads(self.tools))
        if self.must_show_tools and prompt == write():
            raise ServeError(
                "the chat template of the model leaves out the tools, so that the model cannot choose one; give "
                'tool_choice: "required" or a function, or serve a model whose template has tools'
            )
        return EncodeTexts((prompt,), self.add_special_tokens, None, self.allowed_tokens).do(tokenizer)


@dataclass(frozen=True)
class DecodeTokens(TokenizerTask[tuple[str, ...]]):
    """Texts of tokens."""

    tokens: tuple[Tokens, ...]

    @property
    def num_bytes(self) -> int:
        return _TOKEN_BYTES * sum(map(len, self.tokens))

    def do(self, tokenizer: ModelTokenizer) -> tuple[str, ...]:
        texts, num_chars = list[str](), 0
        for tokens in self.tokens:
            texts.append(tokenizer.decode(tokens))
            num_chars += len(texts[-1])
            if num_chars > _MOST_CHARS:
                raise ServeError(f"the tokens have more than {_MOST_CHARS} characters of text; give fewer")
        return tuple(texts)


@dataclass(frozen=True)
class CheckConstraint(TokenizerTask[str]):
    """Find the fault of the form that answers are to have; "" if answers can have it.

    Attributes
    ----------
    form : that form.
    """

    kind: ClassVar[Literal["tokens", "constraint"]] = "constraint"

    form: OutputForm

    @property
    def num_bytes(self) -> int:
        *texts, choices = self.form
        return sum(map(len, (*texts, *choices)))

    def do(self, tokenizer: ModelTokenizer) -> str:
        return tokenizer.structured_outputs.problem(self.form)[
            :_MOST_PROBLEM_CHARS
        ]  # an error may quote the whole schema
