"""A model that a server has: its tokenizer, and the engine that computes it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Protocol

from trainyard.serve.requests.request import Request
from trainyard.serve.run.model_tokenizer import ModelTokenizer
from trainyard.serve.run.outputs import EngineState, NewToken
from trainyard.serve.run.sampling import SamplingParams

__all__ = ["AsyncEngine", "HostedModel"]


class AsyncEngine(Protocol):
    """What the server needs of an engine; `EngineClient` is one."""

    max_model_len: int
    num_restarts: int
    state: EngineState

    @property
    def is_ready(self) -> bool: ...

    def generate(
        self,
        request: Request,
        sampling: SamplingParams,
        stop_token_ids: frozenset[int] = frozenset(),
        is_last: Callable[[NewToken], bool] = lambda token: False,
    ) -> AsyncGenerator[NewToken, None]: ...


@dataclass(frozen=True, eq=False)
class HostedModel:
    """A model that a server has.

    Attributes
    ----------
    name : by which requests call it.
    tokenizer : of its text.
    engine : that computes it.
    tool_call_parser : name of the format in which it writes calls of tools; "" if that is not known.
    created_s : when the server began to serve it, in seconds since 1970.
    """

    name: str
    tokenizer: ModelTokenizer
    engine: AsyncEngine
    tool_call_parser: str = ""
    created_s: int = field(default_factory=lambda: int(time.time()))
