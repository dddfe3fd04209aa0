"""The tokenizer of a model in processes whose CPU seconds and memory are limited.

Clients and served folders can make a chat template, a normalizer or a JSON schema take any time. So none of them runs in
the process that answers requests.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from trainyard.processes import LimitedProcess, LimitedProcessError, ProcessLimits
from trainyard.serve.errors import ServeError
from trainyard.serve.run.model_tokenizer import ModelTokenizer
from trainyard.serve.run.preloaded import preloaded_context, raise_serve_error
from trainyard.serve.run.tokenizer_work import CheckConstraint, TokenizerTask

__all__ = ["LimitedTokenizer", "TokenizerBusyError"]

T = TypeVar("T")

_MIB, _GIB = 1 << 20, 1 << 30
_LOAD = ProcessLimits(cpu_s=300.0, memory_bytes=3 * _GIB)
_SHORT = ProcessLimits(cpu_s=5.0, memory_bytes=_GIB)
_LONG = ProcessLimits(cpu_s=30.0, memory_bytes=2 * _GIB)
_CONSTRAINT = ProcessLimits(cpu_s=1.0, memory_bytes=512 * _MIB)
_SHORT_BYTES = 64 * 1024
_MOST_WAITING, _MOST_LONG_WAITING = 1024, 16
_VERDICTS = 4096


class TokenizerBusyError(ServeError):
    """The tokenizer cannot do the work now; the same request may succeed later."""


class LimitedTokenizer:
    """Does work with the tokenizer of a model in three processes: short work, long work, and JSON schemas.

    Each process does one piece of work at a time, in order of arrival. Work of one kind never waits for another kind. A
    piece of work that passes a limit is refused, and its process is started again.

    Parameters
    ----------
    folder : folder of the model, in Hugging Face form.

    Attributes
    ----------
    local : the tokenizer in this process, which decodes answers.

    Raises
    ------
    ServeError
        If the tokenizer cannot be loaded under limits.
    """

    def __init__(self, folder: Path) -> None:
        prepare = partial(_prepared, folder)
        self._short = _WorkQueue(prepare, _SHORT, _MOST_WAITING)
        self._long = _WorkQueue(prepare, _LONG, _MOST_LONG_WAITING)
        self._constraints = _WorkQueue(partial(_prepared_for_constraints, folder), _CONSTRAINT, _MOST_WAITING)
        self._verdicts = OrderedDict[bytes, str]()
        try:
            self._short.process.start()
        except LimitedProcessError as error:
            raise_serve_error(error)
            raise ServeError(f"loading the tokenizer of {folder} {error}") from error
        self.local = ModelTokenizer(folder)  # uses as much as it used under limits

    async def do(self, work: TokenizerTask[T]) -> T:
        """Do a piece of work.

        Raises
        ------
        ServeError
            If the work cannot be done, or passes a limit.
        TokenizerBusyError
            If the work cannot be done now.
        """
        if isinstance(work, CheckConstraint):
            return await self._verdict(work)  # type: ignore[return-value]  # T is str
        return await (self._short if work.num_bytes <= _SHORT_BYTES else self._long).do(work)

    async def close(self) -> None:
        """End the processes."""
        for queue in (self._short, self._long, self._constraints):
            await asyncio.to_thread(queue.close)

    async def _verdict(self, work: CheckConstraint) -> str:
        """Return the fault of the form of an answer, "" for none. Each one is checked once."""
        if (known := self._verdicts.get(key := sha256(repr(work.form).encode()).digest())) is not None:
            self._verdicts.move_to_end(key)
            return known
        try:
            found = await self._constraints.do(work)
        except TokenizerBusyError:
            raise
        except ServeError as error:
            found = f"{error}; give a simpler one"
        self._verdicts[key] = found
        if len(self._verdicts) > _VERDICTS:
            self._verdicts.popitem(last=False)
        return found


class _WorkQueue:
    """A limited process, and the thread that waits for it."""

    def __init__(
        self, prepare: Callable[[], Callable[[Any], Any]], limits: ProcessLimits, most_waiting: int
    ) -> None:
        self.process = LimitedProcess[Any, Any](prepare, limits, _LOAD, preloaded_context)
        self._most_waiting, self._num_waiting = most_waiting, 0
        self._thread = ThreadPoolExecutor(1, "tokenizer")

    async def do(self, work: TokenizerTask[T]) -> T:
        if self._num_waiting >= self._most_waiting:
            waiting = f"{self._num_waiting} other requests wait for the tokenizer"
            raise TokenizerBusyError(f"{waiting}; send this one again later")
        self._num_waiting += 1
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._thread, self.process, work)
        except LimitedProcessError as error:
            told = f"{_WORK_NAMES[work.kind]} {error}"
            if error.may_succeed_later:
                raise TokenizerBusyError(f"{told}; send the request again later") from error
            raise ServeError(told) from error
        finally:
            self._num_waiting -= 1
        if isinstance(found, ServeError):
            raise found
        result: T = found
        return result

    def close(self) -> None:
        self.process.close()
        self._thread.shutdown(cancel_futures=True)


_WORK_NAMES = {
    "tokens": "writing and tokenizing the prompt",
    "constraint": "compiling the form of the answer",
}


def _prepared(folder: Path) -> Callable[[TokenizerTask[Any]], Any]:
    return partial(_done, ModelTokenizer(folder))


def _prepared_for_constraints(folder: Path) -> Callable[[TokenizerTask[Any]], Any]:
    tokenizer = ModelTokenizer(folder)
    with suppress(ServeError):  # each piece of work reports the same error
        _ = tokenizer.structured_outputs
    return partial(_done, tokenizer)


def _done(tokenizer: ModelTokenizer, work: TokenizerTask[Any]) -> Any:
    """Return the result of a piece of work, or the error that says why there is none."""
    try:
        return work.do(tokenizer)
    except ServeError as error:
        return error
