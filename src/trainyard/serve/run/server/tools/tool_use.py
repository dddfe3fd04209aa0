"""Which tools a request lets the model call, and what follows from that for its prompt and its answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from trainyard.reading import listed, shown
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.chat_messages import Tool, ToolChoice
from trainyard.serve.run.server.tools.forced_calls import (
    NamedCallParser,
    RequiredCallsParser,
    schema_of_calls,
)
from trainyard.serve.run.server.tools.hermes_parser import HermesParser
from trainyard.serve.run.server.tools.tool_call_parser import FirstCallOnly, ToolCallParser

__all__ = ["TOOL_CALL_PARSERS", "ToolUse"]

TOOL_CALL_PARSERS: Mapping[str, Callable[[], ToolCallParser]] = MappingProxyType({"hermes": HermesParser})
"""What finds calls where the model decides, by the name of the format in which it writes them."""


@dataclass(frozen=True)
class ToolUse:
    """How one request uses tools.

    Attributes
    ----------
    tools : that it describes.
    given_choice : what it says of them; None for nothing.
    is_parallel : whether an answer may have more than one call.
    """

    tools: Sequence[Tool]
    given_choice: ToolChoice | None
    is_parallel: bool

    @property
    def choice(self) -> ToolChoice:
        """Whether tools are called; where nothing says it, the model decides if there are any."""
        if not self.tools:
            return ToolChoice("none")
        return self.given_choice or ToolChoice("auto")

    @property
    def is_forced(self) -> bool:
        """Whether answers must be calls."""
        return self.choice.mode in ("required", "named")

    @property
    def json_schema(self) -> str:
        """Text of the JSON schema of answers that must be calls; "" for others."""
        if self.choice.mode == "required":
            return json.dumps(schema_of_calls(self.tools, is_parallel=self.is_parallel))
        if self.choice.mode == "named":
            return json.dumps(next(t.schema_of_arguments for t in self.tools if t.name == self.choice.name))
        return ""

    def for_template(self) -> list[dict[str, Any]]:
        """The tools as chat templates take them; none where none may be called."""
        return [] if self.choice.mode == "none" else [tool.for_template() for tool in self.tools]

    def check(self) -> None:
        """Refuse a choice that cannot be.

        Raises
        ------
        ApiError
            Says why.
        """
        names = [tool.name for tool in self.tools]
        if twice := [name for name in names if names.count(name) > 1]:
            raise _wrong("tools", f"tools has two functions {twice[0]!r}; give each a name of its own")
        given = self.given_choice or ToolChoice("none")
        if given.mode in ("required", "named") and not names:
            raise _wrong("tool_choice", "tool_choice asks for a call and tools is empty; give tools")
        if given.mode == "named" and given.name not in names:
            told = f"tool_choice has the function {shown(given.name)}; known in tools are {listed(names)}"
            raise _wrong("tool_choice", told)

    def parser(self, name: str) -> Callable[[], ToolCallParser] | None:
        """What makes the parser of an answer; None where no tool may be called.

        Parameters
        ----------
        name : of the format in which the model writes calls; "" if the server was told none.

        Raises
        ------
        ApiError
            If the model is to decide, and that format is not known.
        """
        if self.choice.mode == "none":
            return None
        if self.choice.mode == "named":
            return partial(NamedCallParser, self.choice.name)
        if self.choice.mode == "auto" and not name:
            told = (
                'tool_choice is "auto", and the server does not know how its model writes calls; start it with '
                '--tool-call-parser, or give tool_choice: "none", "required" or a function'
            )
            raise _wrong("tool_choice", told)
        make = RequiredCallsParser if self.choice.mode == "required" else TOOL_CALL_PARSERS[name]
        return make if self.is_parallel else lambda: FirstCallOnly(make())


def _wrong(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param)
