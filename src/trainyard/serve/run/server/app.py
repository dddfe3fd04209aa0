"""The HTTP interface of the server.

=============================== ======================================================================================
POST /v1/chat/completions       the next message of a conversation
POST /v1/completions            what follows a text or tokens
GET /v1/models, /v1/models/NAME the models that are served
POST /tokenize, /detokenize     tokens of a text or a conversation; the text of tokens
GET /version                    of Trainyard
GET /metrics                    for Prometheus
GET /health, /ready             whether the process lives; whether all models can be asked. These two need no key
=============================== ======================================================================================

Answers that are no success are ``{"error": {"message", "type", "param", "code"}}``.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from trainyard.reading import listed, shown
from trainyard.serve.errors import ServeError
from trainyard.serve.run.model_text import ModelText
from trainyard.serve.run.server.answering import Answering
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.api_keys import ApiKeys
from trainyard.serve.run.server.asked import chat_tokens, check_format, completion_tokens, read_asked
from trainyard.serve.run.server.documents import ChatDocuments, CompletionDocuments, Documents
from trainyard.serve.run.server.forms import (
    ChatForm,
    CompletionForm,
    DetokenizeForm,
    TokenizeForm,
    read_form,
)
from trainyard.serve.run.server.gate import Gate
from trainyard.serve.run.server.generation import Generation
from trainyard.serve.run.server.metrics import Metrics
from trainyard.serve.run.server.queue_limit import QueueLimit
from trainyard.serve.run.server.served_model import ServedModel

__all__ = ["Api", "ServerLimits"]

_LOG = logging.getLogger("trainyard.server")
_BODY_S = 30.0
_AGAIN_S = 5


@dataclass(frozen=True)
class ServerLimits:
    """How much clients may take of a server.

    Attributes
    ----------
    max_queued_requests, max_queued_tokens : that wait for their first token, for each model; None for any number.
    max_body_bytes : of a request.
    deadline_s : for all answers to a request; infinite for none.
    """

    max_queued_requests: int | None = 1024
    max_queued_tokens: int | None = None
    max_body_bytes: int = 8 * 2**20
    deadline_s: float = float("inf")


class Api:
    """What can be asked of a server.

    Parameters
    ----------
    models : by name.
    keys : who may ask.
    logs_prompts : whether what clients send is logged; otherwise it never is.
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        keys: ApiKeys | None = None,
        limits: ServerLimits | None = None,
        *,
        logs_prompts: bool = False,
    ) -> None:
        self._models, self._limits, self._logs_prompts = models, limits or ServerLimits(), logs_prompts
        self._queues = {
            name: QueueLimit(self._limits.max_queued_requests, self._limits.max_queued_tokens)
            for name in models
        }
        self.num_open = 0
        self.metrics = Metrics({name: _state_of(model) for name, model in models.items()})
        self.app = Gate(self._routes(), keys or ApiKeys())

    async def drain(self, within_s: float) -> bool:
        """Take no more requests; return whether those that run ended in time."""
        self.app.is_draining = True
        end_s = time.monotonic() + within_s
        while self.num_open and time.monotonic() < end_s:
            await asyncio.sleep(0.05)
        return not self.num_open

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        form = await self._form(request, ChatForm)
        model = self._ready_model(form.model)
        prompts = await run_in_threadpool(_checked, chat_tokens, form, model)
        return self._answering(request, form, model, prompts, ChatDocuments)

    async def complete(self, request: Request) -> Response:
        """POST /v1/completions."""
        form = await self._form(request, CompletionForm)
        model = self._ready_model(form.model)
        prompts = await run_in_threadpool(_checked, completion_tokens, form, model)
        return self._answering(request, form, model, prompts, CompletionDocuments)

    async def models(self) -> Response:
        """GET /v1/models."""
        return JSONResponse({"object": "list", "data": [_card(model) for model in self._models.values()]})

    async def model(self, name: str) -> Response:
        """GET /v1/models/NAME."""
        return JSONResponse(_card(self._model(name)))

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize."""
        form = await self._form(request, TokenizeForm)
        model = self._ready_model(form.model or self._only())
        if (form.prompt is None) == (form.messages is None):
            raise ApiError(400, "give either prompt or messages", param="prompt")

        def tokens() -> tuple[int, ...]:
            if form.messages is None:
                return model.text.encode(form.prompt or "", special=form.add_special_tokens is not False)
            messages = [each.model_dump() for each in form.messages]
            prompt = model.text.chat_prompt(messages, generates=form.add_generation_prompt)
            return model.text.encode(prompt, special=bool(form.add_special_tokens))

        try:
            found = await run_in_threadpool(tokens)
        except ServeError as error:
            raise ApiError(400, str(error), param="messages") from error
        most = model.engine.max_model_len
        return JSONResponse({"count": len(found), "max_model_len": most, "tokens": list(found)})

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize."""
        form = await self._form(request, DetokenizeForm)
        text = self._model(form.model or self._only()).text
        if form.tokens and not 0 <= min(form.tokens) <= max(form.tokens) < text.vocabulary:
            told = (
                f"tokens are {min(form.tokens)} to {max(form.tokens)}; allowed are 0 to {text.vocabulary - 1}"
            )
            raise ApiError(400, told, param="tokens")
        return JSONResponse({"prompt": await run_in_threadpool(text.decode, form.tokens)})

    async def version(self) -> Response:
        """GET /version."""
        return JSONResponse({"version": version("trainyard")})

    async def get_metrics(self) -> Response:
        """GET /metrics."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def health(self) -> Response:
        """GET /health."""
        return JSONResponse({"status": "ok"})

    async def ready(self) -> Response:
        """GET /ready."""
        missing = [name for name, model in self._models.items() if not model.engine.is_ready]
        if missing or self.app.is_draining:
            why = "the server is stopping" if self.app.is_draining else f"not ready: {listed(missing)}"
            return JSONResponse({"status": why}, 503, {"Retry-After": str(_AGAIN_S)})
        return JSONResponse({"status": "ready"})

    def _routes(self) -> FastAPI:
        app = FastAPI(title="Trainyard", docs_url=None, redoc_url=None, openapi_url=None)
        for method, path, act in (
            ("POST", "/v1/chat/completions", self.chat),
            ("POST", "/v1/completions", self.complete),
            ("GET", "/v1/models", self.models),
            ("GET", "/v1/models/{name:path}", self.model),
            ("POST", "/tokenize", self.tokenize),
            ("POST", "/detokenize", self.detokenize),
            ("GET", "/version", self.version),
            ("GET", "/metrics", self.get_metrics),
            ("GET", "/health", self.health),
            ("GET", "/ready", self.ready),
        ):
            app.add_api_route(path, act, methods=[method])
        app.add_exception_handler(ApiError, self._refused)
        app.add_exception_handler(HTTPException, self._refused)
        app.add_exception_handler(Exception, self._failed)
        return app

    def _answering(
        self,
        request: Request,
        form: ChatForm | CompletionForm,
        model: ServedModel,
        prompts: tuple[tuple[int, ...], ...],
        documents: type[Documents],
    ) -> Response:
        name = uuid.uuid4().hex
        asked = read_asked(form, prompts, model.text, model.engine, request.state.client, name)
        if self._logs_prompts:
            _LOG.info("id=%s prompts=%r", request.state.request_name, [model.text.decode(p) for p in prompts])
        generation = Generation(model, asked, self._queues[model.name], self.metrics, self._limits.deadline_s)
        writes = documents(
            name, model.name, model.text, int(time.time()), form.num_logprobs is not None, form.includes_usage
        )
        return _Counted(self, generation, writes, streams=form.stream)

    async def _form(self, request: Request, kind: Any) -> Any:
        """Read the body.

        Raises
        ------
        ApiError
            If it is too large, comes too slowly, or is none that is allowed.
        """
        given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if given != "application/json":  # also keeps forms of other pages out, which cannot send such types
            raise ApiError(415, f"the body is {given or 'nothing'!r}; send Content-Type: application/json")
        most, body = self._limits.max_body_bytes, bytearray()
        try:
            async with asyncio.timeout(_BODY_S):
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        raise ApiError(
                            413, f"the body has more than {most} bytes, which is allowed; shorten it"
                        )
        except TimeoutError:
            raise ApiError(408, f"the body did not come within {_BODY_S:g} s; send it at once") from None
        except ClientDisconnect:
            raise ApiError(400, "the connection was closed before the end of the body") from None
        form = read_form(kind, bytes(body))
        request.state.model_name = form.model if form.model in self._models else ""
        return form

    def _model(self, name: str) -> ServedModel:
        if name not in self._models:
            raise ApiError(
                404,
                f"no model {shown(name)} is served here; known are {listed(self._models)}",
                param="model",
                code="model_not_found",
            )
        return self._models[name]

    def _ready_model(self, name: str) -> ServedModel:
        model = self._model(name)
        if not model.engine.is_ready:
            told = f"the engine of {name} is not ready; send the request again later"
            raise ApiError(503, told, code="not_ready", retry_s=_AGAIN_S)
        return model

    def _only(self) -> str:
        """The name of the model, if there is one only."""
        if len(self._models) > 1:
            raise ApiError(400, f"model is missing; known are {listed(self._models)}", param="model")
        return next(iter(self._models))

    async def _refused(self, request: Request, error: Any) -> Response:
        found = error if isinstance(error, ApiError) else ApiError(error.status_code, _said(request, error))
        self.metrics.rejected(getattr(request.state, "model_name", ""), found.status)
        return found.response()

    async def _failed(self, request: Request, error: Exception) -> Response:
        return ApiError.of_server().response()


class _Counted(Answering):
    """Counts as open until it is answered."""

    def __init__(self, api: Api, generation: Generation, documents: Documents, *, streams: bool) -> None:
        super().__init__(generation, documents, streams=streams)
        self._api = api
        api.num_open += 1

    async def __call__(self, *given: Any) -> None:
        try:
            await super().__call__(*given)
        finally:
            self._api.num_open -= 1


def _checked(
    tokens: Callable[[Any, ModelText], tuple[tuple[int, ...], ...]], form: Any, model: ServedModel
) -> tuple[tuple[int, ...], ...]:
    """What may take long, and so is not done where all requests are answered: the format, and the prompts' tokens."""
    check_format(form, model.text)
    return tokens(form, model.text)


def _state_of(model: ServedModel) -> Any:
    return lambda: (model.engine.state, model.engine.num_restarts)


def _card(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created_s,
        "owned_by": "trainyard",
        "max_model_len": model.engine.max_model_len or None,
    }


def _said(request: Request, error: HTTPException) -> str:
    if error.status_code == 404:
        return f"there is no {shown(request.url.path)} here; see the reference of `trainyard serve run`"
    if error.status_code == 405:
        return f"{request.method} is not for {shown(request.url.path)}; use the other of GET and POST"
    return str(error.detail)
