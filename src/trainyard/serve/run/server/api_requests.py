"""Bodies of requests: their fields, and what is allowed in each. An unsupported field is refused by name."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, FailFast, Field, StringConstraints, ValidationError

from trainyard.reading import shown
from trainyard.serve.run.sampling import OutputForm
from trainyard.serve.run.server.answer_form import (
    Choices,
    FormText,
    JsonSchema,
    ResponseFormat,
    StructuredOutputs,
    one_form,
)
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.chat_messages import Messages, TemplateFields, ToolChoiceField, Tools
from trainyard.serve.run.server.json_body import parse_json
from trainyard.serve.run.server.request_body import Name, RequestBody, describe_error
from trainyard.serve.run.server.tools.tool_use import ToolUse

__all__ = [
    "Body",
    "ChatRequest",
    "CompletionRequest",
    "GenerationRequest",
    "UsageInStream",
    "read_request",
]

_MOST_TOKENS = 2**31 - 1
_MOST_STOPS, _MOST_STOP_CHARS = 16, 1000
_MOST_BAD_WORDS, _MOST_WORD_CHARS, _MOST_ALLOWED_TOKENS = 1000, 100, 2**18
_MOST_METADATA = 16
_TOKEN = re.compile(r"\d{1,9}", re.ASCII)
_MOST_SALT_CHARS = 1024
_MOST_BIAS = 100

_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "audio": (),
        "echo": (False,),  # of chats
        "function_call": ("none",),
        "functions": ([],),
        "length_penalty": (1, 1.0),
        "modalities": (["text"],),
        "parallel_tool_calls": (True, False),  # of completions, which have no tools
        "prediction": (),
        "prompt_cache_options": ({},),
        "return_token_ids": (False,),
        "return_tokens_as_token_ids": (False,),
        "service_tier": ("auto", "default"),
        "spaces_between_special_tokens": (True,),
        "store": (True, False),  # nothing is kept, and no answer depends on it
        "suffix": ("",),
        "tool_choice": ("none", "auto"),
        "tools": ([],),
        "use_beam_search": (False,),
        "verbosity": ("low", "medium", "high"),  # a wish, which models of other makers do not know
        "web_search_options": (),
    }
)
"""Fields of the API that are not done, and the values of them that ask for nothing; null always is one."""


def _stops(given: Any) -> tuple[str, ...]:
    found = [given] if isinstance(given, str) else given
    if not isinstance(found, list | tuple) or len(found) > _MOST_STOPS:
        raise ValueError(f"allowed is a text or a list of at most {_MOST_STOPS} texts")
    if not all(isinstance(each, str) and 1 <= len(each) <= _MOST_STOP_CHARS for each in found):
        raise ValueError(f"allowed are texts of 1 to {_MOST_STOP_CHARS} characters")
    return tuple(found)


def _biases(given: Any) -> Any:
    """Numbers by token; keys of JSON are texts."""
    if not isinstance(given, dict) or not all(_TOKEN.fullmatch(str(each)) for each in given):
        raise ValueError('allowed is a number for each token, such as {"50256": -100}')
    if not all(type(each) in (int, float) and -_MOST_BIAS <= each <= _MOST_BIAS for each in given.values()):
        raise ValueError(f"allowed are numbers from {-_MOST_BIAS} to {_MOST_BIAS} for each token")
    return {int(token): value for token, value in given.items()}


def _few_entries(given: Any) -> Any:
    """Refuse too many before each of them is looked at."""
    if isinstance(given, dict) and len(given) > _MOST_METADATA:
        raise ValueError(f"allowed are at most {_MOST_METADATA} texts by their names")
    return given


_BadWords = Annotated[
    list[Annotated[str, StringConstraints(min_length=1, max_length=_MOST_WORD_CHARS)]], FailFast()
]

UsageInStream = Literal["none", "last", "all"]
"""Which chunks of a stream say what was used."""


class _StreamOptions(RequestBody):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Literal[False] = False


class GenerationRequest(RequestBody, ABC):
    """What chats and completions have in common.

    ``metadata``, ``prompt_cache_key``, ``prompt_cache_retention`` and ``safety_identifier`` are for OpenAI's records, and
    change no answer.
    """

    model: Name
    max_tokens: int | None = Field(None, ge=1, le=_MOST_TOKENS)
    min_tokens: int = Field(0, ge=0, le=_MOST_TOKENS)
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Annotated[dict[int, float], BeforeValidator(_biases)] = Field(default_factory=dict)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    n: int = Field(1, ge=1, le=128)
    stop: Annotated[tuple[str, ...], BeforeValidator(_stops)] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: list[int] = Field(default_factory=list, max_length=1000)
    bad_words: _BadWords = Field(default_factory=list, max_length=_MOST_BAD_WORDS)
    allowed_token_ids: Annotated[list[int], FailFast()] = Field(
        default_factory=list, min_length=1, max_length=_MOST_ALLOWED_TOKENS
    )
    skip_special_tokens: bool = True
    prompt_logprobs: int | None = Field(None, ge=0, le=20)
    ignore_eos: bool = False
    stream: bool = False
    stream_options: _StreamOptions | None = None
    priority: int = Field(0, ge=-(2**31), le=2**31 - 1)
    user: str = Field("", max_length=1024)
    cache_salt: str | None = Field(None, min_length=1, max_length=_MOST_SALT_CHARS)
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonSchema | None = None
    guided_regex: FormText | None = None
    guided_choice: Choices = Field(default_factory=list)
    guided_grammar: FormText | None = None
    metadata: Annotated[dict[str, str], BeforeValidator(_few_entries)] = Field(default_factory=dict)
    prompt_cache_key: Name = ""
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    safety_identifier: Name = ""

    @property
    def form(self) -> OutputForm:
        """What answers conform to."""
        return self._named_form[1]

    @property
    def form_field(self) -> str:
        """The field that says what answers conform to; "" if none does."""
        return self._named_form[0]

    @property
    def json_schema(self) -> str:
        """The JSON schema to which answers conform; "" for none."""
        return self.form.json_schema

    @cached_property
    def _named_form(self) -> tuple[str, OutputForm]:
        guided = {
            name: getattr(self, name) for name in GenerationRequest.model_fields if name.startswith("guided_")
        }
        return one_form(self.response_format, self.structured_outputs, guided)

    @property
    def num_prompt_logprobs(self) -> int | None:
        """How many likely tokens are found for each token of the prompt; None for nothing."""
        return self.prompt_logprobs

    @property
    def usage_in_stream(self) -> UsageInStream:
        """Which chunks of a stream say what was used."""
        asked = self.stream_options
        if asked is None or not asked.include_usage:
            return "none"
        return "all" if asked.continuous_usage_stats else "last"

    @property
    @abstractmethod
    def num_logprobs(self) -> int | None:
        """How many likely tokens are told beside each token; None for nothing."""

    @property
    @abstractmethod
    def max_output_tokens(self) -> int | None:
        """Longest answer; None where nothing says it."""

    def check_fields(self) -> None:
        asked = self.response_format
        if asked is not None and (asked.type == "json_schema") != (asked.json_schema is not None):
            message = "response_format: type json_schema and the field json_schema go together; give both or neither"
            raise ApiError(400, message, param="response_format")
        _ = self.form  # there is one at most
        if self.prompt_logprobs is not None and self.stream:
            message = "prompt_logprobs and stream do not go together; leave one out"
            raise ApiError(400, message, param="prompt_logprobs")
        if self.stream_options is not None and not self.stream:
            message = "stream_options is given without stream; give stream: true, or leave it out"
            raise ApiError(400, message, param="stream_options")
        most = _MOST_TOKENS if self.max_output_tokens is None else self.max_output_tokens
        if self.min_tokens > most:
            message = f"min_tokens is {self.min_tokens}; allowed is max_tokens, which is {most}, or less"
            raise ApiError(400, message, param="min_tokens")


class ChatRequest(TemplateFields, GenerationRequest):
    """POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: int | None = Field(None, ge=1, le=_MOST_TOKENS)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: Tools = Field(default_factory=list)
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool = True
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool = True

    @property
    def tool_use(self) -> ToolUse:
        """The tools that may be called."""
        return ToolUse(self.tools, self.tool_choice, self.parallel_tool_calls)

    @property
    def num_logprobs(self) -> int | None:
        """How many likely tokens are told beside each token."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def max_output_tokens(self) -> int | None:
        """Longest answer."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def check_fields(self) -> None:
        super().check_fields()
        if self.top_logprobs is not None and not self.logprobs:
            message = "top_logprobs is given without logprobs; give logprobs: true, too"
            raise ApiError(400, message, param="top_logprobs")
        self.tool_use.check()
        use, field = self.tool_use, self.form_field
        if use.is_forced and field:
            message = f"{field} and a tool_choice that asks for calls do not go together; leave one out"
            raise ApiError(400, message, param=field)
        if use.is_optional and field and not self.json_schema:
            message = (
                f'{field} and tools go together only for JSON; leave one out, or give tool_choice: "none"'
            )
            raise ApiError(400, message, param=field)


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: Any
    max_tokens: int | None = Field(16, ge=0, le=_MOST_TOKENS)
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool = False
    best_of: int | None = None

    @property
    def num_logprobs(self) -> int | None:
        """How many likely tokens are told beside each token."""
        return self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        """How many likely tokens are found for each token of the prompt, which has them where it is echoed."""
        asked = [self.prompt_logprobs, self.logprobs if self.echo else None]
        return max((num for num in asked if num is not None), default=None)

    @property
    def max_output_tokens(self) -> int | None:
        """Longest answer."""
        return self.max_tokens

    def check_fields(self) -> None:
        super().check_fields()
        if self.best_of not in (None, self.n):
            message = f"best_of is {shown(self.best_of)}; allowed is n, which is {self.n}; leave it out"
            raise ApiError(400, message, param="best_of")
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            message = (
                "max_tokens is 0, and nothing is asked of the prompt; give 1 or more, echo or prompt_logprobs"
            )
            raise ApiError(400, message, param="max_tokens")


