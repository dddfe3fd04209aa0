"""A model that a server has: its tokenizer, and the engine that computes it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from starlette.concurrency import run_in_threadpool

from trainyard.serve.errors import ServeError
from trainyard.serve.requests.request import Request
from trainyard.serve.run.embedding_model import EmbeddingForm
from trainyard.serve.run.engine import EngineOptions
from trainyard.serve.run.limited_tokenizer import LimitedTokenizer
from trainyard.serve.run.model_tokenizer import ModelTokenizer
from trainyard.serve.run.outputs import EngineState, Floats, NewToken
from trainyard.serve.run.sampling import SamplingParams
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.tokenizer_work import TokenizerTask

__all__ = ["AsyncEngine", "HostedModel", "ReplicaStatus"]

T = TypeVar("T")


class ReplicaStatus(Protocol):
    """What the server tells of each replica of a model."""

    @property
    def state(self) -> EngineState: ...

    @property
    def num_restarts(self) -> int: ...

    @property
    def num_stuck(self) -> int: ...

    @property
    def options(self) -> EngineOptions | None: ...

    @property
    def is_ready(self) -> bool: ...


class AsyncEngine(Protocol):
    """What the server needs of the engines of a model; `RoutedEngines` is such."""

    @property
    def replicas(self) -> Sequence[ReplicaStatus]: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def embedding_form(self) -> EmbeddingForm | None: ...

    @property
    def is_ready(self) -> bool: ...

    def generate(
        self,
        request: Request,
        sampling: SamplingParams,
        stop_token_ids: frozenset[int] = frozenset(),
        is_last: Callable[[NewToken], bool] = lambda token: False,
        routed: Callable[[int], None] = lambda number: None,
    ) -> AsyncGenerator[NewToken, None]: ...

    async def embed(
        self, request: Request, routed: Callable[[int], None] = lambda number: None
    ) -> Floats: ...

    def reset_prefix_cache(self) -> None: ...

    async def load_adapter(self, name: str, folder: Path) -> str: ...

    def unload_adapter(self, adapter: str) -> None: ...


@dataclass(frozen=True, eq=False)
class HostedModel:
    """A model that a server has.

    Attributes
    ----------
    name : by which requests call it.
    tokenizer : of its answers.
    engine : that computes it.
    tool_call_parser : name of the format in which it writes calls of tools; "" if that is not known.
    parent : name of the model whose adapter it is; "" if it is none.
    adapter : by which name its engine knows it, if it is one.
    reads_priority : whether the policy of its engine may depend on the priorities of requests.
    limited_tokenizer : does what requests ask of the tokenizer; None if a thread of this process does it without limits.
    reasoning_parser : name of the format in which it writes its reasoning; "" if it has none, or that is not known.
    created_s : when the server began to serve it, in seconds since 1970.
    """

    name: str
    tokenizer: ModelTokenizer
    engine: AsyncEngine
    tool_call_parser: str = ""
    parent: str = ""
    adapter: str = ""
    reads_priority: bool = True
    limited_tokenizer: LimitedTokenizer | None = None
    reasoning_parser: str = ""
    created_s: int = field(default_factory=lambda: int(time.time()))

    @property
    def base(self) -> str:
        """Name of the model, without an adapter."""
        return self.parent or self.name

    async def tokenizer_work(self, work: TokenizerTask[T], param: str) -> T:
        """Do what a field of a request asks of the tokenizer.

        Raises
        ------
        ApiError
            If it cannot be done.
        """
        try:
            if self.limited_tokenizer is None:
                return await run_in_threadpool(work.do, self.tokenizer)
            return await self.limited_tokenizer.do(work)
        except ServeError as error:
            raise ApiError.of_tokenizer(error, param) from error

    def require_text(self) -> None:
        """Refuse to generate text with a model that does not.

        Raises
        ------
        ApiError
            If it gives embeddings.
        """
        if self.engine.embedding_form is not None:
            told = f"{self.name} gives embeddings and generates no text; use /v1/embeddings, or another model"
            raise ApiError(400, told, param="model", code="no_text")

    def require_embeddings(self) -> EmbeddingForm:
        """What its embeddings are.

        Raises
        ------
        ApiError
            If it generates text.
        """
        if self.engine.embedding_form is None:
            told = f"{self.name} generates text and gives no embeddings: its folder has no pooling configuration "
            told += "(modules.json); use /v1/completions, or another model"
            raise ApiError(400, told, param="model", code="no_embeddings")
        return self.engine.embedding_form
