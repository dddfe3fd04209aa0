"""How a server takes requests: bodies of the API of OpenAI, with the prompts of a trace or drawn ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainyard.serve.errors import ServeError
from trainyard.serve.requests.prompts import with_prompt_ids
from trainyard.serve.requests.request import Request, TracedRequest

__all__ = ["WORDS", "Endpoint", "RequestFormat", "check_requests"]

Endpoint = Literal["completions", "chat"]

_TEXT = """
time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work government number night point home water room
mother area money story fact month lot right study book eye job word business issue side kind head house
service friend father power hour game line end member law car city name team minute idea body back parent
face level office door health person art war history party result change morning reason research girl guy
moment air teacher force education foot boy age policy music market sense nation plan college interest death
course experience effect
"""
WORDS = tuple(_TEXT.split())
"""Of prompts that are texts: each is about one token of most models."""


@dataclass(frozen=True)
class RequestFormat:
    """How requests are written.

    Attributes
    ----------
    endpoint : of the API.
    model : that is asked.
    known_tokens : tokens of the model, of which prompts are drawn.
    sends_tokens : whether prompts are tokens; otherwise they are texts, of as many words.
    fixes_length : whether answers are to go on, after a token that would end them, until they are as long as in the
        trace; otherwise they are at most as long.
    includes_usage : whether the server is asked how many tokens it counted.
    """

    endpoint: Endpoint
    model: str
    known_tokens: tuple[int, ...] = ()
    sends_tokens: bool = False
    fixes_length: bool = True
    includes_usage: bool = True

    @property
    def path(self) -> str:
        """After the address of the server."""
        return "/v1/completions" if self.endpoint == "completions" else "/v1/chat/completions"

    def bodies(self, requests: Sequence[TracedRequest], seed: int) -> Iterator[bytes]:
        """What is sent for each request, in order; equal prefix blocks get equal text or tokens."""
        drawn_from = self.known_tokens if self.sends_tokens else range(len(WORDS))
        drawn = with_prompt_ids(requests, len(drawn_from), seed)
        for (given, _), (request, num_tokens) in zip(requests, drawn, strict=True):
            ids = given.prompt_ids or [drawn_from[place] for place in request.prompt_ids]
            assert isinstance(num_tokens, int)
            yield self._body(request, ids, num_tokens)

    def _body(self, request: Request, ids: Sequence[int], num_tokens: int) -> bytes:
        fields: dict[str, Any] = {"model": self.model, "max_tokens": num_tokens, "stream": True}
        prompt: Any = list(ids) if self.sends_tokens else " ".join(WORDS[each % len(WORDS)] for each in ids)
        if self.endpoint == "chat":
            fields["messages"] = [{"role": "user", "content": prompt}]
        else:
            fields["prompt"] = prompt
        if self.fixes_length:
            fields["ignore_eos"] = True
        if self.includes_usage:
            fields["stream_options"] = {"include_usage": True}
        for name, value in (
            ("user", request.client),
            ("priority", request.priority),
            ("cache_salt", request.cache_salt),
        ):
            if value:
                fields[name] = value
        return json.dumps(fields, separators=(",", ":")).encode()


def check_requests(requests: Sequence[TracedRequest]) -> None:
    """Refuse what cannot be sent.

    Raises
    ------
    ServeError
        If there are none, or one continues another one or wants several answers.
    """
    if not requests:
        raise ServeError("there are no requests to send; give a trace that has some")
    for request, output_tokens in requests:
        if request.parent:
            raise ServeError(
                f"request {request.name!r} continues {request.parent!r}; allowed are requests that come at a time of "
                "their own; leave it out"
            )
        if request.num_samples > 1 or not isinstance(output_tokens, int):
            raise ServeError(
                f"request {request.name!r} wants {request.num_samples} answers; allowed is 1; leave num_samples out"
            )
