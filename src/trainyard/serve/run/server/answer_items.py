"""Answers of APIs that have no choices: a list of reasoning, texts and calls of tools, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.choice_decoder import ChoiceDelta
from trainyard.serve.run.server.json_body import parse_json

__all__ = ["AnswerItem", "AnswerItems", "ItemPart"]


@dataclass
class AnswerItem:
    """A text, a piece of reasoning, or a call of a tool.

    Attributes
    ----------
    place : of the item among those of the answer.
    text : the text, or the arguments of the call as JSON, so far.
    call_id, name : id of the call, and name of its tool; "" of a text.
    is_reasoning : whether the text is reasoning.
    """

    place: int
    text: str = ""
    call_id: str = ""
    name: str = ""
    is_reasoning: bool = False

    @property
    def is_call(self) -> bool:
        """Whether the item is a call of a tool."""
        return bool(self.call_id)

    @property
    def arguments(self) -> dict[str, Any] | None:
        """The arguments of a call as an object; None of a text, or if the arguments are no JSON object.

        A model that nothing makes write JSON may write arguments that are cut, or no JSON at all.
        """
        try:
            found = parse_json((self.text or "{}").encode(), "the arguments")
        except ApiError:
            return None
        return found if self.is_call and isinstance(found, dict) else None


class ItemPart(NamedTuple):
    """The next part of an answer: the beginning of an item, more of its text, or its end."""

    kind: Literal["begin", "more", "end"]
    item: AnswerItem
    text: str = ""


class AnswerItems:
    """Sorts the parts of one choice into items.

    Attributes
    ----------
    items : those so far; all but the last one have ended.
    finish_reason, stop_text : as of `ChoiceDelta`; "" until the choice has ended.
    """

    def __init__(self) -> None:
        self.items: list[AnswerItem] = []
        self.finish_reason = self.stop_text = ""
        self._is_open = False

    @property
    def is_cut(self) -> bool:
        """Whether the answer ends because it is as long as it may be."""
        return self.finish_reason == "length"

    def take(self, delta: ChoiceDelta) -> Iterator[ItemPart]:
        """Take the next part of the choice."""
        for text, is_reasoning in ((delta.reasoning, True), (delta.text, False)):
            if text:
                if not self._is_open or self.items[-1].is_call or self.items[-1].is_reasoning != is_reasoning:
                    yield from self._begin(AnswerItem(len(self.items), is_reasoning=is_reasoning))
                yield self._more(text)
        for call in delta.calls:
            if call.call_id:
                yield from self._begin(AnswerItem(len(self.items), "", call.call_id, call.name))
            if call.arguments:
                yield self._more(call.arguments)
        if delta.finish_reason:
            self.finish_reason, self.stop_text = delta.finish_reason, delta.stop_text
            yield from self._end()

    def _begin(self, item: AnswerItem) -> Iterator[ItemPart]:
        yield from self._end()
        self.items.append(item)
        self._is_open = True
        yield ItemPart("begin", item)

    def _more(self, text: str) -> ItemPart:
        item = self.items[-1]
        item.text += text
        return ItemPart("more", item, text)

    def _end(self) -> Iterator[ItemPart]:
        if self._is_open:
            self._is_open = False
            yield ItemPart("end", self.items[-1])