Body = TypeVar("Body", bound=RequestBody)


def read_request(kind: type[Body], content: bytes | bytearray) -> Body:
    """Read the body of a request.

    Raises
    ------
    ApiError
        If it is no JSON or has too many values, or a field is not known, not done, or not allowed.
    """
    given = _mapping(parse_json(content, "the body"))
    known = kind.model_fields
    for name in [name for name in given if name not in known]:
        _require_nothing(name, given.pop(name), sorted(known))
    try:
        found = kind.model_validate(given)
        found.check_fields()
        return found
    except ValidationError as error:
        place, told = describe_error(error)
        raise ApiError(400, told, param=place) from None


def _mapping(given: Any) -> dict[str, Any]:
    """The fields of a body that say something."""
    if not isinstance(given, dict):
        raise ApiError(400, f"the body is {shown(given)}; allowed is a JSON object")
    return {name: value for name, value in given.items() if value is not None}


def _require_nothing(name: str, value: Any, known: list[str]) -> None:
    """Refuse a field that is not done, unless it asks for nothing."""
    ignored = _UNSUPPORTED.get(name)
    if ignored is None:
        raise ApiError(
            400,
            f"unknown field {shown(name)}; known are {', '.join(known)}; leave it out",
            param=name[:100],
            code="unknown_field",
        )
    if not any(type(value) is type(each) and value == each for each in ignored):
        allowed = " or ".join(json.dumps(each) for each in (None, *ignored))
        raise ApiError(
            400,
            f"{name} is {shown(value)}; this server does not do it; allowed is {allowed}; leave it out",
            param=name,
            code="unsupported_field",
        )
