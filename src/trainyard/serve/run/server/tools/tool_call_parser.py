"""The interface of parsers that find tool calls in the text of an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol
from uuid import uuid4

__all__ = [
    "ParsedText",
    "SingleCallParser",
    "ToolCallDelta",
    "ToolCallFormat",
    "ToolCallParser",
    "new_call_id",
]


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The next part of a call. The first one has the name of the tool.

    Attributes
    ----------
    index : of the call among those of the answer.
    arguments : the next part of the text of a JSON object; may be empty.
    call_id, name : of the call and of its tool; "" after the first part.
    """

    index: int
    arguments: str = ""
    call_id: str = ""
    name: str = ""


class ParsedText(NamedTuple):
    """Certain result after a piece of text: more of the visible answer, and more of its calls."""

    content: str = ""
    calls: tuple[ToolCallDelta, ...] = ()


class ToolCallParser(Protocol):
    """Finds calls in the text of one answer, which arrives piece by piece.

    What it finds does not depend on where the text is cut into pieces.

    Attributes
    ----------
    tags : texts that mark calls; where they are special tokens, they are not left out of the text.
    finish_reason : of an answer that ends by itself now; "tool_calls" only if it has calls, and these are whole.
    """

    @property
    def tags(self) -> tuple[str, ...]: ...

    @property
    def finish_reason(self) -> Literal["stop", "tool_calls"]: ...

    def take(self, text: str) -> ParsedText:
        """Take the next piece."""
        ...

    def rest(self) -> ParsedText:
        """Return the text that was held back, at the end of the answer."""
        ...


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """A way in which models write calls where they decide whether to call.

    Attributes
    ----------
    tags : texts that mark calls.
    make_parser : makes what finds the calls of one answer.
    grammar : a grammar of answers as `SamplingParams` has it, from the schema of the arguments of each tool by its name,
        the schema of answers that are no calls ("" where they are any text), those of the tags that are tokens,
        and whether there may be several calls.
    """

    tags: tuple[str, ...]
    make_parser: Callable[[], ToolCallParser]
    grammar: Callable[[Mapping[str, Mapping[str, Any]], str, Set[str], bool], str]


class SingleCallParser:
    """Leaves out all calls but the first one.

    Parameters
    ----------
    parser : that finds them.
    """

    def __init__(self, parser: ToolCallParser) -> None:
        self._parser, self.tags = parser, parser.tags

    @property
    def finish_reason(self) -> Literal["stop", "tool_calls"]:
        """Return the finish reason of an answer that ends now."""
        return self._parser.finish_reason

    def take(self, text: str) -> ParsedText:
        """Take the next piece."""
        return _first_call_only(self._parser.take(text))

    def rest(self) -> ParsedText:
        """Return the text that was held back, at the end of the answer."""
        return _first_call_only(self._parser.rest())


def new_call_id() -> str:
    """An id that no other call has."""
    return f"call_{uuid4().hex}"


def _first_call_only(found: ParsedText) -> ParsedText:
    return ParsedText(found.content, tuple(call for call in found.calls if call.index == 0))
