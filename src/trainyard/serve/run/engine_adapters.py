"""The adapters of an engine in another process: which it has to have."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trainyard.serve.errors import ServeError
from trainyard.serve.request_state import RequestState

__all__ = [
    "AdapterStatus",
    "AdapterUnloadedError",
    "EngineAdapters",
    "EngineLostError",
    "LoadAdapter",
    "UnloadAdapter",
    "adapter_name",
    "adapters_of",
    "unique_adapter",
]

_LOG = logging.getLogger("trainyard.server")


class EngineLostError(ServeError):
    """The process of an engine ended while it served a request, or read an adapter."""


class AdapterUnloadedError(ServeError):
    """A request has an adapter that was unloaded before it came to the engine."""


def unique_adapter(name: str, number: int) -> str:
    """Return a name for an adapter that no other adapter had, as blocks of an older one may still be cached.

    Parameters
    ----------
    number : of adapters that were loaded before.
    """
    return f"{name}#{number}"


def adapters_of(states: Iterable[RequestState]) -> tuple[str, ...]:
    """Return the adapters of requests, sorted."""
    return tuple(sorted({state.request.adapter for state in states} - {""}))


def adapter_name(adapter: str) -> str:
    """Return the name of an adapter by its `unique_adapter`."""
    return adapter.rpartition("#")[0]


class LoadAdapter(NamedTuple):
    """Read an adapter; `AdapterStatus` comes back."""

    adapter: str
    folder: Path


class UnloadAdapter(NamedTuple):
    """Forget an adapter, when the requests that use it have ended."""

    adapter: str


class AdapterStatus(NamedTuple):
    """An adapter can be used, or cannot: why it cannot, in a sentence, or ""."""

    adapter: str
    failure: str


@dataclass
class _Adapter:
    """An adapter.

    Attributes
    ----------
    failure : why it cannot be used, as soon as the process said so; "" if it can.
    """

    folder: Path
    failure: asyncio.Future[str]


class EngineAdapters:
    """Has the process of an engine read and forget adapters, and a new process read them again.

    Parameters
    ----------
    send : a message to the process, if it can be asked.
    """

    def __init__(self, send: Callable[[LoadAdapter | UnloadAdapter], None]) -> None:
        self._send = send
        self._adapters: dict[str, _Adapter] = {}

    @property
    def is_loading(self) -> bool:
        """Whether the process is to read one."""
        return any(not mine.failure.done() for mine in self._adapters.values())

    async def load(self, adapter: str, folder: Path) -> None:
        """Have an adapter read.

        Parameters
        ----------
        adapter : a `unique_adapter`, by which requests choose it.

        Raises
        ------
        ServeError
            If it cannot be read, or is not for the model of the engine.
        EngineLostError
            If the process ends before it has read it.
        """
        mine = self._adapters[adapter] = _Adapter(folder, asyncio.get_running_loop().create_future())
        try:
            self._send(LoadAdapter(adapter, folder))
            if failure := await mine.failure:
                raise ServeError(failure)
        except BaseException:
            self.unload(adapter)
            raise

    def unload(self, adapter: str) -> None:
        """Have an adapter forgotten, when the requests that use it have ended. Nothing happens if it is not loaded."""
        if self._adapters.pop(adapter, None) is not None:
            self._send(UnloadAdapter(adapter))

    def require(self, adapter: str) -> None:
        """Refuse an adapter that was unloaded; "" is none.

        Raises
        ------
        AdapterUnloadedError
            If it was.
        """
        if adapter and adapter not in self._adapters:
            raise AdapterUnloadedError(
                f"the adapter {adapter.rpartition('#')[0]!r} was unloaded; use another model"
            )

    def take(self, message: AdapterStatus) -> None:
        """The process read one, or could not."""
        mine = self._adapters.get(message.adapter)
        if mine is None:
            return
        if not mine.failure.done():
            mine.failure.set_result(message.failure)
        elif message.failure:
            _LOG.error("an engine that was started again has no adapter %r: %s", *message)

    def begin_anew(self) -> None:
        """Have a new process read all."""
        for adapter, mine in self._adapters.items():
            self._send(LoadAdapter(adapter, mine.folder))

    def end(self) -> None:
        """The process ended; an adapter that it was reading may be the reason, and is not read again."""
        for mine in self._adapters.values():
            if not mine.failure.done():
                why = "the engine stopped before it had read the adapter; load it again"
                mine.failure.set_exception(EngineLostError(why))
