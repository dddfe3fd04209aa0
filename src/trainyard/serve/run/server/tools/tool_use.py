"""Which tools a request lets the model call, and what follows from that for its prompt and its answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from trainyard.reading import listed, shown
from trainyard.serve.run.model_tokenizer import ModelTokenizer
from trainyard.serve.run.sampling import OutputForm
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.chat_messages import Tool, ToolChoice
from trainyard.serve.run.server.tools.forced_calls import (
    ForcedCallParser,
    RequiredCallsParser,
    schema_of_calls,
)
from trainyard.serve.run.server.tools.hermes_parser import HERMES
from trainyard.serve.run.server.tools.tool_call_parser import SingleCallParser, ToolCallFormat, ToolCallParser

__all__ = ["TOOL_CALL_FORMATS", "ToolAnswers", "ToolUse"]

TOOL_CALL_FORMATS: Mapping[str, ToolCallFormat] = MappingProxyType({"hermes": HERMES})
"""Ways in which models write calls where they decide whether to call, by name."""


@dataclass(frozen=True)
class ToolAnswers:
    """What tools mean for the answers of a request.

    Attributes
    ----------
    make_parser : makes what finds calls in an answer; None if there are none.
    form : to which answers conform so that their calls do.
    """

    make_parser: Callable[[], ToolCallParser] | None = None
    form: OutputForm = field(default_factory=OutputForm)

    @property
    def is_constrained(self) -> bool:
        """Whether answers conform to a form for the sake of tools."""
        return any(self.form)


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
    def is_optional(self) -> bool:
        """Whether the model decides about calls."""
        return self.choice.mode not in ("none", "required", "named")

    @property
    def is_forced(self) -> bool:
        """Whether answers must be calls."""
        return self.choice.mode in ("required", "named")

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

    def answers(self, name: str, tokenizer: ModelTokenizer, answer_schema: str) -> ToolAnswers:
        """What follows for answers.

        Parameters
        ----------
        name : of the format in which the model writes calls; "" if the server was told none.
        tokenizer : of the model.
        answer_schema : text of the JSON schema of answers that are no calls; "" where they are any text.

        Raises
        ------
        ApiError
            If the model is to decide, and that format is not known.
        """
        if self.choice.mode == "none":
            return ToolAnswers()
        if self.choice.mode == "named":
            (tool,) = (tool for tool in self.tools if tool.name == self.choice.name)
            form = OutputForm(json_schema=json.dumps(tool.schema_of_arguments))
            return ToolAnswers(partial(ForcedCallParser, tool.name), form)
        if self.choice.mode == "required":
            schema = json.dumps(schema_of_calls(self.tools, is_parallel=self.is_parallel))
            return ToolAnswers(self._maker(RequiredCallsParser), OutputForm(json_schema=schema))
        if not name:
            told = (
                'tool_choice is "auto", and the server does not know how its model writes calls; start it with '
                "--tool-call-parser, or give another tool_choice"
            )
            raise _wrong("tool_choice", told)
        written, grammar = TOOL_CALL_FORMATS[name], ""
        if answer_schema or any(tool.is_strict for tool in self.tools):
            schemas = {
                tool.name: tool.schema_of_arguments if tool.is_strict else {"type": "object"}
                for tool in self.tools
            }
            tag_tokens = tokenizer.added_of(written.tags)
            grammar = written.grammar(schemas, answer_schema, tag_tokens, self.is_parallel)
        return ToolAnswers(self._maker(written.make_parser), OutputForm(grammar=grammar))

    def _maker(self, make: Callable[[], ToolCallParser]) -> Callable[[], ToolCallParser]:
        return make if self.is_parallel else lambda: SingleCallParser(make())


def _wrong(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param)
