"""Reads the JSON object of one call, ``{"name": .., "arguments": {..}}``, as its text arrives piece by piece."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Literal

from trainyard.serve.run.server.tools.tool_call_parser import ToolCallDelta, new_call_id

__all__ = ["ToolCallReader"]

_SPACE = " \t\r\n"
_Chars = Generator[None, str, str]


class _NoCallError(ValueError):
    """The text is none of a call."""


class ToolCallReader:
    """Reads one call. Its arguments are the text that the model wrote, in whatever order name and arguments come.

    Parameters
    ----------
    index : of the call among those of the answer.

    Attributes
    ----------
    state : "wrong" once the text can be none of a call.
    has_begun : whether its name and the beginning of its arguments are known; from then on it is told.
    text : what was read until then.
    """

    def __init__(self, index: int) -> None:
        self.state: Literal["open", "complete", "wrong"] = "open"
        self.text = ""
        self.has_begun, self._is_told = False, False
        self._index, self._name = index, ""
        self._arguments: list[str] = []
        self._reading = self._members()
        next(self._reading)

    def take(self, text: str) -> tuple[tuple[ToolCallDelta, ...], str]:
        """Take the next piece; return what is certain of the call, and the text behind the call.

        Behind a call that is wrong is what cannot be read, beginning with the wrong character.
        """
        num = 0
        while num < len(text) and self.state == "open":
            try:
                self._reading.send(text[num])
            except StopIteration:
                self.state = "complete"
            except ValueError:
                self.state = "wrong"
                break
            num += 1
            # At each character, as it must not depend on where the text is cut.
            self.has_begun = self.has_begun or bool(
                self._name and (self._arguments or self.state == "complete")
            )
        if not self.has_begun:
            self.text += text[:num]
        return self._deltas(), text[num:]

    def _deltas(self) -> tuple[ToolCallDelta, ...]:
        found = []
        if self.has_begun and not self._is_told:
            self._is_told = True
            found.append(ToolCallDelta(self._index, "", new_call_id(), self._name))
            if not self._arguments:
                self._arguments.append("{}")  # of a function without parameters
        if self._is_told and self._arguments:
            found.append(ToolCallDelta(self._index, "".join(self._arguments)))
            self._arguments.clear()
        return tuple(found)

    def _members(self) -> Generator[None, str, None]:
        """Take characters up to the end of the object."""
        seen = set[str]()
        _require((yield from _after_space()), "{")
        char = yield from _after_space()
        while char != "}" or seen:
            _require(char, '"')
            raw: list[str] = []
            _require((yield from _value(char, raw)), ":")
            key = json.loads("".join(raw))
            if key in seen:
                raise _NoCallError(key)
            seen.add(key)
            char = yield from self._member(key, (yield from _after_space()))
            if char == "}":
                break
            _require(char, ",")
            char = yield from _after_space()
        if not self._name:
            raise _NoCallError("there is no name")

    def _member(self, key: str, char: str) -> _Chars:
        """Take a value that begins with a character; return the one behind it."""
        raw: list[str] = []
        if key == "arguments":
            _require(char, "{")
            return (yield from _value(char, self._arguments))
        if key != "name":
            return (yield from _value(char, raw))
        _require(char, '"')
        after = yield from _value(char, raw)
        name = json.loads("".join(raw))
        name.encode()  # no half of a pair of surrogates
        self._name = name
        return after


def _after_space() -> _Chars:
    while (char := (yield)) in _SPACE:
        pass
    return char


def _value(char: str, raw: list[str]) -> _Chars:
    """Take a value that begins with a character; return the first one behind it that is no space."""
    if char in '"{[':
        depth, is_text, is_escaped = 0, False, False
        while True:
            raw.append(char)
            if is_escaped:
                is_escaped = False
            elif char == '"':
                is_text = not is_text
            elif is_text:
                is_escaped = char == "\\"
            else:
                depth += (char in "{[") - (char in "}]")
            if not depth and not is_text:
                return (yield from _after_space())
            char = yield
    while char not in _SPACE and char not in ",}":
        raw.append(char)
        char = yield
    return char if char not in _SPACE else (yield from _after_space())


def _require(char: str, expected: str) -> None:
    if char != expected:
        raise _NoCallError(char)
