"""YAML as plain values, within limits: data, never code.

Values are made from the events of libyaml, where PyYAML has it, one after the other. So a text is refused where it
breaks a limit, before anything is made of what follows, and nothing is as deep in Python as the text is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trainyard.reading.errors import at_line, shortened, shown
from trainyard.reading.limits import MOST_ALIASED, MOST_DEPTH, MOST_DIGITS, MOST_NAME, MOST_VALUES
from trainyard.reading.section import Items, Section
from trainyard.reading.text import check_text, stranger_in

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_TEXT, _NULL, _MERGE = _TAG + "str", _TAG + "null", _TAG + "merge"
_COLLECTIONS = (None, "!", _TAG + "map", _TAG + "seq")
_RESOLVER = yaml.resolver.Resolver()
_SAFE = yaml.constructor.SafeConstructor()
# Dates and the like stay text.
_MADE: dict[str, Callable[[yaml.ScalarNode], Any]] = {
    _NULL: lambda node: None,
    _TAG + "bool": _SAFE.construct_yaml_bool,
    _TAG + "int": _SAFE.construct_yaml_int,
    _TAG + "float": _SAFE.construct_yaml_float,
}
_NUMBERS = (_TAG + "int", _TAG + "float")
_NO_KEY: Any = object()
_TOO_DEEP = f"lists or mappings too deep in each other; allowed are {MOST_DEPTH} levels"


def parse_yaml(
    text: str,
    source: str | Path,
    *,
    texts: bool = False,
    finite: bool = True,
    most_values: int = MOST_VALUES,
) -> Any:
    """The value of a YAML text; mappings are `Section`, and a JSON text is one, too.

    Parameters
    ----------
    source : what errors call it.
    texts : numbers, truth values and the like stay texts; null is "".
    finite : refuse ``.inf`` and ``.nan``.
    most_values : of the text, see `limits`.

    Raises
    ------
    ReadingError
        If it is not YAML, breaks a limit, has a key twice or one that is no text; the message says on which line.
    """
    check_text(text, source)
    reader = _Reader(source, texts, finite, most_values)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            reader.take(event)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        # libyaml reads ahead, and has a limit of its own.
        said = _TOO_DEEP if "nesting" in str(error.problem) else f"not YAML: {error.problem}"
        raise at_line(source, line, said) from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise at_line(source, 1, f"not YAML: {error}") from error
    return reader.root


@dataclass
class _Open:
    """A list or mapping that is being read.

    Attributes
    ----------
    key : of the value that comes next; `_NO_KEY` where a key does.
    num_values, height : of all that is in it, aliases as if they were written out.
    merged : mappings whose entries are its own where it has no others.
    """

    value: Items | Section
    anchor: str | None
    line: int
    key: Any = _NO_KEY
    key_line: int = 0
    num_values: int = 1
    height: int = 1
    merged: list[Section] = field(default_factory=list)


class _Reader:
    def __init__(self, source: str | Path, texts: bool, finite: bool, most_values: int) -> None:
        self.source = source
        self.root: Any = None
        self._texts, self._finite, self._most_values = texts, finite, most_values
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int, int]] = {}  # value, number of values, height
        self._num_values = self._num_aliased = self._num_documents = 0

    def take(self, event: Any) -> None:
        """Go on by one event."""
        kind = type(event)
        if kind is yaml.ScalarEvent:
            line = event.start_mark.line + 1
            value = self._scalar(event, line)
            if event.anchor is not None:
                self._anchors[event.anchor] = value, 1, 0
            self._add(value, line, 1, 0)
        elif kind is yaml.SequenceStartEvent or kind is yaml.MappingStartEvent:
            self._begin(event)
        elif kind is yaml.SequenceEndEvent or kind is yaml.MappingEndEvent:
            self._end()
        elif kind is yaml.AliasEvent:
            self._alias(event)
        elif kind is yaml.DocumentStartEvent:
            self._num_documents += 1
            if self._num_documents > 1:
                raise at_line(self.source, event.start_mark.line + 1, "a second document; give one in a file")

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> Any:
        tag = event.tag
        if event.style == '"' and (stranger := stranger_in(event.value)):
            raise at_line(self.source, line, f"character {ord(stranger):#04x} is no text; leave it out")
        if tag is None or tag == "!":
            is_plain = tag is None and event.implicit[0]
            tag = _RESOLVER.resolve(yaml.ScalarNode, event.value, (True, False)) if is_plain else _TEXT
        if tag == _MERGE and self._open and self._open[-1].key is _NO_KEY:
            return _Merge
        if self._texts:
            return "" if tag == _NULL else event.value
        if tag not in _MADE:
            if event.tag is not None and tag != _TEXT:
                raise at_line(
                    self.source, line, f"not YAML without code: tag {shown(event.tag)}; leave it out"
                )
            return event.value
        if tag in _NUMBERS and len(event.value) > MOST_DIGITS:
            raise at_line(
                self.source,
                line,
                f"a number of {len(event.value):,} digits, {shown(event.value)}; allowed are {MOST_DIGITS}",
            )
        try:
            value = _MADE[tag](yaml.ScalarNode(tag, event.value))
        except (ValueError, KeyError, IndexError, OverflowError) as error:
            raise at_line(
                self.source, line, f"{shown(event.value)} is no {tag.removeprefix(_TAG)}"
            ) from error
        if self._finite and isinstance(value, float) and not math.isfinite(value):
            raise at_line(self.source, line, f"{self._field()}got {event.value}, allowed is a finite number")
        return value

    def _field(self) -> str:
        key = self._open[-1].key if self._open else _NO_KEY
        return f"field {key!r}: " if isinstance(key, str) else ""

    def _begin(self, event: Any) -> None:
        line = event.start_mark.line + 1
        if event.tag not in _COLLECTIONS:
            raise at_line(self.source, line, f"not YAML without code: tag {shown(event.tag)}; leave it out")
        if len(self._open) == MOST_DEPTH:
            raise at_line(self.source, line, _TOO_DEEP)
        is_list = isinstance(event, yaml.SequenceStartEvent)
        if self._open and isinstance(self._open[-1].value, Section) and self._open[-1].key is _NO_KEY:
            raise at_line(
                self.source, line, f"a {'list' if is_list else 'mapping'} is no key; a key is a text"
            )
        self._count(line)
        self._open.append(_Open(Items() if is_list else Section(self.source, line), event.anchor, line))
        if event.anchor is not None:
            self._anchors.pop(event.anchor, None)

    def _end(self) -> None:
        done = self._open.pop()
        if isinstance(done.value, Section):
            for other in done.merged:
                for key, value in other.items():
                    if key not in done.value:
                        done.value[key] = value
                        done.value.lines[key] = other.lines[key]
        if done.anchor is not None:
            self._anchors[done.anchor] = done.value, done.num_values, done.height
        self._put(done.value, done.line, done.num_values, done.height)

    def _alias(self, event: Any) -> None:
        line, name = event.start_mark.line + 1, event.anchor
        called = f"alias *{shortened(name)}"
        if name not in self._anchors:
            inside = any(each.anchor == name for each in self._open)
            why = "contains itself" if inside else "stands for nothing that was named before"
            raise at_line(self.source, line, f"{called} {why}")
        value, num_values, height = self._anchors[name]
        self._num_aliased += num_values
        if self._num_aliased > MOST_ALIASED or len(self._open) + height > MOST_DEPTH:
            raise at_line(
                self.source,
                line,
                f"{called}: aliases stand for {self._num_aliased:,} values in {len(self._open) + height} levels; "
                f"allowed are {MOST_ALIASED:,} in {MOST_DEPTH}; write out what is meant",
            )
        self._add(value, line, num_values, height)

    def _count(self, line: int) -> None:
        self._num_values += 1
        if self._num_values > self._most_values:
            raise at_line(self.source, line, f"more than {self._most_values:,} values; give a smaller file")

    def _add(self, value: Any, line: int, num_values: int, height: int) -> None:
        self._count(line)
        self._put(value, line, num_values, height)

    def _put(self, value: Any, line: int, num_values: int, height: int) -> None:
        """A value that is whole goes where it belongs."""
        if not self._open:
            self.root = value
            return
        into = self._open[-1]
        into.num_values += num_values
        into.height = max(into.height, height + 1)
        if isinstance(into.value, Items):
            into.value.append(value)
            into.value.lines.append(line)
        elif into.key is _NO_KEY:
            self._put_key(into, value, line)
        elif into.key is _Merge:
            into.merged += self._mergeable(value, line)
            into.key = _NO_KEY
        else:
            into.value[into.key] = value
            into.value.lines[into.key] = into.key_line
            into.key = _NO_KEY

    def _put_key(self, into: _Open, key: Any, line: int) -> None:
        assert isinstance(into.value, Section)
        if key is not _Merge:
            if not isinstance(key, str):
                raise at_line(self.source, line, f"key {shown(key)} is not text; write it in quotes")
            if len(key) > MOST_NAME:
                raise at_line(
                    self.source, line, f"a key of {len(key):,} characters; allowed are {MOST_NAME:,}"
                )
            if key in into.value:
                first = into.value.lines[key]
                raise at_line(
                    self.source, line, f"key {shown(key)} stands twice, first on line {first}; keep one"
                )
        into.key, into.key_line = key, line

    def _mergeable(self, value: Any, line: int) -> Iterator[Section]:
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, Section):
                raise at_line(self.source, line, "what << merges is a mapping, or a list of mappings")
            yield each


class _Merge:
    """The key ``<<``."""
