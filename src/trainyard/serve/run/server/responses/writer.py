"""Answers of OpenAI's API for responses: a list of items, whole or as named events of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar

from trainyard.serve.run.server.answer_items import AnswerItem, AnswerItems, ItemPart
from trainyard.serve.run.server.answer_writer import AnswerWriter
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.choice_decoder import ChoiceDelta
from trainyard.serve.run.server.generation_stream import Usage
from trainyard.serve.run.server.responses.requests import ResponsesRequest

__all__ = ["ResponsesWriter"]


@dataclass(frozen=True)
class ResponsesWriter(AnswerWriter):
    """Writes the response to a request of /v1/responses.

    Attributes
    ----------
    request : its fields are repeated in the response.
    """

    names_events: ClassVar[bool] = True

    request: ResponsesRequest
    _items: AnswerItems = field(default_factory=AnswerItems)
    _numbers: Iterator[int] = field(default_factory=count)

    def response(self, deltas: Sequence[ChoiceDelta], num_choices: int, usage: Usage) -> dict[str, Any]:
        """Return the whole response."""
        for delta in deltas:
            list(self._items.take(delta))
        return self._ended(usage)

    def first_chunks(self, num_choices: int) -> list[dict[str, Any]]:
        """Return events with the response without output."""
        begun = self._head("in_progress")
        kinds = ("response.created", "response.in_progress")
        return [self._event(kind, {"response": begun}) for kind in kinds]

    def chunks(self, delta: ChoiceDelta) -> list[dict[str, Any]]:
        """Return the events of items that begin, grow or end."""
        return [event for part in self._items.take(delta) for event in self._of_part(part)]

    def last_chunks(self, usage: Usage) -> list[dict[str, Any]]:
        """Return the event with the whole response."""
        ended = self._ended(usage)
        return [self._event(f"response.{ended['status']}", {"response": ended})]

    def error_chunk(self, error: ApiError) -> dict[str, Any]:
        """Return the error as an event."""
        told = {"code": error.code or None, "message": error.message, "param": error.param or None}
        return self._event("error", told)

    def _ended(self, usage: Usage) -> dict[str, Any]:
        items = self._items
        told = {
            "output": [self._whole(item, self._status(item)) for item in items.items],
            "usage": _usage(usage),
        }
        if items.is_cut:
            return self._head("incomplete") | told | {"incomplete_details": {"reason": "max_output_tokens"}}
        return self._head("completed") | told

    def _head(self, status: str) -> dict[str, Any]:
        asked = self.request
        given = asked.model_dump(by_alias=True, exclude_unset=True, include={"tools", "text"})
        return {
            "id": f"resp_{self.response_id}",
            "object": "response",
            "created_at": self.created_s,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata,
            "model": self.model,
            "output": [],
            "parallel_tool_calls": asked.parallel_tool_calls,
            "previous_response_id": None,
            "temperature": asked.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": asked.tool_choice,
            "tools": [],
            "top_p": asked.top_p,
            "truncation": asked.truncation,
            "usage": None,
            "user": asked.user or None,
            **given,
        }

    def _of_part(self, part: ItemPart) -> Iterator[dict[str, Any]]:
        item = part.item
        place = {"output_index": item.place}
        inner = place | {"item_id": self._id(item)}
        content = inner if item.is_call else inner | {"content_index": 0}
        name = "function_call_arguments" if item.is_call else _text_kind(item)
        logprobs: dict[str, Any] = {"logprobs": []} if name == "output_text" else {}
        if part.kind == "more":
            yield self._event(f"response.{name}.delta", content | logprobs | {"delta": part.text})
            return
        if part.kind == "begin":
            begun = self._whole(item, "in_progress")
            if not item.is_call:
                begun["content"] = []
            yield self._event("response.output_item.added", place | {"item": begun})
            if not item.is_call:
                yield self._event("response.content_part.added", content | {"part": _text_part(item, "")})
            return
        told = {"arguments": item.text, "name": item.name} if item.is_call else {"text": item.text}
        yield self._event(f"response.{name}.done", content | logprobs | told)
        if not item.is_call:
            yield self._event("response.content_part.done", content | {"part": _text_part(item, item.text)})
        yield self._event(
            "response.output_item.done", place | {"item": self._whole(item, self._status(item))}
        )

    def _whole(self, item: AnswerItem, status: str) -> dict[str, Any]:
        if item.is_call:
            call = {
                "type": "function_call",
                "call_id": item.call_id,
                "name": item.name,
                "arguments": item.text,
            }
            return {"id": self._id(item), "status": status, **call}
        kind = (
            {"type": "reasoning", "summary": []}
            if item.is_reasoning
            else {"type": "message", "role": "assistant"}
        )
        return {"id": self._id(item), "status": status, **kind, "content": [_text_part(item, item.text)]}

    def _id(self, item: AnswerItem) -> str:
        kind = "fc" if item.is_call else "rs" if item.is_reasoning else "msg"
        return f"{kind}_{self.response_id}_{item.place}"

    def _status(self, item: AnswerItem) -> str:
        is_cut = self._items.is_cut and item is self._items.items[-1]
        return "incomplete" if is_cut or (item.is_call and item.arguments is None) else "completed"

    def _event(self, kind: str, told: dict[str, Any]) -> dict[str, Any]:
        return {"type": kind, "sequence_number": next(self._numbers), **told}


def _text_kind(item: AnswerItem) -> str:
    return "reasoning_text" if item.is_reasoning else "output_text"


def _text_part(item: AnswerItem, text: str) -> dict[str, Any]:
    plain = {"type": _text_kind(item), "text": text}
    return plain if item.is_reasoning else plain | {"annotations": [], "logprobs": []}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
