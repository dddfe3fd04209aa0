"""Middleware of all requests: each gets an id and a client, is refused while the server stops, and is logged."""

from __future__ import annotations

import logging
import re
import time
import uuid
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainyard.hardware.interface import is_loopback
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.api_keys import ApiKeys

__all__ = ["AccessMiddleware"]

_LOG = logging.getLogger("trainyard.server")
_WITHOUT_KEY = frozenset({"/health", "/ready"})
_WHILE_DRAINING = _WITHOUT_KEY | {"/metrics", "/version"}
_POLLED = _WITHOUT_KEY | {"/metrics"}
_USUAL = frozenset({200, 503})
"""Paths that probes and Prometheus ask for all the time, and the answers to them that are not logged."""
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_RETRY_AFTER_S = 5


class AccessMiddleware:
    """Lets requests in, each with its client and its id in ``request.state``.

    Parameters
    ----------
    app : the application that gets these requests.
    keys : of the clients that are let in.

    Attributes
    ----------
    is_draining : whether no more requests are taken.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app, self._keys = app, keys
        self.is_draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        began_s, status = time.monotonic(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        client = ""
        try:
            client = self._client(scope["path"], headers)
            scope.setdefault("state", {}).update(client=client, request_id=request_id)
            await self._app(scope, receive, send_with_id)
        except ApiError as error:
            await error.response(scope["path"])(scope, receive, send_with_id)
        finally:
            if scope["path"] not in _POLLED or status not in _USUAL:
                # Paths are quoted, so that none makes a line of its own.
                took_s = time.monotonic() - began_s
                _LOG.info(
                    "%s %r %s %.3f s id=%s client=%r",
                    scope["method"],
                    scope["path"],
                    status,
                    took_s,
                    request_id,
                    client,
                )

    def _client(self, path: str, headers: Headers) -> str:
        """Return the name of the client that sends a request.

        Raises
        ------
        ApiError
            If the client may not ask, or the server takes no more requests.
        """
        if path in _WITHOUT_KEY:
            return ""
        if not self._keys.by_key:
            _require_loopback(headers.get("host", ""))
        client = self._keys.of(headers.get("authorization") or _bearer(headers.get("x-api-key", "")))
        if self.is_draining and path not in _WHILE_DRAINING:
            told = "the server is stopping and takes no more requests; send the request to another one"
            raise ApiError(503, told, code="stopping", retry_after_s=_RETRY_AFTER_S)
        return client


def _bearer(key: str) -> str:
    """Return a key of the header of Anthropic's clients as ``Authorization`` has it; "" for none."""
    return f"Bearer {key}" if key else ""


def _require_loopback(named: str) -> None:
    """Somebody else's page, open in a browser here, gets here under a name of its own."""
    try:
        host = urlsplit(f"//{named}").hostname or ""
    except ValueError as error:
        raise ApiError(400, f"header Host is NAME, ADDRESS or [ADDRESS], not {named!r}") from error
    if not is_loopback(host):
        raise ApiError(403, f"without keys this server answers as localhost only, not as {host!r}")
