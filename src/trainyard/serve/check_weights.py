"""The weights on a device, as batches say."""

from __future__ import annotations

from trainyard.serve.batch import Layers, WeightOp
from trainyard.serve.errors import ServeError

__all__ = ["WeightsAccount"]


class WeightsAccount:
    """Which layers of the model, and of adapters, are not on the device.

    Parameters
    ----------
    max_loras : adapters that may be there at once; None if all are there from the beginning.
    num_layers : of the model; None if weights come and go only as a whole.
    """

    def __init__(self, max_loras: int | None, num_layers: int | None) -> None:
        self._max_loras, self._num_layers = max_loras, num_layers
        self._all = frozenset(range(num_layers or 1))
        self._absent: dict[str, frozenset[int]] = {}

    def carry_out(self, op: WeightOp) -> None:
        """Take an operation into account.

        Raises
        ------
        ServeError
            If what it loads is there, or what it unloads is not; if there are no such layers; or if adapters beside it
            have all the room.
        """
        meant, absent = self._meant(op.layers), self._absent_of(op.adapter)
        if op.layers is not None and (
            self._num_layers is None or frozenset(range(*op.layers)) != meant or not meant
        ):
            raise ServeError(f"batch: {op}; allowed are {self._num_layers or 'all'} layers")
        if not (meant <= absent if op.kind == "load" else meant.isdisjoint(absent)):
            raise ServeError(f"batch: {op}, which is {'there' if op.kind == 'load' else 'not there'}")
        self._absent[op.adapter] = absent - meant if op.kind == "load" else absent | meant
        num = sum(bool(adapter) and absent != self._all for adapter, absent in self._absent.items())
        if self._max_loras is not None and num > self._max_loras:
            raise ServeError(
                f"batch: {op} beside {self._max_loras} others, for which there is no room; unload one"
            )

    def lacks(self, adapter: str, layers: Layers) -> str:
        """What is not there of the weights for a request in some layers; "" if all are."""
        for name in ("", adapter):
            if (name or self._absent) and (absent := self._meant(layers) & self._absent_of(name)):
                whose = f"its adapter {name!r}" if name else "the weights of the model"
                return whose if absent == self._all else f"{whose} in layers {sorted(absent)}"
        return ""

    def _meant(self, layers: Layers) -> frozenset[int]:
        """The layers; none if there are no such ones."""
        return self._all if layers is None else frozenset(range(*layers)) & self._all

    def _absent_of(self, adapter: str) -> frozenset[int]:
        is_there = not adapter or self._max_loras is None
        return self._absent.get(adapter, frozenset() if is_there else self._all)
