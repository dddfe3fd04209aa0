"""The server that is measured: its address, its model, and what it accepts, which is tried once before the run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import httpx2

from trainyard.hardware.interface import is_loopback
from trainyard.reading import listed, shortened, shown
from trainyard.serve.errors import ServeError
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.run.bench.request_format import WORDS, Endpoint, RequestFormat
from trainyard.serve.run.bench.streamed_response import error_message, send_request

__all__ = ["Target", "detect_format"]

_NOT_TAKEN = (400, 422)
_PROBE_TOKENS = 8
_USUAL_TOKENS = tuple(range(300, 1000))  # neither single bytes nor marks, in all usual tokenizers


@dataclass(frozen=True)
class Target:
    """A server.

    Attributes
    ----------
    url : its address, with or without ``/v1``.
    endpoint : that is asked.
    model : by its name there; "" for the only one.
    api_key : "" for none.
    timeout_s : for a whole answer.

    Raises
    ------
    ServeError
        If the address is none.
    """

    url: str
    endpoint: Endpoint = "completions"
    model: str = ""
    api_key: str = field(default="", repr=False)
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        try:
            url = httpx2.URL(self.url)
        except (httpx2.InvalidURL, TypeError) as error:
            raise self._wrong_url() from error
        if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
            raise self._wrong_url()
        if not self.api_key.isascii() or not self.api_key.isprintable():
            raise ServeError(
                "the key has characters that no header takes; give ASCII without control characters"
            )

    def client(self) -> httpx2.AsyncClient:
        """Sends any number of requests at once; through no proxy, if the server is on this machine."""
        url = self.url.rstrip("/").removesuffix("/v1")
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return httpx2.AsyncClient(
            base_url=url,
            headers=headers,
            timeout=None,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=not is_loopback(httpx2.URL(url).host),
        )

    def _wrong_url(self) -> ServeError:
        return ServeError(
            f"{shown(self.url)} is no address of a server; give one such as http://127.0.0.1:8000"
        )


async def detect_format(target: Target, client: httpx2.AsyncClient, first: Request) -> RequestFormat:
    """Find out what a server accepts: token ids as prompts, answers of fixed length, and counts of tokens.

    Parameters
    ----------
    first : the first request; short ones like it are tried.

    Raises
    ------
    ServeError
        If the server cannot be reached, or takes nothing of that.
    """
    model = target.model or await _only_model(target, client)
    richest = RequestFormat(target.endpoint, model)
    if target.endpoint == "completions":
        richest = replace(richest, known_tokens=await _known_tokens(target, client, model), sends_tokens=True)
    probe = replace(first, prompt_tokens=_PROBE_TOKENS, prompt_ids=(), prefix=None, max_tokens=1)
    said = ""
    for format in _with_less(richest):
        (body,) = format.bodies((TracedRequest(probe, 1),), seed=0)
        failure = (await send_request(client, format.path, body, target.timeout_s, time.perf_counter)).failure
        if failure is None:
            return format
        said = f"{failure.kind}: {failure.message}"
        if failure.status not in _NOT_TAKEN:
            raise ServeError(
                f"{target.url} does not answer on {format.path}: {said}; see --url, --endpoint, --model and --api-key"
            )
    raise ServeError(
        f"{target.url} takes no request on {richest.path}; the simplest one is refused with {said}"
    )


def _with_less(format: RequestFormat) -> Iterator[RequestFormat]:
    """The format, and all with less in them, in the order of how much is left out."""
    choices = product((True, False) if format.sends_tokens else (False,), *((True, False),) * 2)
    for tokens, length, usage in sorted(choices, key=lambda each: -sum(each)):
        yield replace(format, sends_tokens=tokens, fixes_length=length, includes_usage=usage)


async def _only_model(target: Target, client: httpx2.AsyncClient) -> str:
    document = await _document(target, client, "GET", "/v1/models")
    cards = document.get("data") if isinstance(document, dict) else None
    names = [
        each["id"]
        for each in (cards if isinstance(cards, list) else ())
        if isinstance(each, dict) and isinstance(each.get("id"), str)
    ]
    if len(names) != 1:
        found = f"has several models: {listed(names)}" if names else "tells no model"
        raise ServeError(f"{target.url} {found}; name one with --model")
    return str(names[0])


async def _known_tokens(target: Target, client: httpx2.AsyncClient, model: str) -> tuple[int, ...]:
    """Ordinary tokens of a model: those of a text where the server tells them."""
    given = {"model": model, "prompt": " ".join(WORDS), "add_special_tokens": False}
    try:
        document = await _document(target, client, "POST", "/tokenize", given)
    except ServeError:
        return _USUAL_TOKENS
    found = document.get("tokens") if isinstance(document, dict) else None
    if isinstance(found, list) and found and all(type(each) is int for each in found):
        return tuple(sorted(set(found)))
    return _USUAL_TOKENS


async def _document(
    target: Target, client: httpx2.AsyncClient, method: str, path: str, given: dict[str, Any] | None = None
) -> Any:
    """What a server says that is no stream.

    Raises
    ------
    ServeError
        If it says nothing, or no success.
    """
    try:
        response = await client.request(method, path, json=given, timeout=target.timeout_s)
    except (httpx2.HTTPError, OSError) as error:
        why = shortened(str(error) or type(error).__name__)
        raise ServeError(
            f"{target.url} cannot be reached: {why}; is the server running, and is this its address?"
        ) from error
    if response.status_code != 200:
        told = error_message(response.content)
        raise ServeError(f"{target.url} answers {method} {path} with status {response.status_code}: {told}")
    try:
        return response.json()
    except ValueError as error:
        raise ServeError(
            f"{target.url} answers {method} {path} with no JSON; give a server with the API of OpenAI"
        ) from error
