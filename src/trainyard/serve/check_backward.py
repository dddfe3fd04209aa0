"""How far tokens of requests went backward, as batches say."""

from __future__ import annotations

from trainyard.serve.batch import Layers, WorkItem

__all__ = ["BackwardAccount"]


class BackwardAccount:
    """Which tokens of the requests that train went backward through which layers.

    The gradient of a token in a layer is a sum over what the layer above, and later tokens that attend to it, give. So a
    token goes back through a layer after it went through the layer above, and after all later tokens went through that
    layer. Both orders that are in use satisfy this: layer by layer, and some last tokens through all layers.

    Parameters
    ----------
    num_layers : of the model; None if steps are of all layers.
    """

    def __init__(self, num_layers: int | None) -> None:
        self._num_layers = num_layers
        self._starts: dict[int, list[int]] = {}  # of each layer, the first token that went back through it

    def begin(self, request: int) -> None:
        """A request trains."""
        self._starts[request] = []

    def trains(self, request: int) -> bool:
        """Whether a request trains."""
        return request in self._starts

    def forget(self, request: int) -> None:
        """Its tokens are no longer computed, so they have to go forward again."""
        if request in self._starts:
            self._starts[request] = []

    def end(self, request: int) -> None:
        """A request left."""
        self._starts.pop(request, None)

    def go_back(self, item: WorkItem, layers: Layers, num_tokens: int) -> str:
        """Take tokens into account; return what is wrong, or "".

        Parameters
        ----------
        num_tokens : of the request, all of which went forward.
        """
        number, start, stop = item
        starts = self._starts[number] or [num_tokens] * (self._num_layers or 1)
        first, end = layers or (0, len(starts))
        meant = range(first, end)
        if not meant or first < 0 or end > len(starts) or (layers is not None and self._num_layers is None):
            return f"goes backward in layers {first} to {end - 1}; there are {self._num_layers or 'only all'}"
        above = starts[end] if end < len(starts) else 0
        wrong = next((layer for layer in reversed(meant) if starts[layer] != stop), None)
        if wrong is not None:
            return f"goes backward with tokens up to {stop} in layer {wrong}; next are tokens up to {starts[wrong]}"
        if not above <= start < stop:
            return f"goes backward with tokens {start} to {stop} in layer {end - 1}; allowed are some from {above} on"
        starts[first:end] = [start] * len(meant)
        self._starts[number] = starts
        return ""
