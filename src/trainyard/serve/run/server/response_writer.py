"""Responses as the API of OpenAI has them, whole or as chunks of a stream."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from trainyard.serve.run.server.answer_writer import AnswerWriter
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.choice_decoder import ChoiceDelta, OutputToken
from trainyard.serve.run.server.generation_stream import Usage
from trainyard.serve.run.server.tools.tool_call_parser import ToolCallDelta

__all__ = ["ChatResponseWriter", "CompletionResponseWriter", "ResponseWriter"]

_LEAST_LOGPROB = -9999.0  # JSON has no infinity


@dataclass(frozen=True)
class ResponseWriter(AnswerWriter):
    """Writes the responses of chats and completions."""

    end_of_stream: ClassVar[bytes] = b"data: [DONE]\n\n"

    def response(self, deltas: Sequence[ChoiceDelta], num_choices: int, usage: Usage) -> dict[str, Any]:
        """All choices at once."""
        by_choice: list[list[ChoiceDelta]] = [[] for _ in range(num_choices)]
        for delta in deltas:
            by_choice[delta.index].append(delta)
        joined = [
            ChoiceDelta(
                index,
                "".join(delta.text for delta in each),
                tuple(token for delta in each for token in delta.tokens),
                each[-1].finish_reason,
                tuple(call for delta in each for call in delta.calls),
            )
            for index, each in enumerate(by_choice)
        ]
        return self._head(False) | {
            "choices": [self._choice(each) for each in joined],
            "usage": _usage(usage),
        }

    def first_chunks(self, num_choices: int) -> list[dict[str, Any]]:
        """What a stream begins with."""
        return []

    def chunks(self, delta: ChoiceDelta) -> list[dict[str, Any]]:
        """A part of a choice, in a stream."""
        return [self._chunk([each]) for each in self._deltas(delta)]

    def last_chunks(self, usage: Usage) -> list[dict[str, Any]]:
        """What a stream ends with."""
        return [] if self.usage_in_stream == "none" else [self._chunk([]) | {"usage": _usage(usage)}]

    def with_usage(self, chunk: dict[str, Any], usage: Usage) -> dict[str, Any]:
        """A chunk with what all choices have used so far, if every chunk says it."""
        return chunk | {"usage": _usage(usage)} if self.usage_in_stream == "all" else chunk

    def error_chunk(self, error: ApiError) -> dict[str, Any]:
        """The error, as a response that is not streamed has it."""
        return error.document()

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        more = {} if self.usage_in_stream == "none" else {"usage": None}
        return self._head(True) | {"choices": choices} | more

    @abstractmethod
    def _head(self, is_chunk: bool) -> dict[str, Any]: ...

    @abstractmethod
    def _choice(self, choice: ChoiceDelta) -> dict[str, Any]: ...

    @abstractmethod
    def _deltas(self, delta: ChoiceDelta) -> list[dict[str, Any]]: ...


class ChatResponseWriter(ResponseWriter):
    """Of /v1/chat/completions."""

    def first_chunks(self, num_choices: int) -> list[dict[str, Any]]:
        """Who speaks, in each choice."""
        first = {"role": "assistant", "content": ""}
        return [self._chunk([_chunk_choice(index, first, None, None)]) for index in range(num_choices)]

    def _head(self, is_chunk: bool) -> dict[str, Any]:
        kind = "chat.completion.chunk" if is_chunk else "chat.completion"
        return {
            "id": f"chatcmpl-{self.response_id}",
            "object": kind,
            "created": self.created_s,
            "model": self.model,
        }

    def _choice(self, choice: ChoiceDelta) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.calls:
            message |= {"content": choice.text or None, "tool_calls": _whole_calls(choice.calls)}
        return {
            "index": choice.index,
            "message": message,
            "logprobs": self._logprobs(choice.tokens),
            "finish_reason": choice.finish_reason,
        }

    def _deltas(self, delta: ChoiceDelta) -> list[dict[str, Any]]:
        said: list[dict[str, Any]] = []
        if delta.text or (delta.tokens and not delta.calls):
            said.append({"content": delta.text})
        said += [{"tool_calls": [_call_chunk(call)]} for call in delta.calls]
        told = [self._logprobs(delta.tokens), *(None for _ in said)]
        found = [
            _chunk_choice(delta.index, each, logprobs, None)
            for each, logprobs in zip(said, told, strict=False)
        ]
        if delta.finish_reason:
            found.append(_chunk_choice(delta.index, {}, None, delta.finish_reason))
        return found

    def _logprobs(self, tokens: Sequence[OutputToken]) -> dict[str, Any] | None:
        if not self.has_logprobs:
            return None
        return {
            "content": [
                self._entry(each.token, each.logprobs.chosen)
                | {
                    "top_logprobs": [
                        self._entry(int(token), value)
                        for token, value in zip(each.logprobs.top, each.logprobs.logprobs, strict=True)
                    ]
                }
                for each in tokens
            ],
            "refusal": None,
        }

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        content = self.tokenizer.bytes_of(token)
        return {
            "token": content.decode("utf-8", "replace"),
            "logprob": _finite(logprob),
            "bytes": list(content),
        }


@dataclass(frozen=True)
class CompletionResponseWriter(ResponseWriter):
    """Of /v1/completions.

    Attributes
    ----------
    echoed : what the text of each choice begins with.
    """

    echoed: tuple[str, ...]

    def first_chunks(self, num_choices: int) -> list[dict[str, Any]]:
        """The prompts, if they are to be echoed."""
        return [
            self._chunk([self._part(ChoiceDelta(index, text))])
            for index, text in enumerate(self.echoed)
            if text
        ]

    def _head(self, is_chunk: bool) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self.response_id}",
            "object": "text_completion",
            "created": self.created_s,
            "model": self.model,
        }

    def _choice(self, choice: ChoiceDelta) -> dict[str, Any]:
        return self._part(replace(choice, text=self.echoed[choice.index] + choice.text))

    def _deltas(self, delta: ChoiceDelta) -> list[dict[str, Any]]:
        return [self._part(delta)]

    def _part(self, choice: ChoiceDelta) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": choice.text,
            "logprobs": self._logprobs(choice.tokens),
            "finish_reason": choice.finish_reason or None,
        }

    def _logprobs(self, tokens: Sequence[OutputToken]) -> dict[str, Any] | None:
        if not self.has_logprobs:
            return None
        likeliest = []
        for each in tokens:
            values = {
                self._name(int(token)): _finite(value)
                for token, value in zip(each.logprobs.top, each.logprobs.logprobs, strict=True)
            }
            likeliest.append(values | {self._name(each.token): _finite(each.logprobs.chosen)})
        return {
            "tokens": [self._name(each.token) for each in tokens],
            "token_logprobs": [_finite(each.logprobs.chosen) for each in tokens],
            "top_logprobs": likeliest,
            "text_offset": [each.offset for each in tokens],
        }

    def _name(self, token: int) -> str:
        """A token as text; if it is part of a character, its bytes."""
        content = self.tokenizer.bytes_of(token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


def _chunk_choice(
    index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None, reason: str | None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


def _call_chunk(call: ToolCallDelta) -> dict[str, Any]:
    if not call.call_id:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.call_id, "type": "function", "function": function}


def _whole_calls(deltas: Sequence[ToolCallDelta]) -> list[dict[str, Any]]:
    """Calls whose parts are joined."""
    found = dict[int, dict[str, Any]]()
    for delta in deltas:
        if delta.call_id:
            found[delta.index] = {
                "id": delta.call_id,
                "type": "function",
                "function": {"name": delta.name, "arguments": ""},
            }
        found[delta.index]["function"]["arguments"] += delta.arguments
    return list(found.values())


def _finite(value: float) -> float:
    return float(value) if math.isfinite(value) else _LEAST_LOGPROB


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
