"""Messages of conversations, the tools that a model may call, and the calls that it made."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    FailFast,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from trainyard.reading import shown
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.json_body import check_num_values, parse_json
from trainyard.serve.run.server.request_body import Name, RequestBody, describe_error, without_nulls

__all__ = ["ChatMessage", "Messages", "TemplateFields", "Tool", "ToolChoice", "ToolChoiceField", "Tools"]

_NAME = r"^[a-zA-Z0-9_-]{1,64}$"
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
_MOST_DEPTH = 64
_CHOICES = ("none", "auto", "required")


def _checked_depth(given: dict[str, Any]) -> dict[str, Any]:
    """The same object; a ValueError if it is nested so deeply that templates and grammars cannot be made of it."""
    level: list[Any] = [given]
    for _ in range(_MOST_DEPTH):
        values = [value for each in level for value in (each.values() if isinstance(each, dict) else each)]
        level = [value for value in values if isinstance(value, dict | list)]
    if level:
        raise ValueError(f"allowed are at most {_MOST_DEPTH} objects and lists within each other")
    return given


class _TextPart(RequestBody):
    type: Literal["text"]
    text: str


def _joined(given: Any) -> Any:
    """Content as one text, if it is a list of parts."""
    if not isinstance(given, list):
        return given
    try:
        return "".join(_TextPart.model_validate(part).text for part in given)
    except ValidationError as error:
        raise ValueError(describe_error(error)[1]) from None


class _CalledFunction(RequestBody):
    name: Name
    arguments: str


class _ToolCall(RequestBody):
    id: Name
    type: Literal["function"]
    function: _CalledFunction


class ChatMessage(RequestBody):
    """One message of a conversation: an assistant may have reasoned and called tools; a tool answers a call."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(_joined)] = None
    tool_calls: Annotated[list[_ToolCall], FailFast()] = Field(default_factory=list)
    tool_call_id: Name | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None

    _nulls = model_validator(mode="before")(without_nulls)

    @model_validator(mode="after")
    def _has_what_its_role_has(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls are given in a message of {self.role}; allowed is assistant")
        if self.given_reasoning and self.role != "assistant":
            raise ValueError(f"reasoning is given in a message of {self.role}; allowed is assistant")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("tool_call_id and the role tool go together; give both or neither")
        if self.content is None and not self.tool_calls:
            raise ValueError("content is missing; give it")
        return self

    @property
    def given_reasoning(self) -> str:
        """Reasoning before the content, under either of its names."""
        return self.reasoning or self.reasoning_content or ""

    def for_template(self) -> dict[str, Any]:
        """Return the message as chat templates take it: without absent fields, and arguments as an object."""
        found: dict[str, Any] = {"role": self.role, "content": self.content or ""}
        if self.given_reasoning:
            found["reasoning_content"] = self.given_reasoning
        if self.tool_calls:
            found["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": json.loads(call.function.arguments or "{}"),
                    },
                }
                for call in self.tool_calls
            ]
        if self.tool_call_id is not None:
            found["tool_call_id"] = self.tool_call_id
        return found


def _check_arguments(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Refuse arguments of calls that are no objects, but first those that would become too many values together."""
    calls = {
        f"messages.{i}.tool_calls.{j}.function.arguments": call.function.arguments or "{}"
        for i, message in enumerate(messages)
        for j, call in enumerate(message.tool_calls)
    }
    check_num_values(",".join(calls.values()).encode(), "function.arguments of all calls")
    for place, text in calls.items():
        found = parse_json(text.encode(), place, param=place)
        try:
            if not isinstance(found, dict):
                raise ValueError("allowed is the text of a JSON object")
            _checked_depth(found)
        except ValueError as error:
            raise ApiError(400, f"{place} is {shown(text)}: {error}", param=place) from None
    return messages


Messages = Annotated[list[ChatMessage], FailFast(), Field(min_length=1), AfterValidator(_check_arguments)]
"""A conversation."""


class TemplateFields(RequestBody):
    """Options of a model's chat template."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: Annotated[dict[str, Any], AfterValidator(_checked_depth)] = Field(
        default_factory=dict
    )

    @property
    def adds_generation_prompt(self) -> bool:
        """Whether the prompt ends with what a new message of the assistant begins with."""
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt

    def check_fields(self) -> None:
        super().check_fields()
        if self.continue_final_message and self.adds_generation_prompt:
            message = "continue_final_message and add_generation_prompt do not go together; leave one out"
            raise ApiError(400, message, param="continue_final_message")


class _Function(RequestBody):
    name: str = Field(pattern=_NAME)
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    strict: bool = False

    _nulls = model_validator(mode="before")(without_nulls)

    @field_validator("parameters")
    @classmethod
    def _is_of_objects(cls, given: dict[str, Any]) -> dict[str, Any]:
        if given and given.get("type") != "object":
            raise ValueError('allowed is a JSON schema with "type": "object"')
        return _checked_depth(given)


class Tool(RequestBody):
    """A function that a model may call."""

    type: Literal["function"]
    function: _Function

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.function.name

    @property
    def is_strict(self) -> bool:
        """Whether its arguments always conform to their schema, also where the model decides whether it calls."""
        return self.function.strict

    @property
    def schema_of_arguments(self) -> dict[str, Any]:
        """JSON schema of its arguments."""
        return self.function.parameters or _NO_PARAMETERS

    def for_template(self) -> dict[str, Any]:
        """Return the tool as chat templates take it."""
        said = {"description": self.function.description} if self.function.description else {}
        function = {"name": self.name, **said, "parameters": self.schema_of_arguments}
        return {"type": "function", "function": function}


Tools = Annotated[list[Tool], Field(max_length=128)]
"""The functions that a model may call."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether tools are called.

    Attributes
    ----------
    mode : "none", "auto" where the model decides, "required" for one call or more, "named" for a call of one tool.
    name : of that tool.
    """

    mode: Literal["none", "auto", "required", "named"]
    name: str = ""


def _tool_choice(given: Any) -> Any:
    if given in _CHOICES and isinstance(given, str):
        return ToolChoice(given)  # type: ignore[arg-type]  # mypy does not see that it is one of these
    if isinstance(given, dict) and given.keys() == {"type", "function"} and given["type"] == "function":
        function = given["function"]
        if isinstance(function, dict) and function.keys() == {"name"} and isinstance(function["name"], str):
            return ToolChoice("named", function["name"])
    raise ValueError(
        f'allowed is {", ".join(_CHOICES)} or {{"type": "function", "function": {{"name": NAME}}}}'
    )


ToolChoiceField = Annotated[ToolChoice, BeforeValidator(_tool_choice)]
