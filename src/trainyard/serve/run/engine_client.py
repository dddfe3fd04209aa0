"""The side of an engine's process that asyncio sees: requests go in, their tokens or embeddings come back."""

from __future__ import annotations

import asyncio
import atexit
import logging
import math
import multiprocessing
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from trainyard.processes import ProcessLimits, kill_tree
from trainyard.serve.errors import ModelFaultError, ServeError
from trainyard.serve.requests.request import Request
from trainyard.serve.run.embedding_model import EmbeddingForm
from trainyard.serve.run.engine import EngineOptions
from trainyard.serve.run.engine_adapters import (
    AdapterStatus,
    EngineAdapters,
    EngineLostError,
    LoadAdapter,
    UnloadAdapter,
)
from trainyard.serve.run.engine_process import (
    AddRequest,
    CancelRequest,
    EndSample,
    EngineFailed,
    EngineReady,
    ResetPrefixCache,
    ServingEngine,
    StepOutputs,
    StopEngine,
    engine_main,
)
from trainyard.serve.run.outputs import Embedding, EngineState, Floats, NewToken, Refused
from trainyard.serve.run.sampling import SamplingParams
from trainyard.serve.run.step_watch import STEP_LIMITS, StepProgress, StepWatch

__all__ = ["EngineClient", "EngineLostError"]


_LOG = logging.getLogger("trainyard.server")
_LOOK_S = 1.0
_MOST_FAILED_STARTS = 3  # one after another, of an engine that could serve before

_Message = (
    AddRequest | CancelRequest | EndSample | LoadAdapter | UnloadAdapter | ResetPrefixCache | StopEngine
)


@dataclass
class _Open:
    """A request that is being served.

    Attributes
    ----------
    left : its samples that have not ended.
    has_failed : whether it was refused or lost, so that no engine has it.
    """

    message: AddRequest
    left: set[int]
    queue: asyncio.Queue[NewToken | Embedding | ServeError] = field(default_factory=asyncio.Queue)
    has_failed: bool = False

    async def receive(self) -> NewToken | Embedding:
        """The next of what comes; an error that comes is raised."""
        found = await self.queue.get()
        if isinstance(found, ServeError):
            self.has_failed = True
            raise found
        return found


