"""The HTTP interface of the server.

=============================== ======================================================================================
POST /v1/chat/completions       the next message of a conversation
POST /v1/completions            what follows a text or tokens
POST /v1/messages               the next message, by the API of Anthropic
POST /v1/responses              the next message, by OpenAI's API for responses
POST /v1/embeddings             vectors of texts, of models that have a pooling configuration
GET /v1/models, /v1/models/NAME the models that are served
POST /v1/load_lora_adapter      a LoRA adapter, as a model of its own; /v1/unload_lora_adapter, too. Only if allowed
POST /reset_prefix_cache        requests that come later reuse nothing that was computed before, of any model
POST /tokenize, /detokenize     tokens of a text or a conversation; the text of tokens
GET /version                    of Trainyard
GET /metrics                    for Prometheus
GET /health, /ready             whether the process lives; whether all models can be asked. These two need no key
=============================== ======================================================================================

Answers that are no success are ``{"error": {"message", "type", "param", "code"}}``; those of /v1/messages are
``{"type": "error", "error": {"type", "message"}}``.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from trainyard.distribution import VERSION
from trainyard.reading import listed, shown
from trainyard.serve.errors import ServeError
from trainyard.serve.run.server.adapter_requests import (
    LoadAdapterRequest,
    UnloadAdapterRequest,
    adapter_folder,
    require_adapter_root,
)
from trainyard.serve.run.server.answer_writer import AnswerWriter
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.api_keys import ApiKeys
from trainyard.serve.run.server.api_requests import Body, ChatRequest, CompletionRequest
from trainyard.serve.run.server.body_reader import BodyReader
from trainyard.serve.run.server.embedding_requests import (
    EmbeddingRequest,
    check_dimensions,
    embedding_texts,
    to_embedding_requests,
)
from trainyard.serve.run.server.embedding_response import EmbeddingResponse
from trainyard.serve.run.server.engine_requests import (
    chat_prompt_tokens,
    check_prompts,
    check_request,
    completion_prompt_tokens,
    echoed_prompts,
    to_engine_requests,
)
from trainyard.serve.run.server.generation_response import GenerationResponse
from trainyard.serve.run.server.generation_stream import GenerationStream
from trainyard.serve.run.server.hosted_model import HostedModel
from trainyard.serve.run.server.messages.requests import MessagesRequest
from trainyard.serve.run.server.messages.writer import MessageWriter
from trainyard.serve.run.server.metrics import Metrics
from trainyard.serve.run.server.middleware import AccessMiddleware
from trainyard.serve.run.server.queue_limit import QueueLimit
from trainyard.serve.run.server.response_writer import ChatResponseWriter, CompletionResponseWriter
from trainyard.serve.run.server.responses.requests import ResponsesRequest
from trainyard.serve.run.server.responses.writer import ResponsesWriter
from trainyard.serve.run.server.sampling_requests import bad_word_tokens, check_constraint
from trainyard.serve.run.server.served_models import ServedModels
from trainyard.serve.run.server.tokenizer_requests import (
    DetokenizeRequest,
    TokenizeRequest,
    detokenized,
    tokenized,
)
from trainyard.serve.run.server.tools.tool_use import ToolAnswers

__all__ = ["ApiServer", "ServerLimits"]

_LOG = logging.getLogger("trainyard.server")
_RETRY_AFTER_S = 5


@dataclass(frozen=True)
class ServerLimits:
    """Limits on what clients may use of a server.

    Attributes
    ----------
    max_queued_requests, max_queued_tokens : that wait for their first token, for each model; None for any number.
    max_body_bytes : of a request.
    deadline_s : for all answers to a request; infinite for none.
    max_adapters : that are loaded at once.
    """

    max_queued_requests: int | None = 1024
    max_queued_tokens: int | None = None
    max_body_bytes: int = 8 * 2**20
    deadline_s: float = float("inf")
    max_adapters: int = 64


class ApiServer:
    """The API of the models of a server, as an ASGI application.

    Parameters
    ----------
    models : by name.
    keys : who may ask.
    adapter_root : folder below which clients may name adapters to load; None if they may not load and unload any.
    logs_prompts : whether what clients send is logged; otherwise it never is.

    Attributes
    ----------
    app : the application.
    served : the models, and the adapters that are loaded on them.
    num_open : requests for text that are not answered yet.
    """

    def __init__(
        self,
        models: Mapping[str, HostedModel],
        keys: ApiKeys | None = None,
        limits: ServerLimits | None = None,
        *,
        adapter_root: Path | None = None,
        logs_prompts: bool = False,
    ) -> None:
        self._limits, self._adapter_root, self._logs_prompts = (
            limits or ServerLimits(),
            adapter_root,
            logs_prompts,
        )
        self.served = ServedModels(models, self._limits.max_adapters)
        self._queues = {
            name: QueueLimit(self._limits.max_queued_requests, self._limits.max_queued_tokens)
            for name in models
        }
        self._bodies = BodyReader(self._limits.max_body_bytes)
        self.num_open = 0
        self.metrics = Metrics({name: model.engine for name, model in models.items()}, self._queues)
        self.app = AccessMiddleware(self._routes(), keys or ApiKeys())

    async def drain(self, within_s: float) -> bool:
        """Take no more requests; return whether those that run ended in time."""
        self.app.is_draining = True
        end_s = time.monotonic() + within_s
        while self.num_open and time.monotonic() < end_s:
            await asyncio.sleep(0.05)
        return not self.num_open

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        return await self._chat(request, await self._read_body(request, ChatRequest), ChatResponseWriter)

    async def messages(self, request: Request) -> Response:
        """POST /v1/messages."""
        body = await self._read_body(request, MessagesRequest)
        with body.telling_own_names():
            return await self._chat(request, body.chat, partial(MessageWriter, max_tokens=body.max_tokens))

    async def responses(self, request: Request) -> Response:
        """POST /v1/responses."""
        body = await self._read_body(request, ResponsesRequest)
        with body.telling_own_names():
            return await self._chat(request, body.chat, partial(ResponsesWriter, request=body))

    async def _chat(
        self, request: Request, body: ChatRequest, make_writer: Callable[..., AnswerWriter]
    ) -> Response:
        """Answer a conversation, whatever API it comes by."""
        model = self.served.find_ready(body.model)
        model.require_text()
        check_request(body, model)
        tools = body.tool_use.answers(model.tool_call_parser, model.tokenizer, body.json_schema)
        await check_constraint(body, model, tools)
        prompts = await chat_prompt_tokens(body, model)
        words = await bad_word_tokens(body, model)
        return self._generate(request, body, model, prompts, make_writer, tools, bad_words=words)

    async def complete(self, request: Request) -> Response:
        """POST /v1/completions."""
        body = await self._read_body(request, CompletionRequest)
        model = self.served.find_ready(body.model)
        model.require_text()
        check_request(body, model)
        check_prompts(body, model)
        await check_constraint(body, model, ToolAnswers())
        prompts = await completion_prompt_tokens(body, model)
        words, echoed = await bad_word_tokens(body, model), await echoed_prompts(body, prompts, model)
        make_writer = partial(
            CompletionResponseWriter, num_echoed_logprobs=body.logprobs if body.echo else None
        )
        return self._generate(
            request, body, model, prompts, make_writer, ToolAnswers(), echoed=echoed, bad_words=words
        )

    async def embed(self, request: Request) -> Response:
        """POST /v1/embeddings."""
        body = await self._read_body(request, EmbeddingRequest)
        model = self.served.find_ready(body.model)
        check_dimensions(body, model.require_embeddings(), model.name)
        texts = await embedding_texts(body, model)
        self._log_prompts(request, model, texts)
        given = to_embedding_requests(texts, model.name, request.state.client or body.user, uuid.uuid4().hex)
        queue, deadline_s = self._queues[model.name], self._limits.deadline_s
        response = EmbeddingResponse(model, body, given, queue, self.metrics, deadline_s)
        return _CountedResponse(self, response)

    async def models(self) -> Response:
        """GET /v1/models."""
        return JSONResponse({"object": "list", "data": self.served.cards})

    async def model(self, name: str) -> Response:
        """GET /v1/models/NAME."""
        return JSONResponse(self.served.card(name))

    async def load_adapter(self, request: Request) -> Response:
        """POST /v1/load_lora_adapter."""
        body = await self._read_body(request, LoadAdapterRequest)
        folder = adapter_folder(body.lora_path, self._adapter_root)
        self.served.require_begun()
        try:
            await self.served.load_adapter(body.lora_name, folder, body.base_model_name)
        except ServeError as error:
            raise ApiError.of_engine(error, "lora_path") from error
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def unload_adapter(self, request: Request) -> Response:
        """POST /v1/unload_lora_adapter."""
        body = await self._read_body(request, UnloadAdapterRequest)
        require_adapter_root(self._adapter_root)
        self.served.unload_adapter(body.lora_name)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    async def reset_prefix_cache(self) -> Response:
        """POST /reset_prefix_cache."""
        for model in self.served.base.values():
            model.engine.reset_prefix_cache()
        return Response()

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize."""
        body = await self._read_body(request, TokenizeRequest)
        model = self.served.find_ready(body.model or self.served.only_name())
        found = await tokenized(body, model)
        most = model.engine.max_model_len
        return JSONResponse({"count": len(found), "max_model_len": most, "tokens": list(found)})

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize."""
        body = await self._read_body(request, DetokenizeRequest)
        model = self.served.find(body.model or self.served.only_name())
        return JSONResponse({"prompt": await detokenized(body, model)})

    async def version(self) -> Response:
        """GET /version."""
        return JSONResponse({"version": VERSION})

    async def get_metrics(self) -> Response:
        """GET /metrics."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def health(self) -> Response:
        """GET /health."""
        return JSONResponse({"status": "ok"})

    async def ready(self) -> Response:
        """GET /ready."""
        missing = self.served.missing
        if missing or self.app.is_draining:
            why = "the server is stopping" if self.app.is_draining else f"not ready: {listed(missing)}"
            return JSONResponse({"status": why}, 503, {"Retry-After": str(_RETRY_AFTER_S)})
        failed = sorted(self.served.failed)
        return JSONResponse({"status": "ready"} | ({"failed": failed} if failed else {}))

    def _routes(self) -> FastAPI:
        app = FastAPI(title="Trainyard", docs_url=None, redoc_url=None, openapi_url=None)
        for method, path, act in (
            ("POST", "/v1/chat/completions", self.chat),
            ("POST", "/v1/completions", self.complete),
            ("POST", "/v1/messages", self.messages),
            ("POST", "/v1/responses", self.responses),
            ("POST", "/v1/embeddings", self.embed),
            ("GET", "/v1/models", self.models),
            ("GET", "/v1/models/{name:path}", self.model),
            ("POST", "/v1/load_lora_adapter", self.load_adapter),
            ("POST", "/v1/unload_lora_adapter", self.unload_adapter),
            ("POST", "/reset_prefix_cache", self.reset_prefix_cache),
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

    def _generate(
        self,
        request: Request,
        body: ChatRequest | CompletionRequest,
        model: HostedModel,
        prompts: tuple[tuple[int, ...], ...],
        make_writer: Callable[..., AnswerWriter],
        tools: ToolAnswers,
        *,
        echoed: tuple[str, ...] = (),
        bad_words: tuple[tuple[int, ...], ...] = (),
    ) -> Response:
        response_id = uuid.uuid4().hex
        given = to_engine_requests(
            body, prompts, model, request.state.client, response_id, tools, echoed, bad_words
        )
        self._log_prompts(request, model, prompts)
        generation = GenerationStream(
            model, given, self._queues[model.base], self.metrics, self._limits.deadline_s
        )
        writer = make_writer(
            response_id,
            model.name,
            model.tokenizer,
            int(time.time()),
            body.num_logprobs is not None,
            body.usage_in_stream,
            body.prompt_logprobs,
        )
        return _CountedResponse(self, GenerationResponse(generation, writer, streams=body.stream))

    def _log_prompts(
        self, request: Request, model: HostedModel, prompts: tuple[tuple[int, ...], ...]
    ) -> None:
        if self._logs_prompts:
            texts = [model.tokenizer.decode(prompt) for prompt in prompts]
            _LOG.info("id=%s prompts=%r", request.state.request_id, texts)

    async def _read_body(self, request: Request, kind: type[Body]) -> Body:
        body = await self._bodies.read(request, kind)
        request.state.model_name = self.served.base_of(getattr(body, "model", ""))
        return body

    async def _refused(self, request: Request, error: Any) -> Response:
        found: ApiError = error
        if isinstance(error, HTTPException):
            found = ApiError(error.status_code, _error_message(request, error))
        self.metrics.rejected(getattr(request.state, "model_name", ""), found.status)
        return found.response(request.url.path)

    async def _failed(self, request: Request, error: Exception) -> Response:
        return ApiError.of_server().response(request.url.path)


class _CountedResponse(Response):
    """Counts as open until it is answered."""

    def __init__(self, api: ApiServer, response: Response) -> None:
        super().__init__()
        self._api, self._response = api, response
        api.num_open += 1

    async def __call__(self, *given: Any) -> None:
        try:
            await self._response(*given)
        finally:
            self._api.num_open -= 1


def _error_message(request: Request, error: HTTPException) -> str:
    if error.status_code == 404:
        return f"there is no {shown(request.url.path)} here; see the reference of `trainyard serve run`"
    if error.status_code == 405:
        return f"{request.method} is not for {shown(request.url.path)}; use the other of GET and POST"
    return str(error.detail)
