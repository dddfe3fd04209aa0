"""Answers that must be calls: the JSON schema that makes them so, and how the calls are read from it.

As in vLLM, a call of a named tool is its arguments alone, and required calls are a list of objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from trainyard.serve.run.server.chat_messages import Tool
from trainyard.serve.run.server.tools.call_reader import ToolCallReader
from trainyard.serve.run.server.tools.tool_call_parser import ParsedText, ToolCallDelta, new_call_id

__all__ = ["ForcedCallParser", "RequiredCallsParser", "schema_of_calls"]


def schema_of_calls(tools: Sequence[Tool], *, is_parallel: bool) -> dict[str, Any]:
    """JSON schema of a list of calls.

    Parameters
    ----------
    tools : any of which may be called.
    is_parallel : whether there may be more than one call.
    """
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.name},
                "arguments": _moved(tool.schema_of_arguments, f"#/items/anyOf/{place}/properties/arguments"),
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for place, tool in enumerate(tools)
    ]
    most = {} if is_parallel else {"maxItems": 1}
    return {"type": "array", "minItems": 1, **most, "items": {"anyOf": calls}}


_VALUES = frozenset({"const", "default", "enum", "examples"})
_BY_NAME = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})


def _moved(schema: Any, place: str) -> Any:
    """A JSON schema that is put into another one at a place: what refers to its root refers to that."""
    if isinstance(schema, list):
        return [_moved(each, place) for each in schema]
    if not isinstance(schema, dict) or "$id" in schema:  # which is a root of its own
        return schema
    return {name: _moved_member(name, value, place) for name, value in schema.items()}


def _moved_member(name: str, value: Any, place: str) -> Any:
    if name in _VALUES:
        return value
    if name == "$ref" and isinstance(value, str) and value.partition("/")[0] == "#":
        return place + value.removeprefix("#")
    if name in _BY_NAME and isinstance(value, dict):
        return {key: _moved(each, place) for key, each in value.items()}
    return _moved(value, place)


class ForcedCallParser:
    """Takes the whole answer as the arguments of one call.

    Parameters
    ----------
    name : of the tool.
    """

    tags: ClassVar[tuple[str, ...]] = ()
    finish_reason: ClassVar[Literal["stop", "tool_calls"]] = (
        "stop"  # as OpenAI has it of tools that are named
    )

    def __init__(self, name: str) -> None:
        self._name = name

    def take(self, text: str) -> ParsedText:
        """Take the next piece."""
        if not text:
            return ParsedText()
        begin: tuple[ToolCallDelta, ...] = ()
        if self._name:
            begin, self._name = (ToolCallDelta(0, "", new_call_id(), self._name),), ""
        return ParsedText("", (*begin, ToolCallDelta(0, text)))

    def rest(self) -> ParsedText:
        """Nothing is held back."""
        return ParsedText()


class RequiredCallsParser:
    """Takes the whole answer as a list of calls."""

    tags: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self._call: ToolCallReader | None = None
        self._num_calls = 0

    @property
    def finish_reason(self) -> Literal["stop", "tool_calls"]:
        """Return the finish reason of an answer that ends now."""
        return "tool_calls" if self._num_calls and self._call is None else "stop"

    def take(self, text: str) -> ParsedText:
        """Take the next piece."""
        calls = list[ToolCallDelta]()
        while text:
            if self._call is None:
                text = text.lstrip("[,] \n")  # between calls
                if not text:
                    break
                self._call = ToolCallReader(self._num_calls)
                self._num_calls += 1
            found, text = self._call.take(text)
            calls += found
            if self._call.state == "wrong":  # of an engine that constrains nothing
                return ParsedText(text, tuple(calls))
            if self._call.state == "complete":
                self._call = None
        return ParsedText("", tuple(calls))

    def rest(self) -> ParsedText:
        """Nothing is held back but a call that was cut before its arguments."""
        return ParsedText()
