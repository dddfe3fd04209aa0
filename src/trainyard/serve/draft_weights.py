"""What a batch loads and unloads, while a policy makes it."""

from __future__ import annotations

from trainyard.serve.batch import Layers, WeightOp
from trainyard.serve.cache.adapter_slots import AdapterSlots
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.cache.block_keys import BlockKeys
from trainyard.serve.draft_launches import DraftLaunches, error_of
from trainyard.serve.queues import Queues
from trainyard.serve.replica_view import ReplicaView
from trainyard.serve.request_state import RequestState

__all__ = ["WeightsDraft"]


class WeightsDraft(ReplicaView):
    """The part of a draft that knows which weights are on the device."""

    def __init__(
        self,
        queues: Queues,
        cache: BlockCache,
        keys: BlockKeys,
        adapters: AdapterSlots,
        num_layers: int | None,
    ) -> None:
        super().__init__(queues, cache, keys)
        self._adapters, self._launches = adapters, DraftLaunches(num_layers)
        self._weight_ops: list[WeightOp] = []
        self._lacks_slot = False

    def load_weights(self, adapter: str, layers: Layers = None) -> bool:
        """Load what is not on the device of an adapter, or of the model, before this batch is computed.

        A request whose adapter is not there at all when it is admitted loads all of it by itself.

        Parameters
        ----------
        adapter : its name; "" for the model itself.
        layers : whose weights are loaded; by default of all.

        Returns
        -------
        Whether there is a slot for the adapter. If not, nothing changes.

        Raises
        ------
        ServeError
            If there are no such layers, or all adapters stay on the device.
        """
        running = self._queues.running_by_adapter
        if not self._adapters.has_room(adapter, running):
            return False
        self._weight_ops += self._adapters.load(adapter, layers, running)
        return True

    def unload_weights(self, adapter: str, layers: Layers = None) -> None:
        """Take weights of an adapter, or of the model, off the device before this batch is computed.

        The slot of an adapter is free when none of its layers is left. The KV cache does not grow.

        Parameters
        ----------
        adapter : its name; "" for the model itself.
        layers : whose weights go; by default those of all.

        Raises
        ------
        ServeError
            If a step that runs, or this batch, computes with them; if there are no such layers, or all adapters stay on
            the device.
        """
        ops = self._adapters.unload(adapter, layers)
        gone = self._adapters.absent.get(adapter, set())
        for state in self._queues.running.values():
            uses_them = adapter in ("", state.request.adapter)
            if uses_them and (self._is_under_way(state) or gone & self._launches.layers_of(state.number)):
                raise error_of(state, f"computed, and weights of {adapter or 'the model'} unloaded before")
        self._weight_ops += ops

    def _may_use_adapter(self, state: RequestState) -> bool:
        """Whether its adapter is on the device, or may be loaded."""
        self._lacks_slot = not self._adapters.has_room(state.request.adapter, self._queues.running_by_adapter)
        return not self._lacks_slot

    def _use_adapter(self, state: RequestState) -> None:
        self._weight_ops += self._adapters.use(state.request.adapter, self._queues.running_by_adapter)

    def _require_weights(self, state: RequestState) -> None:
        """The layers that a request goes through in this batch have weights on the device."""
        for adapter in dict.fromkeys(("", state.request.adapter)):
            if lacking := self._launches.layers_of(state.number) & self._adapters.absent.get(adapter, set()):
                raise error_of(
                    state,
                    f"computed without weights of {adapter or 'the model'} in {len(lacking)} layers, first in layer "
                    f"{min(lacking)}; load them before",
                )

    def _is_under_way(self, state: RequestState) -> bool:
        """Whether it is in a step that was begun before."""
        return state.num_in_step > 0 and state.number not in self._launches.items
