"""Answers as the API of OpenAI writes them, whole or as chunks of a stream."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.serve.run.model_text import ModelText
from trainyard.serve.run.server.answer import Piece, ToldToken
from trainyard.serve.run.server.generation import Usage

__all__ = ["ChatDocuments", "CompletionDocuments", "Documents"]

_LEAST_LOGPROB = -9999.0  # JSON has no infinity


@dataclass(frozen=True)
class Documents(ABC):
    """Writes what answers one request.

    Attributes
    ----------
    name : of the request.
    model : its name.
    text : its tokenizer.
    created_s : when the request came, in seconds since 1970.
    tells_logprobs : whether these were asked for.
    includes_usage : whether a stream ends with what was used.
    """

    name: str
    model: str
    text: ModelText
    created_s: int
    tells_logprobs: bool
    includes_usage: bool

    def whole(self, pieces: Sequence[Piece], num_answers: int, usage: Usage) -> dict[str, Any]:
        """All answers at once."""
        of: list[list[Piece]] = [[] for _ in range(num_answers)]
        for piece in pieces:
            of[piece.choice].append(piece)
        joined = [
            Piece(
                choice,
                "".join(piece.text for piece in each),
                tuple(token for piece in each for token in piece.tokens),
                each[-1].finish_reason,
            )
            for choice, each in enumerate(of)
        ]
        return self._head(False) | {"choices": [self._whole(each) for each in joined], "usage": _used(usage)}

    def first_chunks(self, num_answers: int) -> list[dict[str, Any]]:
        """What a stream begins with."""
        return []

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        """A piece in a stream."""
        return [self._chunk([each]) for each in self._deltas(piece)]

    def last_chunks(self, usage: Usage) -> list[dict[str, Any]]:
        """What a stream ends with."""
        return [self._chunk([]) | {"usage": _used(usage)}] if self.includes_usage else []

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        more = {"usage": None} if self.includes_usage else {}
        return self._head(True) | {"choices": choices} | more

    @abstractmethod
    def _head(self, is_chunk: bool) -> dict[str, Any]: ...

    @abstractmethod
    def _whole(self, answer: Piece) -> dict[str, Any]: ...

    @abstractmethod
    def _deltas(self, piece: Piece) -> list[dict[str, Any]]: ...


class ChatDocuments(Documents):
    """Of /v1/chat/completions."""

    def first_chunks(self, num_answers: int) -> list[dict[str, Any]]:
        """Who speaks, in each answer."""
        first = {"role": "assistant", "content": ""}
        return [self._chunk([_choice(choice, first, None, None)]) for choice in range(num_answers)]

    def _head(self, is_chunk: bool) -> dict[str, Any]:
        kind = "chat.completion.chunk" if is_chunk else "chat.completion"
        return {
            "id": f"chatcmpl-{self.name}",
            "object": kind,
            "created": self.created_s,
            "model": self.model,
        }

    def _whole(self, answer: Piece) -> dict[str, Any]:
        return {
            "index": answer.choice,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": self._logprobs(answer.tokens),
            "finish_reason": answer.finish_reason,
        }

    def _deltas(self, piece: Piece) -> list[dict[str, Any]]:
        found = []
        if piece.text or piece.tokens:
            told = self._logprobs(piece.tokens)
            found.append(_choice(piece.choice, {"content": piece.text}, told, None))
        if piece.finish_reason:
            found.append(_choice(piece.choice, {}, None, piece.finish_reason))
        return found

    def _logprobs(self, tokens: Sequence[ToldToken]) -> dict[str, Any] | None:
        if not self.tells_logprobs:
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
        content = self.text.bytes_of(token)
        return {
            "token": content.decode("utf-8", "replace"),
            "logprob": _finite(logprob),
            "bytes": list(content),
        }


class CompletionDocuments(Documents):
    """Of /v1/completions."""

    def _head(self, is_chunk: bool) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self.name}",
            "object": "text_completion",
            "created": self.created_s,
            "model": self.model,
        }

    def _whole(self, answer: Piece) -> dict[str, Any]:
        return {
            "index": answer.choice,
            "text": answer.text,
            "logprobs": self._logprobs(answer.tokens),
            "finish_reason": answer.finish_reason or None,
        }

    def _deltas(self, piece: Piece) -> list[dict[str, Any]]:
        return [self._whole(piece)]

    def _logprobs(self, tokens: Sequence[ToldToken]) -> dict[str, Any] | None:
        if not self.tells_logprobs:
            return None
        likely = []
        for each in tokens:
            values = {
                self._name(int(token)): _finite(value)
                for token, value in zip(each.logprobs.top, each.logprobs.logprobs, strict=True)
            }
            likely.append(values | {self._name(each.token): _finite(each.logprobs.chosen)})
        return {
            "tokens": [self._name(each.token) for each in tokens],
            "token_logprobs": [_finite(each.logprobs.chosen) for each in tokens],
            "top_logprobs": likely,
            "text_offset": [each.offset for each in tokens],
        }

    def _name(self, token: int) -> str:
        """A token as text; if it is part of a character, its bytes."""
        content = self.text.bytes_of(token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


def _choice(
    choice: int, delta: dict[str, Any], logprobs: dict[str, Any] | None, reason: str | None
) -> dict[str, Any]:
    return {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


def _finite(value: float) -> float:
    return float(value) if math.isfinite(value) else _LEAST_LOGPROB


def _used(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }
