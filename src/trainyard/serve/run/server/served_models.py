"""The models of a server, and the adapters that are loaded on them, which clients see as models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from trainyard.reading import listed, shown
from trainyard.serve.errors import ServeError
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.hosted_model import HostedModel

__all__ = ["NamedAdapter", "ServedModels"]

_RETRY_AFTER_S = 5


class NamedAdapter(NamedTuple):
    """An adapter that a server begins with.

    Attributes
    ----------
    name : by which requests call it.
    folder : as PEFT saves it.
    base : name of the model that it is for.
    """

    name: str
    folder: Path
    base: str


class ServedModels:
    """Models and adapters, by the names that requests use.

    Parameters
    ----------
    models : by name.
    max_adapters : that may be loaded at once, on all models together.

    Attributes
    ----------
    base : the models, without adapters.
    awaited : names of adapters that are to be loaded before the server is ready.
    failed : why models could not be loaded, by name.
    """

    def __init__(self, models: Mapping[str, HostedModel], max_adapters: int = 64) -> None:
        self.base, self._max_adapters = models, max_adapters
        self._adapters: dict[str, HostedModel] = {}
        self.awaited: set[str] = set()
        self.failed: dict[str, str] = {}
        self._loading = asyncio.Lock()

    @property
    def cards(self) -> Sequence[Mapping[str, Any]]:
        """All that could be loaded, as /v1/models has them."""
        loaded = [model for name, model in self.base.items() if name not in self.failed]
        return [_card(model) for model in (*loaded, *self._adapters.values())]

    @property
    def missing(self) -> Sequence[str]:
        """Models that cannot be asked yet, and adapters that the server is to begin with; none of those that failed."""
        waiting = [
            name for name, model in self.base.items() if not model.engine.is_ready and name not in self.failed
        ]
        return waiting + sorted(self.awaited)

    def find(self, name: str) -> HostedModel:
        """A model or adapter.

        Raises
        ------
        ApiError
            If there is none of that name, or it could not be loaded.
        """
        if why := self.failed.get(name):
            raise ApiError(503, f"{name} could not be loaded: {why}", code="model_not_loaded")
        found = self.base.get(name) or self._adapters.get(name)
        if found is None:
            known = listed((*self.base, *self._adapters))
            told = f"no model {shown(name)} is served here; known are {known}"
            raise ApiError(404, told, param="model", code="model_not_found")
        return found

    def find_ready(self, name: str) -> HostedModel:
        """A model or adapter that can be asked now.

        Raises
        ------
        ApiError
            If there is none of that name, it could not be loaded, or its engine cannot be asked now.
        """
        model = self.find(name)
        if not model.engine.is_ready:
            told = f"the engine of {name} is not ready; send the request again later"
            raise ApiError(503, told, code="not_ready", retry_after_s=_RETRY_AFTER_S)
        return model

    def require_begun(self) -> None:
        """Refuse what needs the adapters that the server is to begin with.

        Raises
        ------
        ApiError
            If they are not loaded yet.
        """
        if self.awaited:
            told = f"the adapters {listed(sorted(self.awaited))} are not loaded yet; send the request again later"
            raise ApiError(503, told, code="not_ready", retry_after_s=_RETRY_AFTER_S)

    def only_name(self) -> str:
        """The name of the model, if there is one only.

        Raises
        ------
        ApiError
            If there are several.
        """
        if len(self.base) > 1:
            raise ApiError(400, f"model is missing; known are {listed(self.base)}", param="model")
        return next(iter(self.base))

    def base_of(self, name: str) -> str:
        """The model that is called so, or whose adapter is; "" if there is none."""
        found = self.base.get(name) or self._adapters.get(name)
        return "" if found is None else found.base

    def card(self, name: str) -> Mapping[str, Any]:
        """Return a model as /v1/models has it; raises as `find` does."""
        return _card(self.find(name))

    async def load_adapter(self, name: str, folder: Path, base: str = "") -> None:
        """Let requests call an adapter by a name.

        Parameters
        ----------
        folder : of a LoRA adapter, as PEFT saves it.
        base : the model that it is for; "" where there is one only.

        Raises
        ------
        ServeError
            If the name is taken, there are too many adapters, or it cannot be read or is not for the model.
        ApiError
            If there is no such model, or it is an adapter itself.
        """
        async with self._loading:
            model = self._base_model(base or self.only_name())
            if self.base_of(name):
                raise ServeError(f"a model {name!r} is served already; unload it, or give another name")
            if len(self._adapters) >= self._max_adapters:
                raise ServeError(f"{len(self._adapters)} adapters are loaded, which is the most; unload one")
            adapter = await model.engine.load_adapter(name, folder)
            made_s = int(time.time())
            self._adapters[name] = replace(
                model, name=name, parent=model.name, adapter=adapter, created_s=made_s
            )
            self.awaited.discard(name)

    def _base_model(self, name: str) -> HostedModel:
        found = self.base.get(name)
        if found is None:
            told = f"no model {shown(name)} takes adapters here; known are {listed(self.base)}"
            raise ApiError(404, told, param="base_model_name", code="model_not_found")
        return found

    def unload_adapter(self, name: str) -> None:
        """Take no more requests with an adapter; those that run go on to their ends.

        Raises
        ------
        ApiError
            If there is none of that name.
        """
        found = self._adapters.pop(name, None)
        if found is None:
            told = f"no adapter {shown(name)} is loaded; known are {listed(self._adapters) or 'none'}"
            raise ApiError(404, told, param="lora_name", code="model_not_found")
        found.engine.unload_adapter(found.adapter)


def _card(model: HostedModel) -> Mapping[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created_s,
        "owned_by": "trainyard",
        "parent": model.parent or None,
        "max_model_len": model.engine.max_model_len or None,
    }
