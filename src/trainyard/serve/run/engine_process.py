"""A process that has an engine: the messages to and from it, and its loop."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence, Set
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from transformers.utils.logging import disable_progress_bar

from trainyard.serve.catalog import parse_policies
from trainyard.serve.errors import ServeError
from trainyard.serve.requests.request import Request
from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.embedding_model import EmbeddingForm
from trainyard.serve.run.engine import Engine, EngineOptions
from trainyard.serve.run.engine_adapters import AdapterStatus, LoadAdapter, UnloadAdapter
from trainyard.serve.run.model_shards import ModelShards
from trainyard.serve.run.outputs import Embedding, EngineState, NewToken, Refused
from trainyard.serve.run.pretrained import ModelLoader, load_causal_pretrained, refusing
from trainyard.serve.run.sampling import OutputForm, SamplingParams
from trainyard.serve.run.step_model import StepModel
from trainyard.serve.run.step_watch import StepProgress
from trainyard.serve.run.structured_outputs import StructuredOutputs, TokenConstraint
from trainyard.serve.run.tensor_parallel import TensorParallelModel
from trainyard.user_file import fault_in_user_file

__all__ = [
    "AddRequest",
    "CancelRequest",
    "EndSample",
    "EngineFactory",
    "EngineFailed",
    "EngineReady",
    "EngineSpec",
    "ResetPrefixCache",
    "ServingEngine",
    "StepOutputs",
    "StopEngine",
    "engine_main",
    "warm_up",
]


class ServingEngine(Protocol):
    """What the process of an engine needs of it; `Engine` and `EmbeddingEngine` are such."""

    @property
    def embedding_form(self) -> EmbeddingForm | None: ...

    @property
    def options(self) -> EngineOptions | None: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def has_work(self) -> bool: ...

    @property
    def state(self) -> EngineState: ...

    def add(
        self,
        request: Request,
        sampling: SamplingParams | None = None,
        stop_token_ids: Set[int] = frozenset(),
    ) -> int: ...

    def load_adapter(self, adapter: str, folder: Path) -> None: ...

    def unload_adapter(self, adapter: str) -> None: ...

    def reset_prefix_cache(self) -> None: ...

    def cancel(self, number: int) -> None: ...

    def end_sample(self, number: int, sample: int) -> None: ...

    def serves(self, number: int) -> bool: ...

    def report_progress(self, report: Callable[[], None]) -> None: ...

    def step(self) -> Sequence[NewToken | Embedding | Refused]: ...

    def close(self) -> None: ...


class EngineFactory(Protocol):
    """Makes the engine of a process; it is pickled, and the engine is not.

    Attributes
    ----------
    folder : with the tokenizer of the model.
    """

    @property
    def folder(self) -> Path: ...

    def make_engine(self) -> ServingEngine:
        """Make the engine."""
        ...


@dataclass(frozen=True)
class EngineSpec:
    """A model, policy and options, of which a process makes its engine.

    Attributes
    ----------
    folder : of the model, in Hugging Face form.
    policy : as `parse_policies` reads it; one policy.
    options : cache and limits.
    dtype : type of weights and cache.
    num_threads : of the process, and of each other that shares the model.
    shards : how several processes share the model; None for one.
    load : how each process makes the model of the folder.
    device : that computes it, such as cuda:1.
    """

    folder: Path
    policy: str
    options: EngineOptions
    dtype: torch.dtype = torch.float32
    num_threads: int = 1
    shards: ModelShards | None = None
    load: ModelLoader = load_causal_pretrained
    device: str = "cpu"

    def make_engine(self) -> Engine:
        """Load the model and make the engine; what is compiled at its first steps is compiled now."""
        torch.set_num_threads(self.num_threads)
        disable_progress_bar()
        ((_, policy),) = parse_policies(self.policy)
        refused = refusing(self.folder, "cannot be computed", "give another model, or a smaller cache")
        with refused, ExitStack() as failed:
            model = self._model()
            failed.callback(model.close)
            warm_up(Engine(model, policy, replace(self.options, num_blocks=64, max_model_len=None)))
            engine = Engine(model, policy, self.options, constrain=self._constrain)
            failed.pop_all()
        return engine

    def _model(self) -> StepModel:
        if self.shards is None:
            model: Any = self.load(self.folder, self.dtype)
            with refusing(self.folder, "cannot be computed"):
                return CausalModel(model.to(self.device), self.folder.name)
        return TensorParallelModel(self.folder, self.dtype, self.shards, self.num_threads, _end, self.load)

    def _constrain(self, form: OutputForm) -> TokenConstraint:
        return _structured_outputs(self.folder).constraint(form)


def _end(why: str) -> None:
    """End this process, which can compute no more; it is started again."""
    print(why, file=sys.stderr, flush=True)
    os._exit(1)


@cache
def _structured_outputs(folder: Path) -> StructuredOutputs:
    from trainyard.serve.run.model_tokenizer import ModelTokenizer

    return ModelTokenizer(folder).structured_outputs


class AddRequest(NamedTuple):
    """Serve a request; its tokens come back under the same id, or its embedding if no sampling is given."""

    request_id: int
    request: Request
    sampling: SamplingParams | None
    stop_token_ids: frozenset[int]


class CancelRequest(NamedTuple):
    """Serve a request no longer."""

    request_id: int


class EndSample(NamedTuple):
    """Generate no more tokens of one sample of a request."""

    request_id: int
    sample: int


class ResetPrefixCache(NamedTuple):
    """Let later requests reuse nothing that was computed before."""


class StopEngine(NamedTuple):
    """End the process."""


class EngineReady(NamedTuple):
    """The engine can serve: sequences of at most so many tokens. It gives embeddings of a form, or generates text with a
    cache."""

    max_model_len: int
    embedding_form: EmbeddingForm | None
    options: EngineOptions | None


class EngineFailed(NamedTuple):
    """The engine cannot serve, and the process ends."""

    why: str


class StepOutputs(NamedTuple):
    """What became of requests in a step, by id, and the state of the engine after it."""

    outputs: tuple[tuple[int, NewToken | Embedding | Refused], ...]
    state: EngineState


def engine_main(
    connection: Connection, make_engine: Callable[[], ServingEngine], progress: StepProgress
) -> None:
    """Serve what comes through a connection until its other end is closed.

    An error in a user's policy is one line: the reason why the engine cannot serve, or the last one of the process.

    Parameters
    ----------
    make_engine : such as `EngineSpec.make_engine`.
    progress : of the engine, which is counted by steps and layers.
    """
    is_ready = False
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: who began this process ends it
    try:
        engine = make_engine()
        with closing(engine):
            engine.report_progress(progress.advance)
            connection.send(EngineReady(engine.max_model_len, engine.embedding_form, engine.options))
            is_ready = True
            _Loop(connection, engine, progress).run()
    except ServeError as error:
        connection.send(EngineFailed(str(error)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        if not (said := fault_in_user_file(error)):
            raise
        if is_ready:
            sys.exit(f"error: {said}")
        connection.send(EngineFailed(said))


def warm_up(engine: Engine) -> None:
    """Compute one request of every way in which tokens are chosen."""
    drawn = SamplingParams(top_k=2, top_p=0.9, frequency_penalty=0.1, logprobs=1)
    for name, sampling in (("drawn", drawn), ("greedy", SamplingParams(temperature=0.0))):
        engine.add(Request(name, 0.0, 1, 2, prompt_ids=(0,)), sampling)
        while engine.has_work:
            engine.step()


class _Loop:
    """Takes what has come, computes a step, tells what it gave, and again; waits while there is nothing to do."""

    def __init__(self, connection: Connection, engine: ServingEngine, progress: StepProgress) -> None:
        self._connection, self._engine, self._progress = connection, engine, progress
        self._id_of: dict[int, int] = {}
        self._number_of: dict[int, int] = {}

    def run(self) -> None:
        connection, engine = self._connection, self._engine
        while True:
            while connection.poll(0 if engine.has_work else None):
                message = connection.recv()
                self._progress.advance()
                if isinstance(message, StopEngine):
                    return
                if isinstance(message, LoadAdapter):
                    connection.send(AdapterStatus(message.adapter, self._load_adapter(*message)))
                elif isinstance(message, UnloadAdapter):
                    engine.unload_adapter(message.adapter)
                elif isinstance(message, ResetPrefixCache):
                    engine.reset_prefix_cache()
                else:
                    self._take(message)
                if not engine.has_work:  # it is not told after a step
                    connection.send(StepOutputs((), engine.state))
            found = [(self._id_of[each.request], each) for each in engine.step()]
            for _, each in found:
                self._forget_ended(each.request)
            connection.send(StepOutputs(tuple(found), engine.state))
            self._progress.advance()

    def _load_adapter(self, adapter: str, folder: Path) -> str:
        """Read an adapter; return why that cannot be, or ""."""
        try:
            self._engine.load_adapter(adapter, folder)
        except ServeError as error:
            return str(error)
        except Exception as error:  # what is wrong with an adapter does not end the engine
            return f"{folder} cannot be read: {error!r}"
        return ""

    def _take(self, message: AddRequest | CancelRequest | EndSample) -> None:
        if not isinstance(message, AddRequest):
            number = self._number_of.get(message.request_id)
            if number is None:
                return
            if isinstance(message, CancelRequest):
                self._engine.cancel(number)
            else:
                self._engine.end_sample(number, message.sample)
            self._forget_ended(number)
            return
        request_id, request, sampling, stops = message
        try:
            number = self._engine.add(request, sampling, stops)
        except ServeError as error:
            refused = ((request_id, Refused(-1, str(error))),)
            self._connection.send(StepOutputs(refused, self._engine.state))
        else:
            self._id_of[number], self._number_of[request_id] = request_id, number

    def _forget_ended(self, number: int) -> None:
        if number in self._id_of and not self._engine.serves(number):
            del self._number_of[self._id_of.pop(number)]
