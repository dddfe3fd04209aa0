"""Responses as the API of OpenAI has them, whole or as chunks of a stream."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainyard.serve.run.model_tokenizer import Detokenizer
from trainyard.serve.run.server.answer_writer import AnswerWriter
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.choice_decoder import ChoiceDelta, OutputToken, ScoredPrompt
from trainyard.serve.run.server.generation_stream import Usage
from trainyard.serve.run.server.tools.tool_call_parser import ToolCallDelta

__all__ = ["ChatResponseWriter", "CompletionResponseWriter", "ResponseWriter"]

_LEAST_LOGPROB = -9999.0  # JSON has no infinity


@dataclass(frozen=True)
class ResponseWriter(AnswerWriter):
    """Writes the responses of chats and completions."""

    end_of_stream: ClassVar[bytes] = b"data: [DONE]\n\n"

    def response(self, deltas: Sequence[ChoiceDelta], num_choices: int, usage: Usage) -> dict[str, Any]:
        """Return the response with all choices at once."""
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
                "".join(delta.reasoning for delta in each),
                each[0].prompt,
            )
            for index, each in enumerate(by_choice)
        ]
        return self._head(False) | {
            "choices": [self._choice(each) for each in joined],
            "usage": _usage(usage),
            **self._of_prompt(joined),
        }

    def _of_prompt(self, choices: Sequence[ChoiceDelta]) -> dict[str, Any]:
        """Return the fields beside the choices that are about the prompt."""
        return {}

    def first_chunks(self, num_choices: int) -> list[dict[str, Any]]:
        """Return the events that begin a stream: none."""
        return []

    def chunks(self, delta: ChoiceDelta) -> list[dict[str, Any]]:
        """Return the events of a part of a choice."""
        return [self._chunk([each]) for each in self._deltas(delta)]

    def last_chunks(self, usage: Usage) -> list[dict[str, Any]]:
        """Return the event with the usage, if it was asked for."""
        return [] if self.usage_in_stream == "none" else [self._chunk([]) | {"usage": _usage(usage)}]

    def with_usage(self, chunk: dict[str, Any], usage: Usage) -> dict[str, Any]:
        """Add the usage of all choices so far to an event, if every event has it."""
        return chunk | {"usage": _usage(usage)} if self.usage_in_stream == "all" else chunk

    def error_chunk(self, error: ApiError) -> dict[str, Any]:
        """Return the error as in a response that is not streamed."""
        return error.document()

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        more = {} if self.usage_in_stream == "none" else {"usage": None}
        return self._head(True) | {"choices": choices} | more

    def _prompt_logprobs(self, prompt: ScoredPrompt) -> list[dict[str, Any] | None]:
        """Return each token of a prompt and the likeliest ones beside it, by id, as vLLM does; None for the first."""
        found: list[dict[str, Any] | None] = [None]
        known = prompt.logprobs
        rows = zip(prompt.tokens[1:], known.chosen, known.ranks, known.top, known.logprobs, strict=True)
        for token, logprob, rank, top, logprobs in rows:
            entry = {str(token): self._ranked(token, logprob, rank)}
            likeliest = zip(top[: self.num_prompt_logprobs].tolist(), logprobs, strict=False)
            for place, (other, value) in enumerate(likeliest, 1):
                entry.setdefault(str(other), self._ranked(other, value, place))
            found.append(entry)
        return found

    def _ranked(self, token: int, logprob: float, rank: int) -> dict[str, Any]:
        text = self.tokenizer.bytes_of(token).decode("utf-8", "replace")
        return {"logprob": _finite(logprob), "rank": int(rank), "decoded_token": text}

    @abstractmethod
    def _head(self, is_chunk: bool) -> dict[str, Any]: ...

    @abstractmethod
    def _choice(self, choice: ChoiceDelta) -> dict[str, Any]: ...

    @abstractmethod
    def _deltas(self, delta: ChoiceDelta) -> list[dict[str, Any]]: ...


class ChatResponseWriter(ResponseWriter):
    """Writer of /v1/chat/completions."""

    def first_chunks(self, num_choices: int) -> list[dict[str, Any]]:
        """Return a chunk with the role of the speaker for each choice."""
        first = {"role": "assistant", "content": ""}
        return [self._chunk([_chunk_choice(index, first, None, None)]) for index in range(num_choices)]

    def _of_prompt(self, choices: Sequence[ChoiceDelta]) -> dict[str, Any]:
        prompt = choices[0].prompt
        return {} if prompt is None else {"prompt_logprobs": self._prompt_logprobs(prompt)}

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
        if choice.reasoning:
            message |= {"content": choice.text or None} | _reasoning(choice.reasoning)
        return {
            "index": choice.index,
            "message": message,
            "logprobs": self._logprobs(choice.tokens),
            "finish_reason": choice.finish_reason,
        }

    def _deltas(self, delta: ChoiceDelta) -> list[dict[str, Any]]:
        said: list[dict[str, Any]] = []
        if delta.reasoning:
            said.append(_reasoning(delta.reasoning))
        if delta.text or (delta.tokens and not delta.calls and not delta.reasoning):
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
    """Writer of /v1/completions.

    Attributes
    ----------
    num_echoed_logprobs : how many likely tokens are told of each token of an echoed prompt; None if prompts are not
        echoed, or no log-probabilities are told.
    """

    num_echoed_logprobs: int | None = None

    def _head(self, is_chunk: bool) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self.response_id}",
            "object": "text_completion",
            "created": self.created_s,
            "model": self.model,
        }

    def _choice(self, choice: ChoiceDelta) -> dict[str, Any]:
        return self._part(choice)

    def _deltas(self, delta: ChoiceDelta) -> list[dict[str, Any]]:
        return [self._part(delta)]

    def _part(self, choice: ChoiceDelta) -> dict[str, Any]:
        found = {
            "index": choice.index,
            "text": choice.text,
            "logprobs": self._logprobs(choice),
            "finish_reason": choice.finish_reason or None,
        }
        if choice.prompt is not None and self.num_prompt_logprobs is not None:
            found["prompt_logprobs"] = self._prompt_logprobs(choice.prompt)
        return found

    def _logprobs(self, choice: ChoiceDelta) -> dict[str, Any] | None:
        if not self.has_logprobs:
            return None
        found: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        if choice.prompt is not None and self.num_echoed_logprobs is not None:
            self._add_prompt(found, choice.prompt, self.num_echoed_logprobs)
        for each in choice.tokens:
            known = each.logprobs
            self._add(found, each.token, each.offset, known.chosen, known.top, known.logprobs)
        return found

    def _add_prompt(self, found: dict[str, list[Any]], prompt: ScoredPrompt, num: int) -> None:
        """Add the tokens of a prompt, of which the first has no log-probability."""
        known, detokenizer, num_chars = prompt.logprobs, Detokenizer(self.tokenizer), 0
        for place, token in enumerate(prompt.tokens):
            if place:
                row = place - 1
                top, logprobs = known.top[row, :num], known.logprobs[row, :num]
                self._add(found, token, num_chars, known.chosen[row], top, logprobs)
            else:
                found["tokens"].append(self._name(token))
                found["text_offset"].append(0)
                found["token_logprobs"].append(None)
                found["top_logprobs"].append(None)
            num_chars += len(detokenizer.take(token))

    def _add(
        self,
        found: dict[str, list[Any]],
        token: int,
        offset: int,
        logprob: float,
        top: NDArray[np.int64],
        logprobs: NDArray[np.float64],
    ) -> None:
        """Add a token, with the likeliest ones beside it."""
        likeliest = {
            self._name(other): _finite(value) for other, value in zip(top.tolist(), logprobs, strict=True)
        }
        found["tokens"].append(self._name(token))
        found["text_offset"].append(offset)
        found["token_logprobs"].append(_finite(logprob))
        found["top_logprobs"].append(likeliest | {self._name(token): _finite(logprob)})

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


def _reasoning(text: str) -> dict[str, Any]:
    """Return reasoning under both names that clients read: vLLM's and DeepSeek's."""
    return {"reasoning": text, "reasoning_content": text}


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
