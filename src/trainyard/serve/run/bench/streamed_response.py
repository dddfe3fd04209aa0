"""One request is sent to a server, and its answer is read as it arrives."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2

from trainyard.reading import shortened, shown

__all__ = ["RequestFailure", "StreamedResponse", "error_message", "send_request"]

_MOST_TOKENS = 2**31 - 1
_SAYS_TEXT = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls")


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """Why a request has no complete answer.

    Attributes
    ----------
    kind : ``HTTP 429`` and the like; ``connection``, before an answer began; ``stream``, after that; or ``timeout``.
    message : what the server said, or what happened.
    status : of the answer; 0 where there was none, or it was 200.
    """

    kind: str
    message: str
    status: int = 0


@dataclass(slots=True)
class StreamedResponse:
    """The answer to a request, as far as it has arrived.

    Attributes
    ----------
    token_times_s : when each part of the answer came that has text, by the clock of the client. A server may send
        several tokens in one.
    end_s : when the last part of the answer came; NaN before that.
    prompt_tokens, output_tokens : by the count of the server; None where it does not tell.
    failure : None for a complete answer.
    """

    token_times_s: array[float] = field(default_factory=lambda: array("d"))
    end_s: float = float("nan")
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    failure: RequestFailure | None = None
    _is_finished: bool = False

    def take(self, document: Any, now_s: float) -> None:
        """Read one part of the stream.

        Raises
        ------
        ValueError
            If it has not the form of the API.
        """
        if not isinstance(document, dict):
            raise ValueError(f"a part of the stream is {shown(document)}; expected is an object")
        if document.get("error"):
            self.failure = RequestFailure("stream", error_message(document))
        if isinstance(usage := document.get("usage"), dict):
            self.prompt_tokens = _count(usage, "prompt_tokens", self.prompt_tokens)
            self.output_tokens = _count(usage, "completion_tokens", self.output_tokens)
        choices = document.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                raise ValueError(f"a choice of the stream is {shown(choice)}; expected is an object")
            self.end_s = now_s
            self._is_finished |= bool(choice.get("finish_reason"))
            if _has_token(choice):
                self.token_times_s.append(now_s)

    def close(self) -> None:
        """The stream has ended."""
        if self.failure is None and not self._is_finished:
            self.failure = RequestFailure("stream", "the stream ended before the answer did")
        if self.failure is None and not self.token_times_s:
            self.token_times_s.append(self.end_s)  # its tokens have no text


async def send_request(
    client: httpx2.AsyncClient, path: str, body: bytes, timeout_s: float, clock: Callable[[], float]
) -> StreamedResponse:
    """Send a request and read its answer to the end. What goes wrong is part of the result.

    Parameters
    ----------
    path : after the address of the server.
    body : JSON that asks for a stream.
    timeout_s : for the whole answer.
    """
    found, kind = StreamedResponse(), "connection"
    try:
        async with asyncio.timeout(timeout_s), client.stream("POST", path, content=body) as response:
            kind = "stream"
            if response.status_code == 200:
                async for event in httpx2.EventSource(response):
                    now_s = clock()
                    # After this mark the stream is read to its end, so that the connection can be used again.
                    if event.data != "[DONE]":
                        found.take(json.loads(event.data), now_s)
                found.close()
            else:
                status = response.status_code
                found.failure = RequestFailure(
                    f"HTTP {status}", error_message(await response.aread()), status
                )
    except TimeoutError:
        found.failure = RequestFailure("timeout", f"no complete answer within {timeout_s:g} s")
    except (httpx2.HTTPError, httpx2.StreamError, OSError, ValueError, RecursionError) as error:
        found.failure = RequestFailure(kind, shortened(str(error) or type(error).__name__))
    return found


def error_message(given: bytes | dict[str, Any]) -> str:
    """The message of an error response."""
    document: Any = given
    if isinstance(given, bytes):
        try:
            document = json.loads(given)
        except ValueError:
            return shortened(given[:10_000].decode("utf-8", "replace").strip()) or "nothing was said"
    for name in ("error", "message", "detail"):
        if isinstance(document, dict) and document.get(name):
            document = document[name]
    return shortened(document if isinstance(document, str) else json.dumps(document))


def _has_token(choice: dict[str, Any]) -> bool:
    """Whether a part has text, or may be a token without text: neither the speaker nor the end of the answer."""
    delta = choice.get("delta")
    if isinstance(delta, dict):
        has_text = any(delta.get(name) for name in _SAYS_TEXT)
        return has_text or not (choice.get("finish_reason") or delta.get("role"))
    return bool(choice.get("text")) or not choice.get("finish_reason")


def _count(usage: dict[str, Any], name: str, otherwise: int | None) -> int | None:
    found = usage.get(name)
    return found if type(found) is int and 0 <= found <= _MOST_TOKENS else otherwise
