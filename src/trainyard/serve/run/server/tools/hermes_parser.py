"""Calls as Hermes and Qwen models write them: ``<tool_call>{"name": .., "arguments": {..}}</tool_call>``.

References
----------
Nous Research: Hermes Function Calling, the format of Hermes 2 Pro, 2024.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Set
from typing import Any, ClassVar, Literal

from trainyard.serve.run.server.stop_strings import num_undecided
from trainyard.serve.run.server.tools.call_reader import ToolCallReader
from trainyard.serve.run.server.tools.tool_call_parser import ParsedText, ToolCallDelta, ToolCallFormat
from trainyard.serve.run.structured_outputs import json_rule

__all__ = ["HERMES", "HermesParser"]

_BEGIN, _END = "<tool_call>", "</tool_call>"
_Mode = Callable[[list[ToolCallDelta]], str]
"""Takes what is held as far as it can; returns content, and adds to calls."""


class HermesParser:
    """Finds calls between tags. What only looks like one, since it has no name or no object, is content.

    Spaces behind a call, and an end tag that is missing, are no content.
    """

    tags: ClassVar[tuple[str, ...]] = (_BEGIN, _END)

    def __init__(self) -> None:
        self._held, self._num_calls = "", 0
        self._call = ToolCallReader(0)
        self._mode: _Mode = self._read_text

    @property
    def finish_reason(self) -> Literal["stop", "tool_calls"]:
        """Return the finish reason of an answer that ends now."""
        is_in_call = self._mode == self._read_call and self._call.has_begun
        return "tool_calls" if self._num_calls and not is_in_call else "stop"

    def take(self, text: str) -> ParsedText:
        """Take the next piece."""
        self._held += text
        content, calls = list[str](), list[ToolCallDelta]()
        before = None
        while self._mode != before:  # the same mode waits for more text
            before = self._mode
            content.append(before(calls))
        return ParsedText("".join(content), tuple(calls))

    def rest(self) -> ParsedText:
        """Return the text that was held back, at the end of the answer."""
        if self._mode == self._read_call and not self._call.has_begun:
            return ParsedText(_BEGIN + self._call.text)
        return ParsedText(self._held)

    def _read_text(self, calls: list[ToolCallDelta]) -> str:
        before, tag, after = self._held.partition(_BEGIN)
        if tag:
            self._held, self._mode = after, self._read_call
            self._call = ToolCallReader(self._num_calls)
            return before
        num_certain = len(before) - num_undecided(before, (_BEGIN,))
        self._held = before[num_certain:]
        return before[:num_certain]

    def _read_call(self, calls: list[ToolCallDelta]) -> str:
        call = self._call
        found, self._held = call.take(self._held)
        calls += found
        if call.state == "wrong" and not call.has_begun:
            self._held, self._mode = call.text + self._held, self._read_text
            return _BEGIN
        if call.state != "open":
            self._num_calls, self._mode = self._num_calls + 1, self._skip_end
        return ""

    def _skip_end(self, calls: list[ToolCallDelta]) -> str:
        held = self._held.lstrip()
        while held.startswith(_END):
            held = held.removeprefix(_END).lstrip()
        self._held = held
        if not _END.startswith(held):
            self._mode = self._read_text
        return ""


def _grammar(
    schemas: Mapping[str, Mapping[str, Any]], answer_schema: str, tag_tokens: Set[str], is_parallel: bool
) -> str:
    """Return the grammar, as `ToolCallFormat.grammar`. After a begin tag, only a call may come."""
    begin, end = (tag if tag in tag_tokens else json.dumps(tag) for tag in (_BEGIN, _END))
    calls = {f"call_{i}": f'\n{{"name": {json.dumps(name)}, "arguments": ' for i, name in enumerate(schemas)}
    lines = ["%llguidance {}", f"call: begin ({' | '.join(calls)}) {end}"]
    for (rule, head), schema in zip(calls.items(), schemas.values(), strict=True):
        lines.append(f'{rule}: {json.dumps(head)} {json_rule(schema)} "}}\\n"')
    if answer_schema:
        lines.append("start: answer | call" + (r' ("\n" call)*' if is_parallel else ""))
        lines += [f"answer: {json_rule(json.loads(answer_schema))}", f"begin: {begin}"]
    else:
        lines += ["start: call* TEXT" if is_parallel else "start: call | TEXT", r"TEXT: /(.|\n)*/"]
        # Lazy: the text before a tag ends at the first one. A token of its own is no text at all.
        lines.append(f"begin: TEXT {begin}" if _BEGIN in tag_tokens else f"begin[lazy]: TEXT {begin}")
    return "\n".join(lines)


HERMES = ToolCallFormat((_BEGIN, _END), HermesParser, _grammar)
"""The format, with its parser."""