class EngineClient:
    """Runs an engine in a process of its own, and starts it again if that process ends.

    Parameters
    ----------
    make_engine : makes the engine in the other process; it is pickled.
    limits : on the process, as long as it has work, between two steps or layers of a step. One that passes them is ended
        and started again. While it starts, only its time without CPU is limited.

    Attributes
    ----------
    num_stuck : how often the process did no step and was ended.
    options : of its engine, once it has been ready; None for embeddings.
    """

    def __init__(self, make_engine: Callable[[], ServingEngine], limits: ProcessLimits = STEP_LIMITS) -> None:
        self._make_engine, self._limits = make_engine, limits
        self._open: dict[int, _Open] = {}
        self._next_id = 0
        self._ready = asyncio.Event()
        self._is_closing, self._is_starting, self._num_failed_starts = False, True, 0
        self._failure, self._stuck = "", ""
        self._messages: SimpleQueue[_Message] = SimpleQueue()
        self._adapters = EngineAdapters(self._send_if_ready)
        self.max_model_len = 0
        self.embedding_form: EmbeddingForm | None = None
        self.options: EngineOptions | None = None
        self.num_restarts = self.num_stuck = 0
        self.state = EngineState()

    @property
    def is_ready(self) -> bool:
        """Whether requests are computed now."""
        return self._ready.is_set() and not self._failure

    @property
    def has_failed(self) -> bool:
        """Whether its process could not be started, and is not started again."""
        return bool(self._failure)

    async def start(self) -> None:
        """Start the process, and wait until it can serve.

        Raises
        ------
        ServeError
            If it cannot; the message says why.
        """
        atexit.register(self._kill)
        self._begin()
        await self._ready.wait()
        if self._failure:
            raise ServeError(self._failure)

    async def generate(
        self,
        request: Request,
        sampling: SamplingParams,
        stop_token_ids: frozenset[int] = frozenset(),
        is_last: Callable[[NewToken], bool] = lambda token: False,
    ) -> AsyncGenerator[NewToken, None]:
        """Tokens of all samples of a request, in the order in which they come.

        If the iterator is closed, the request is cancelled.

        Parameters
        ----------
        stop_token_ids : tokens that end an answer.
        is_last : is asked of every token, in order, whether it ends its answer, such as by what its text is.

        Raises
        ------
        ServeError
            If the request is refused.
        EngineLostError
            If the process of the engine ends.
        """
        with self._serving(request, sampling, stop_token_ids) as mine:
            end_sample = partial(EndSample, mine.message.request_id)
            while mine.left:
                found = await mine.receive()
                assert isinstance(found, NewToken)
                if found.sample not in mine.left:  # the engine has not heard yet that its answer has ended
                    continue
                ends = is_last(found)
                if ends or found.finish_reason:
                    mine.left.discard(found.sample)
                if ends and not found.finish_reason:
                    self._send(end_sample(found.sample))
                yield found

    async def load_adapter(self, adapter: str, folder: Path) -> None:
        """Read an adapter; a process that is started again reads it again.

        Parameters
        ----------
        adapter : a `unique_adapter`, by which requests choose it.

        Raises
        ------
        ServeError
            If it cannot be read, or is not for the model of the engine.
        EngineLostError
            If the process of the engine cannot be started, or ends before it has read it.
        """
        if self._failure:
            raise EngineLostError(self._failure)
        await self._adapters.load(adapter, folder)

    def unload_adapter(self, adapter: str) -> None:
        """Take no more requests with an adapter, and forget it when those that wait and run have ended."""
        self._adapters.unload(adapter)

    def reset_prefix_cache(self) -> None:
        """Let requests that come from now on reuse nothing that was computed before; those that run go on."""
        if self._ready.is_set():
            self._send(ResetPrefixCache())

    async def embed(self, request: Request) -> Floats:
        """The embedding of a text, by an engine that gives these; shape ``(width,)``.

        If the task is cancelled, the request is, too.

        Raises
        ------
        ServeError
            If the request is refused.
        EngineLostError
            If the process of the engine ends.
        """
        with self._serving(request) as mine:
            found = await mine.receive()
            assert isinstance(found, Embedding)
            mine.left.clear()
            return found.vector

    async def close(self) -> None:
        """End the process; requests that are still served end with an error."""
        self._is_closing = True
        self._watching.cancel()
        self._adapters.end()
        for mine in self._open.values():
            mine.queue.put_nowait(EngineLostError("the server is stopping; send the request to another one"))
        self._send(StopEngine())
        await asyncio.to_thread(self._process.join, 5.0)
        if self._process.is_alive():
            self._process.kill()
            await asyncio.to_thread(self._process.join)
        self._connection.close()
        atexit.unregister(self._kill)

    @property
    def process_id(self) -> int:
        """Id of the process that has the engine."""
        assert self._process.pid is not None
        return self._process.pid

    def _kill(self) -> None:
        """At the end of this process; one that is a daemon could have no others that share its model."""
        self._process.kill()

    @contextmanager
    def _serving(
        self,
        request: Request,
        sampling: SamplingParams | None = None,
        stop_token_ids: frozenset[int] = frozenset(),
    ) -> Iterator[_Open]:
        """Let a request be served as soon as the engine can, and cancel what is left of it in the end."""
        if self._failure:
            raise EngineLostError(self._failure)
        self._adapters.require(request.adapter)
        message = AddRequest(self._next_id, request, sampling, stop_token_ids)
        self._next_id += 1
        mine = self._open[message.request_id] = _Open(message, set(range(request.num_samples)))
        if self._ready.is_set():
            self._send(message)
        try:
            yield mine
        finally:
            self._open.pop(message.request_id, None)
            if not mine.has_failed and mine.left:
                self._send(CancelRequest(message.request_id))

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        connection, theirs = context.Pipe()
        progress = StepProgress(context)
        arguments = (theirs, self._make_engine, progress)
        process = context.Process(target=engine_main, args=arguments, name="engine")
        with theirs:
            process.start()
        self._connection, self._process = connection, process
        self._is_starting, self._stuck = True, ""
        loop = asyncio.get_running_loop()
        self._watching = loop.create_task(self._watch(progress))
        self._messages = SimpleQueue()
        Thread(target=self._read, args=(self._connection, self._process, loop), daemon=True).start()
        Thread(target=_write, args=(self._connection, self._messages), daemon=True).start()

    def _read(self, connection: Connection, process: SpawnProcess, loop: asyncio.AbstractEventLoop) -> None:
        """Hand on what comes until the process ends, in a thread."""
        with suppress(EOFError, OSError, RuntimeError):  # RuntimeError: the loop is closed
            while True:
                loop.call_soon_threadsafe(self._take, connection.recv())
        self._send(StopEngine())  # to the thread that writes
        process.join(1.0)  # its pipe is closed: it is about to end; not waited for, it would stay a zombie
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._lost)

    async def _watch(self, progress: StepProgress) -> None:
        """End the process if it makes no progress."""
        starting = StepWatch(self.process_id, progress, replace(self._limits, cpu_s=math.inf))
        serving = StepWatch(self.process_id, progress, self._limits)
        while True:
            await asyncio.sleep(_LOOK_S)
            watch = starting if self._is_starting else serving
            has_work = self._is_starting or bool(self._open) or self._adapters.is_loading
            if (exceeded := watch.look(has_work=has_work)) is not None:
                self._stuck = f"the engine did no step: its process {exceeded}"
                self.num_stuck += 1
                self._ready.clear()
                _LOG.error("%s; it is started again", self._stuck)
                kill_tree(self.process_id)
                return

    def _send(self, message: _Message) -> None:
        self._messages.put(message)

    def _send_if_ready(self, message: LoadAdapter | UnloadAdapter) -> None:
        if self._ready.is_set():
            self._send(message)

    def _take(self, message: EngineReady | EngineFailed | AdapterStatus | StepOutputs) -> None:
        if isinstance(message, AdapterStatus):
            self._adapters.take(message)
        elif isinstance(message, EngineFailed):
            self._failure = message.why
            self._ready.set()
        elif isinstance(message, EngineReady):
            self.max_model_len, self.embedding_form, self.options = message
            self._is_starting = False
            self._ready.set()
            self._adapters.begin_anew()
            for mine in self._open.values():
                self._send(mine.message)
        else:
            self.state = message.state
            for request_id, each in message.outputs:
                self._tell(request_id, each)

    def _tell(self, request_id: int, found: NewToken | Embedding | Refused) -> None:
        mine = self._open.get(request_id)
        if mine is None:
            return
        if isinstance(found, Refused) and found.is_fault_of_model:
            _LOG.error("request %s is not served: %s", mine.message.request.name, found.why)
            mine.queue.put_nowait(ModelFaultError(found.why))
        elif isinstance(found, Refused):
            mine.queue.put_nowait(ServeError(found.why))
        else:
            mine.queue.put_nowait(found)

    def _lost(self) -> None:
        """The process ended."""
        self._watching.cancel()
        self._num_failed_starts = self._num_failed_starts + 1 if self._is_starting else 0
        self._ready.clear()
        self.state = EngineState()
        self._adapters.end()
        if self._is_closing:
            return
        if self._num_failed_starts > (_MOST_FAILED_STARTS if self.max_model_len else 0):
            code = self._process.exitcode
            self._failure = (
                f"the engine ended before it could serve, with status {code}; its messages say why"
            )
        stopped = self._stuck or "the engine stopped while it served the request"
        why = self._failure or f"{stopped}; send it again"
        for mine in self._open.values():
            mine.queue.put_nowait(EngineLostError(why))
        self._open.clear()
        if self._failure:
            self._ready.set()
        else:
            self.num_restarts += 1
            self._begin_again()

    def _begin_again(self) -> None:
        """Start another process, as soon as the system has room for it."""
        if self._is_closing:
            return
        try:
            self._begin()
        except OSError as error:
            _LOG.error("the process of the engine cannot be started (%s); it is tried again", error)
            asyncio.get_running_loop().call_later(_LOOK_S, self._begin_again)


def _write(connection: Connection, messages: SimpleQueue[_Message]) -> None:
    """Hand on messages up to `StopEngine`, in a thread: an engine reads between steps only."""
    with suppress(OSError):  # the process ended: its end is taken care of when it is seen
        while True:
            message = messages.get()
            connection.send(message)
            if isinstance(message, StopEngine):
                return
