"""Adapters on a device: each in one of a few slots, where others are on the host.

Sheng et al., "S-LoRA: Serving Thousands of Concurrent LoRA Adapters", MLSys 2024: all adapters are on the host, and those
of the running requests on the device.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from trainyard.serve.batch import WeightOp
from trainyard.serve.errors import ServeError

__all__ = ["AdapterSlots"]


class AdapterSlots:
    """Which adapters are on a device. If there is no slot for another one, that which was used least recently goes.

    Parameters
    ----------
    num : number of slots; None if every adapter is on the device from the beginning.

    Raises
    ------
    ServeError
        If there is none.
    """

    def __init__(self, num: int | None = None) -> None:
        if num is not None and num < 1:
            raise ServeError(f"{num} slots for adapters; allowed is 1 or more")
        self.num = num
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
        """Load an adapter if it is not there; return the operations. There is room for it."""
        if self.num is None or not adapter:
            return []
        if adapter in self._loaded:
            self._loaded.move_to_end(adapter)
            return []
        ops = []
        if len(self._loaded) == self.num:
            oldest = next(each for each in self._loaded if each not in running)
            del self._loaded[oldest]
            ops.append(WeightOp("unload", oldest))
        self._loaded[adapter] = None
        return [*ops, WeightOp("load", adapter)]
