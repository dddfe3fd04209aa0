"""Replicas of a model, each an engine in a process of its own: a router says which one serves a request."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import Request
from trainyard.serve.router import Router, round_robin
from trainyard.serve.run.embedding_model import EmbeddingForm
from trainyard.serve.run.engine import EngineOptions
from trainyard.serve.run.engine_adapters import unique_adapter
from trainyard.serve.run.engine_client import EngineClient, EngineLostError
from trainyard.serve.run.outputs import EngineState, Floats, NewToken
from trainyard.serve.run.sampling import SamplingParams, seed_of

__all__ = ["EngineReplica", "RoutedEngines"]


class EngineReplica:
    """An engine, and how many requests and samples were sent to it that have not ended: what a router reads."""

    def __init__(self, client: EngineClient) -> None:
        self.client, self.num_requests = client, 0

    @property
    def state(self) -> EngineState:
        """How busy its engine is."""
        return self.client.state

    @property
    def num_restarts(self) -> int:
        """How often its process was started again."""
        return self.client.num_restarts

    @property
    def num_stuck(self) -> int:
        """How often its process did no step and was ended."""
        return self.client.num_stuck

    @property
    def options(self) -> EngineOptions | None:
        """Cache and limits of its engine; None before the engine has been ready."""
        return self.client.options

    @property
    def is_ready(self) -> bool:
        """Whether it computes requests now."""
        return self.client.is_ready

    @contextmanager
    def serving(self, num: int) -> Iterator[Callable[[], None]]:
        """Count requests and samples until the end of the block; what is given is called when one ends before that."""
        left = num

        def end_one() -> None:
            nonlocal left
            left -= 1
            self.num_requests -= 1

        self.num_requests += num
        try:
            yield end_one
        finally:
            self.num_requests -= left


@dataclass
class _Progress:
    """What the client of a request was told, so that it is told nothing twice when the request is begun anew.

    Attributes
    ----------
    is_last : is asked of every token, whether it ends its answer.
    num_told : tokens of each sample that were told.
    ended : samples whose answers ended.
    """

    is_last: Callable[[NewToken], bool]
    num_told: Counter[int] = field(default_factory=Counter)
    ended: set[int] = field(default_factory=set)

    async def new_tokens(
        self,
        client: EngineClient,
        request: Request,
        sampling: SamplingParams,
        stop_token_ids: frozenset[int],
        end_one: Callable[[], None],
    ) -> AsyncGenerator[NewToken, None]:
        """Serve the request; of its tokens, those that were not told before."""
        to_skip, before = Counter(self.num_told), frozenset(self.ended)

        def is_last(new: NewToken) -> bool:
            if new.sample in before:  # this process need not go on with it
                end_one()
                return True
            ends = not to_skip[new.sample] and self.is_last(new)
            if ends or new.finish_reason:
                self.ended.add(new.sample)
                end_one()
            return ends

        async with aclosing(client.generate(request, sampling, stop_token_ids, is_last)) as stream:
            async for new in stream:
                if new.sample in before:
                    continue
                if to_skip[new.sample]:
                    to_skip[new.sample] -= 1
                    continue
                self.num_told[new.sample] += 1
                yield new


class RoutedEngines:
    """Engines of the same model, between which a router of the simulator chooses.

    Parameters
    ----------
    clients : one for each replica.
    router : chooses among those that are ready now; one that does not move requests.
    max_retries : how often a request whose process ended is begun anew, in any replica, so that one that ends processes
        does not do so forever; its client sees no token twice. Then it ends with an error.

    Attributes
    ----------
    replicas : the engines, with what is sent to each.
    """

    def __init__(
        self, clients: Sequence[EngineClient], router: Router = round_robin, max_retries: int = 0
    ) -> None:
        self.replicas = tuple(EngineReplica(client) for client in clients)
        self._router, self._max_retries = router, max_retries
        self._num_requests = self._num_adapters = 0
        self._is_closing = False

    @property
    def is_ready(self) -> bool:
        """Whether requests are computed now, by any replica."""
        return any(client.is_ready for client in self._clients)

    @property
    def max_model_len(self) -> int:
        """The longest sequence that every replica serves, in tokens; 0 until the first one has told."""
        return min((client.max_model_len for client in self._clients if client.max_model_len), default=0)

    @property
    def embedding_form(self) -> EmbeddingForm | None:
        """What the embeddings are, if the model gives these."""
        return next((client.embedding_form for client in self._clients if client.embedding_form), None)

    async def start(self) -> None:
        """Start all processes, and wait until they can serve; raises as `EngineClient.start` does."""
        await asyncio.gather(*(client.start() for client in self._clients))

    async def close(self) -> None:
        """End all processes; requests that are still served end with an error."""
        self._is_closing = True
        await asyncio.gather(*(client.close() for client in self._clients))

    async def generate(
        self,
        request: Request,
        sampling: SamplingParams,
        stop_token_ids: frozenset[int] = frozenset(),
        is_last: Callable[[NewToken], bool] = lambda token: False,
        routed: Callable[[int], None] = lambda number: None,
    ) -> AsyncGenerator[NewToken, None]:
        """Yield the tokens of all samples of a request, from one replica; see `EngineClient.generate`.

        Parameters
        ----------
        routed : is told the number of the replica, again if the request is begun anew.
        """
        # With a seed that is known here, a request that is begun anew has the same tokens.
        sampling, progress = replace(sampling, seed=seed_of(sampling)), _Progress(is_last)
        state, retries_left = self._arrived(request), self._max_retries
        while True:
            number = self._routed(state)
            routed(number)
            replica = self.replicas[number]
            try:
                with replica.serving(request.num_samples) as end_one:
                    found = progress.new_tokens(replica.client, request, sampling, stop_token_ids, end_one)
                    async with aclosing(found) as stream:
                        async for new in stream:
                            yield new
                return
            except EngineLostError:
                if self._is_closing or not retries_left:
                    raise
                retries_left -= 1

    async def embed(self, request: Request, routed: Callable[[int], None] = lambda number: None) -> Floats:
        """Return the embedding of a text, from one replica; see `EngineClient.embed`.

        Parameters
        ----------
        routed : as of `generate`.
        """
        state, retries_left = self._arrived(request), self._max_retries
        while True:
            number = self._routed(state)
            routed(number)
            replica = self.replicas[number]
            try:
                with replica.serving(1):
                    return await replica.client.embed(request)
            except EngineLostError:
                if self._is_closing or not retries_left:
                    raise
                retries_left -= 1

    async def load_adapter(self, name: str, folder: Path) -> str:
        """Have all replicas read an adapter, or none.

        Returns
        -------
        By which name requests choose it: one that no other adapter of this model had.

        Raises
        ------
        ServeError
            If a replica cannot read it, or it is not for the model.
        EngineLostError
            If no process can be started.
        """
        adapter, self._num_adapters = unique_adapter(name, self._num_adapters), self._num_adapters + 1
        clients = [client for client in self._clients if not client.has_failed] or self._clients
        try:
            loads = [client.load_adapter(adapter, folder) for client in clients]
            for found in await asyncio.gather(*loads, return_exceptions=True):
                if isinstance(found, BaseException):
                    raise found
        except BaseException:
            self.unload_adapter(adapter)
            raise
        return adapter

    def unload_adapter(self, adapter: str) -> None:
        """Take no more requests with an adapter, and forget it when those that wait and run have ended.

        Parameters
        ----------
        adapter : as `load_adapter` returned it.
        """
        for client in self._clients:
            client.unload_adapter(adapter)

    def reset_prefix_cache(self) -> None:
        """Let requests that come from now on reuse nothing that was computed before, in any replica."""
        for client in self._clients:
            client.reset_prefix_cache()

    @property
    def _clients(self) -> Sequence[EngineClient]:
        return [replica.client for replica in self.replicas]

    def _arrived(self, request: Request) -> RequestState:
        """A request as routers see it."""
        number, self._num_requests = self._num_requests, self._num_requests + 1
        return RequestState(number, request, time.monotonic())

    def _routed(self, state: RequestState) -> int:
        """Return the number of the replica that serves a request: a ready one, or else one that is started again."""
        ready = [each for each in self.replicas if each.client.is_ready]
        ready = ready or [each for each in self.replicas if not each.client.has_failed] or list(self.replicas)
        (number,) = self._router(state, ready)
        return self.replicas.index(ready[number])
