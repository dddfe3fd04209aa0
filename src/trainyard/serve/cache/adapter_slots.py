"""Weights on a device: adapters in a few slots, where others are on the host, and the layers that a policy took away.

Sheng et al., "S-LoRA: Serving Thousands of Concurrent LoRA Adapters", MLSys 2024: all adapters are on the host, and those
of the running requests on the device.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from typing import Literal

from trainyard.serve.batch import Layers, WeightOp
from trainyard.serve.errors import ServeError

__all__ = ["AdapterSlots"]


class AdapterSlots:
    """Which adapters are on a device. If there is no slot for another one, that which was used least recently goes.

    A slot has room for all layers of an adapter, whichever are there.

    Parameters
    ----------
    num : number of slots; None if every adapter is on the device from the beginning.
    num_layers : of the model; None if weights come and go only as a whole.

    Attributes
    ----------
    absent : layers whose weights are not on the device, of adapters that a policy loaded or unloaded itself, and of the
        model (""); empty while no policy does that.

    Raises
    ------
    ServeError
        If there is no slot.
    """

    def __init__(self, num: int | None = None, num_layers: int | None = None) -> None:
        if num is not None and num < 1:
            raise ServeError(f"{num} slots for adapters; allowed is 1 or more")
        self.num, self._num_layers = num, num_layers
        # One layer stands for all where weights come and go as a whole.
        self._all = frozenset(range(num_layers or 1))
        self.absent: dict[str, set[int]] = {}
        self._loaded: OrderedDict[str, None] = OrderedDict()

    def has_room(self, adapter: str, running: Collection[str]) -> bool:
        """Whether an adapter is there, or there is a slot for it.

        Parameters
        ----------
        adapter : its name; "" for none.
        running : those of running requests, which stay.
        """
        if self.num is None or not adapter or adapter in self._loaded or len(self._loaded) < self.num:
            return True
        return any(each not in running for each in self._loaded)

    def use(self, adapter: str, running: Collection[str]) -> list[WeightOp]:
        """Load an adapter if nothing of it is there; return the operations. There is room for it."""
        if self.num is None or not adapter:
            return []
        if adapter in self._loaded:
            self._loaded.move_to_end(adapter)
            return []
        ops = self._take_slot(adapter, running)
        self.absent.pop(adapter, None)
        return [*ops, WeightOp("load", adapter)]

    def load(self, adapter: str, layers: Layers, running: Collection[str]) -> list[WeightOp]:
        """Load what is not there of some layers; return the operations. There is room for it.

        Parameters
        ----------
        adapter : its name; "" for the model itself.
        running : as of `has_room`.

        Raises
        ------
        ServeError
            If there are no such layers, or adapters stay on the device.
        """
        wanted, ops = self._wanted(adapter, layers), list[WeightOp]()
        if adapter and adapter not in self._loaded:
            ops = self._take_slot(adapter, running)
            self.absent[adapter] = set(self._all)
        absent = self.absent.get(adapter, set())
        ops += self._ops("load", adapter, wanted & absent)
        absent -= wanted
        if not absent:
            self.absent.pop(adapter, None)
        return ops

    def unload(self, adapter: str, layers: Layers) -> list[WeightOp]:
        """Make free the memory of what is there of some layers; return the operations.

        Parameters
        ----------
        adapter : its name; "" for the model itself.

        Raises
        ------
        ServeError
            If there are no such layers, or adapters stay on the device.
        """
        wanted = self._wanted(adapter, layers)
        if adapter and adapter not in self._loaded:
            return []
        absent = self.absent.setdefault(adapter, set())
        ops = self._ops("unload", adapter, wanted - absent)
        absent |= wanted
        if adapter and absent == self._all:
            del self._loaded[adapter]
        return ops

    def _take_slot(self, adapter: str, running: Collection[str]) -> list[WeightOp]:
        ops = list[WeightOp]()
        if len(self._loaded) == self.num:
            oldest = next(each for each in self._loaded if each not in running)
            ops = self.unload(oldest, None)
            del self.absent[oldest]
        self._loaded[adapter] = None
        return ops

    def _wanted(self, adapter: str, layers: Layers) -> frozenset[int]:
        """The layers that are meant."""
        if adapter and self.num is None:
            raise ServeError(
                f"adapter {adapter!r} is to be loaded or unloaded, where all adapters stay on the device; give max_loras"
            )
        if layers is None:
            return self._all
        if self._num_layers is None or not 0 <= layers[0] < layers[1] <= self._num_layers:
            of = (
                "they come and go as a whole here"
                if self._num_layers is None
                else f"it has {self._num_layers}"
            )
            raise ServeError(
                f"weights of {adapter or 'the model'} in layers {layers[0]} to {layers[1] - 1}; {of}"
            )
        return frozenset(range(*layers))

    def _ops(self, kind: Literal["load", "unload"], adapter: str, layers: frozenset[int]) -> list[WeightOp]:
        if layers == self._all:
            return [WeightOp(kind, adapter)]
        return [WeightOp(kind, adapter, layers=each) for each in _ranges(layers)]


def _ranges(layers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Layers that follow each other, together."""
    for _, group in groupby(enumerate(sorted(layers)), lambda pair: pair[1] - pair[0]):
        first, *others = [layer for _, layer in group]
        yield first, first + len(others) + 1
