"""POST /v1/responses: the fields of a request, and the chat that asks for the same. Nothing is stored for later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, FailFast, Field

from trainyard.reading import shown
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.chat_translation import (
    TranslatedRequest,
    as_text_parts,
    function_call,
    function_tool,
    named_function,
)
from trainyard.serve.run.server.json_body import parse_json
from trainyard.serve.run.server.request_body import Name, NullTolerantBody

__all__ = ["ResponsesRequest"]

_MOST_METADATA = 16
_ASKS_FOR_NOTHING = Literal["reasoning.encrypted_content"]  # there is none, as reasoning is told in words
_CHOICES = ("none", "auto", "required")
_USUAL_CHOICE = "auto"
_Status = Literal["in_progress", "completed", "incomplete"] | None


class _Text(NullTolerantBody):
    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: Annotated[list[Any], Field(max_length=0)] = Field(default_factory=list)
    logprobs: Annotated[list[Any], Field(max_length=0)] = Field(default_factory=list)


_Texts = Annotated[list[_Text], FailFast(), BeforeValidator(as_text_parts)]


class _Message(NullTolerantBody):
    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: _Texts
    id: Name = ""
    status: _Status = None


class _FunctionCall(NullTolerantBody):
    type: Literal["function_call"]
    call_id: Name
    name: Name
    arguments: str
    id: Name = ""
    status: _Status = None


class _ReasoningText(NullTolerantBody):
    type: Literal["reasoning_text"]
    text: str


class _Reasoning(NullTolerantBody):
    """Reasoning of an earlier answer, which the client sends back."""

    type: Literal["reasoning"]
    id: Name = ""
    summary: Annotated[list[Any], Field(max_length=0)] = Field(default_factory=list)
    content: Annotated[list[_ReasoningText], FailFast()] = Field(default_factory=list)
    status: _Status = None


class _FunctionOutput(NullTolerantBody):
    type: Literal["function_call_output"]
    call_id: Name
    output: _Texts
    id: Name = ""
    status: _Status = None


def _with_type(given: Any) -> Any:
    """Add the type of a message, which may be left out."""
    return given | {"type": "message"} if isinstance(given, dict) and "type" not in given else given


_Item = Annotated[
    Annotated[_Message | _FunctionCall | _FunctionOutput | _Reasoning, Field(discriminator="type")],
    BeforeValidator(_with_type),
]


def _items(given: Any) -> Any:
    """Turn input that is one text into a list of one message."""
    return [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given


class _Function(NullTolerantBody):
    type: Literal["function"]
    name: Name
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    strict: bool = True


class _Format(NullTolerantBody):
    type: Literal["text", "json_object", "json_schema"]
    name: Name = ""
    description: str = ""
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool = False  # answers conform in either case


class _TextConfig(NullTolerantBody):
    format: _Format = Field(default_factory=lambda: _Format.model_validate({"type": "text"}))


def _few(given: Any) -> Any:
    """Refuse metadata with many fields, before each of them is looked at."""
    if isinstance(given, dict) and len(given) > _MOST_METADATA:
        raise ValueError(f"allowed are {_MOST_METADATA} fields")
    return given


class _StreamOptions(NullTolerantBody):
    include_obfuscation: Literal[False] = False


class ResponsesRequest(TranslatedRequest):
    """POST /v1/responses."""

    own_names: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"response_format": "text.format", "messages": "input", "max_completion_tokens": "max_output_tokens"}
    )

    model: Name
    input: Annotated[list[_Item], FailFast(), Field(min_length=1), BeforeValidator(_items)]
    instructions: str | None = None
    max_output_tokens: int | None = None  # its range is that of chats
    temperature: float = 1.0
    top_p: float = 1.0
    tools: Annotated[list[_Function], FailFast(), Field(max_length=128)] = Field(default_factory=list)
    tool_choice: Any = _USUAL_CHOICE
    parallel_tool_calls: bool = True
    text: _TextConfig = Field(default_factory=_TextConfig)
    stream: bool = False
    stream_options: _StreamOptions | None = None
    store: bool = False
    previous_response_id: Name | None = None
    metadata: Annotated[dict[Name, Name], BeforeValidator(_few)] = Field(default_factory=dict)
    include: list[_ASKS_FOR_NOTHING] = Field(default_factory=list, max_length=16)
    background: Literal[False] = False
    truncation: Literal["disabled"] = "disabled"
    service_tier: Literal["auto", "default"] = "auto"
    prompt_cache_key: Name = ""  # prompts are cached without one
    safety_identifier: Name = ""
    user: Name = ""

    def chat_fields(self) -> Mapping[str, Any]:
        """Return the fields of a chat that asks for the same."""
        if self.store:
            told = "store is true, and this server stores no responses; leave it out, or give false"
            raise ApiError(400, told, param="store")
        if self.previous_response_id is not None:
            told = "previous_response_id is given, and no responses are stored here; send the whole conversation as input"
            raise ApiError(400, told, param="previous_response_id")
        system = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        return {
            "model": self.model,
            "messages": [*system, *self._chat_messages()],
            "max_completion_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "stream": self.stream,
            "tools": [
                function_tool(each.name, each.description, each.parameters, strict=each.strict)
                for each in self.tools
            ],
            "tool_choice": self._chat_choice() if self.tools or self.tool_choice != _USUAL_CHOICE else None,
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": _chat_format(self.text.format),
            "user": self.user or self.safety_identifier,
        }

    def _chat_messages(self) -> Iterator[dict[str, Any]]:
        """Make messages of the items.

        Reasoning, a text of the assistant and calls that follow each other become one message. Reasoning alone is a
        message, too: an answer may be cut behind it.
        """
        answer: dict[str, Any] | None = None
        reasoning = ""
        for place, item in enumerate(self.input):
            if isinstance(item, _Reasoning):
                reasoning += "".join(each.text for each in item.content)
                continue
            if isinstance(item, _FunctionCall):
                name = f"input.{place}.arguments"
                parse_json(item.arguments.encode(), name, param=name)
                answer, reasoning = _with_reasoning(answer or _answer(), reasoning), ""
                answer["tool_calls"].append(function_call(item.call_id, item.name, item.arguments))
                continue
            is_answer = isinstance(item, _Message) and item.role == "assistant"
            if reasoning and not is_answer:
                answer, reasoning = _with_reasoning(answer or _answer(), reasoning), ""
            if answer is not None:
                yield answer
                answer = None
            if isinstance(item, _FunctionOutput):
                yield {"role": "tool", "tool_call_id": item.call_id, "content": _joined(item.output)}
            elif is_answer:
                answer, reasoning = _answer(_joined(item.content), reasoning), ""
            else:
                yield {"role": item.role, "content": _joined(item.content)}
        if reasoning:
            answer = _with_reasoning(answer or _answer(), reasoning)
        if answer is not None:
            yield answer

    def _chat_choice(self) -> str | dict[str, Any]:
        given = self.tool_choice
        if isinstance(given, str) and given in _CHOICES:
            return given
        if isinstance(given, dict) and given.keys() == {"type", "name"} and given["type"] == "function":
            return named_function(given["name"])
        raise ApiError(
            400,
            f'tool_choice is {shown(given)}; allowed is {", ".join(_CHOICES)} or {{"type": "function", "name": NAME}}',
            param="tool_choice",
        )


def _answer(content: str = "", reasoning: str = "") -> dict[str, Any]:
    """Begin a message of the assistant, which may get calls."""
    return {"role": "assistant", "content": content, "tool_calls": [], "reasoning": reasoning}


def _with_reasoning(answer: dict[str, Any], more: str) -> dict[str, Any]:
    return answer | {"reasoning": answer["reasoning"] + more}


def _joined(texts: list[_Text]) -> str:
    return "".join(each.text for each in texts)


def _chat_format(asked: _Format) -> dict[str, Any] | None:
    if (asked.type == "json_schema") != (asked.schema_ is not None):
        told = "text.format has type json_schema exactly if it has a schema; give both or neither"
        raise ApiError(400, told, param="text.format")
    if asked.schema_ is None:
        return {"type": asked.type}
    return {"type": asked.type, "json_schema": {"name": asked.name, "schema": asked.schema_}}
