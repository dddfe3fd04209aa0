"""Answers of the API of Anthropic: messages of blocks, whole or as named events of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from trainyard.serve.run.server.answer_items import AnswerItem, AnswerItems, ItemPart
from trainyard.serve.run.server.answer_writer import AnswerWriter
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.choice_decoder import ChoiceDelta
from trainyard.serve.run.server.generation_stream import Usage

__all__ = ["MessageWriter"]


@dataclass(frozen=True)
class MessageWriter(AnswerWriter):
    """Writes the response to a request of /v1/messages.

    Attributes
    ----------
    max_tokens : the longest answer that the request allows.
    """

    names_events: ClassVar[bool] = True

    max_tokens: int
    _items: AnswerItems = field(default_factory=AnswerItems)

    def response(self, deltas: Sequence[ChoiceDelta], num_choices: int, usage: Usage) -> dict[str, Any]:
        """Return the whole message, without calls whose input is no object, such as one that is cut."""
        for delta in deltas:
            list(self._items.take(delta))
        items = [item for item in self._items.items if not item.is_call or item.arguments is not None]
        return (
            self._head()
            | self._end(usage)
            | {"content": [_whole(item) for item in items], "usage": _usage(usage)}
        )

    def first_chunks(self, num_choices: int) -> list[dict[str, Any]]:
        """Return the message without content."""
        return [{"type": "message_start", "message": self._head()}]

    def with_usage(self, chunk: dict[str, Any], usage: Usage) -> dict[str, Any]:
        """Add the usage of the prompt to the event that begins the message."""
        if chunk["type"] != "message_start":
            return chunk
        return chunk | {"message": chunk["message"] | {"usage": _usage(usage) | {"output_tokens": 0}}}

    def chunks(self, delta: ChoiceDelta) -> list[dict[str, Any]]:
        """Return the events of blocks that begin, grow or end."""
        return [_event(part) for part in self._items.take(delta)]

    def last_chunks(self, usage: Usage) -> list[dict[str, Any]]:
        """Return the events with the reason of the end, and the usage."""
        end = {"type": "message_delta", "delta": self._end(usage), "usage": _usage(usage)}
        return [end, {"type": "message_stop"}]

    def error_chunk(self, error: ApiError) -> dict[str, Any]:
        """Return the error as in a response that is not streamed."""
        return error.anthropic_document()

    def _head(self) -> dict[str, Any]:
        return {
            "id": f"msg_{self.response_id}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }

    def _end(self, usage: Usage) -> dict[str, Any]:
        items = self._items
        if items.is_cut:
            is_asked = usage.completion_tokens >= self.max_tokens
            reason = "max_tokens" if is_asked else "model_context_window_exceeded"
        elif any(item.arguments is not None for item in items.items):
            reason = "tool_use"
        else:
            reason = "stop_sequence" if items.stop_text else "end_turn"
        return {"stop_reason": reason, "stop_sequence": items.stop_text or None}


def _whole(item: AnswerItem) -> dict[str, Any]:
    if item.is_call:
        return _begin(item) | {"input": item.arguments}
    if item.is_reasoning:
        return _begin(item) | {"thinking": item.text}
    return _begin(item) | {"text": item.text}


def _begin(item: AnswerItem) -> dict[str, Any]:
    if item.is_call:
        return {"type": "tool_use", "id": item.call_id, "name": item.name, "input": {}}
    if item.is_reasoning:
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _event(part: ItemPart) -> dict[str, Any]:
    place = {"index": part.item.place}
    if part.kind == "begin":
        return {"type": "content_block_start", **place, "content_block": _begin(part.item)}
    if part.kind == "end":
        return {"type": "content_block_stop", **place}
    if part.item.is_call:
        delta = {"type": "input_json_delta", "partial_json": part.text}
    elif part.item.is_reasoning:
        delta = {"type": "thinking_delta", "thinking": part.text}
    else:
        delta = {"type": "text_delta", "text": part.text}
    return {"type": "content_block_delta", **place, "delta": delta}


def _usage(usage: Usage) -> dict[str, Any]:
    """Return the usage: tokens of the prompt that were cached are counted apart from the others."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
