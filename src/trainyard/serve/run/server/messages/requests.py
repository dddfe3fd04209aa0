"""POST /v1/messages: the fields of a request, and the chat that asks for the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, FailFast, Field

from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.chat_translation import (
    TranslatedRequest,
    as_text_parts,
    function_call,
    function_tool,
    named_function,
)
from trainyard.serve.run.server.request_body import Name, NullTolerantBody

__all__ = ["MessagesRequest"]

_ERROR = "Error: "
"""The beginning of the result of a tool that failed: messages of chats have no field for it."""


class _CacheControl(NullTolerantBody):
    """A wish for a cached prompt: every prompt is cached anyway, as long as there is room."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class _Block(NullTolerantBody):
    cache_control: _CacheControl | None = None


class _Text(_Block):
    type: Literal["text"]
    text: str


class _ToolUse(_Block):
    type: Literal["tool_use"]
    id: Name
    name: Name
    input: dict[str, Any]


_Texts = Annotated[list[_Text], FailFast(), BeforeValidator(as_text_parts)]


class _ToolResult(_Block):
    type: Literal["tool_result"]
    tool_use_id: Name
    content: _Texts = Field(default_factory=list)
    is_error: bool = False


class _Reasoning(_Block):
    """Reasoning of an earlier answer, which the client sends back."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


_AnyBlock = Annotated[_Text | _ToolUse | _ToolResult | _Reasoning, Field(discriminator="type")]


class _Message(NullTolerantBody):
    role: Literal["user", "assistant"]
    content: Annotated[list[_AnyBlock], FailFast(), BeforeValidator(as_text_parts)]


class _Tool(_Block):
    type: Literal["custom"] = "custom"
    name: Name
    description: str = ""
    input_schema: dict[str, Any]
    strict: bool = False


class _ToolChoice(NullTolerantBody):
    type: Literal["auto", "any", "tool", "none"]
    name: Name = ""
    disable_parallel_tool_use: bool = False


class _Metadata(NullTolerantBody):
    user_id: Annotated[str, Field(max_length=1024)] = ""


class _Thinking(NullTolerantBody):
    type: Literal["disabled"]


class _JsonFormat(NullTolerantBody):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class _OutputConfig(NullTolerantBody):
    format: _JsonFormat | None = None


class MessagesRequest(TranslatedRequest):
    """POST /v1/messages."""

    own_names: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"response_format": "output_config.format", "stop": "stop_sequences", "parameters": "input_schema"}
    )

    model: Name
    max_tokens: int  # its range is that of chats
    messages: Annotated[list[_Message], FailFast(), Field(min_length=1)]
    system: _Texts = Field(default_factory=list)
    stop_sequences: list[str] = Field(default_factory=list, max_length=4)
    temperature: float = Field(1.0, ge=0.0, le=1.0)
    top_p: float = 1.0
    top_k: int = -1
    stream: bool = False
    tools: Annotated[list[_Tool], FailFast(), Field(max_length=128)] = Field(default_factory=list)
    tool_choice: _ToolChoice | None = None
    metadata: _Metadata = Field(default_factory=_Metadata)
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    cache_control: _CacheControl | None = None
    service_tier: Literal["auto", "standard_only"] = "auto"

    def chat_fields(self) -> Mapping[str, Any]:
        """Return the fields of a chat that asks for the same."""
        if self.messages[-1].role == "assistant":
            raise ApiError(
                400,
                "messages ends with a message of the assistant, which this server does not continue; end with one of the "
                "user",
                param="messages",
            )
        choice, shape = self.tool_choice, self.output_config and self.output_config.format
        system = [{"role": "system", "content": _joined(self.system)}] if self.system else []
        return {
            "model": self.model,
            "messages": [*system, *self._chat_messages()],
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop": self.stop_sequences,
            "stream": self.stream,
            "tools": [
                function_tool(each.name, each.description, each.input_schema, strict=each.strict)
                for each in self.tools
            ],
            "tool_choice": choice and _chat_choice(choice),
            "parallel_tool_calls": not (choice and choice.disable_parallel_tool_use),
            "user": self.metadata.user_id,
            "response_format": shape
            and {"type": "json_schema", "json_schema": {"name": "answer", "schema": shape.schema_}},
        }

    def _chat_messages(self) -> Iterator[dict[str, Any]]:
        for place, message in enumerate(self.messages):
            of_others = {"tool_result"} if message.role == "assistant" else {"tool_use", "thinking"}
            if wrong := sorted(of_others.intersection(block.type for block in message.content)):
                told = f"messages.{place} is of the {message.role} and has a {wrong[0]}; give it in one of the other role"
                raise ApiError(400, told, param=f"messages.{place}.content")
            if message.role == "assistant":
                calls = [each for each in message.content if isinstance(each, _ToolUse)]
                yield {
                    "role": "assistant",
                    "content": _joined(message.content),
                    "reasoning": "".join(
                        each.thinking for each in message.content if isinstance(each, _Reasoning)
                    ),
                    "tool_calls": [function_call(each.id, each.name, each.input) for each in calls],
                }
            else:
                yield from _user_messages(message.content)


def _user_messages(blocks: Sequence[_Block]) -> Iterator[dict[str, Any]]:
    """Make a message of each result of a tool, and one of texts that follow each other."""
    texts: list[_Text] = []
    for block in blocks:
        if isinstance(block, _Text):
            texts.append(block)
        elif isinstance(block, _ToolResult):
            if texts:
                yield {"role": "user", "content": _joined(texts)}
                texts = []
            content = (_ERROR if block.is_error else "") + _joined(block.content)
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
    if texts or not blocks:
        yield {"role": "user", "content": _joined(texts)}


def _joined(blocks: Sequence[_Block]) -> str:
    return "".join(block.text for block in blocks if isinstance(block, _Text))


def _chat_choice(choice: _ToolChoice) -> str | dict[str, Any]:
    if (choice.type == "tool") != bool(choice.name):
        told = "tool_choice has type tool exactly if it has a name; give both or neither"
        raise ApiError(400, told, param="tool_choice")
    if choice.type == "tool":
        return named_function(choice.name)
    return "required" if choice.type == "any" else choice.type
