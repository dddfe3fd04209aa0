"""Launches of a batch while a policy makes it: items, and the layers that each goes through."""

from __future__ import annotations

from trainyard.serve.batch import Direction, Launch, Layers, WorkItem
from trainyard.serve.errors import ServeError
from trainyard.serve.request_state import RequestState

__all__ = ["DraftLaunches", "error_of"]


class DraftLaunches:
    """The items of a batch, of which those with the same layers are a launch.

    Parameters
    ----------
    num_layers : of the model; None where steps are always of all layers.

    Attributes
    ----------
    items : of each request that is in the batch.
    layers : of each of them that does not go through all.
    backward : those that go backward.
    """

    def __init__(self, num_layers: int | None = None) -> None:
        self.num_layers = num_layers
        self.items: dict[int, WorkItem] = {}
        self.layers: dict[int, tuple[int, int]] = {}
        self.backward: set[int] = set()

    def next_layers(self, state: RequestState, num_tokens: int, layers: Layers) -> tuple[int, int]:
        """The layers that tokens go through next.

        Raises
        ------
        ServeError
            If they are others than the given ones, or other tokens are half computed.
        """
        if self.num_layers is None:
            raise error_of(state, "computed in some layers; here, steps are of all layers")
        first, stop = (state.num_layers_done, self.num_layers) if layers is None else layers
        num_half = state.num_half_computed
        if (
            first != state.num_layers_done
            or not first < stop <= self.num_layers
            or num_half not in (0, num_tokens)
        ):
            raise error_of(
                state,
                f"computed in layers {first} to {stop - 1} for {num_tokens} tokens; it goes on with layer "
                f"{state.num_layers_done} of {self.num_layers} for {num_half or 'any number of'} tokens",
            )
        return first, stop

    def go_back(self, state: RequestState, start: int, stop: int, layers: Layers) -> None:
        """Put tokens of a request that trains in the batch, whose gradients go back through some layers.

        Raises
        ------
        ServeError
            If it may not go backward now, or if other tokens or layers are next.
        """
        starts = state.backward_starts
        if not starts or state.num_in_step:
            raise error_of(
                state,
                "computed backward; allowed are requests that train, went forward as a whole, and are in no step",
            )
        if layers is not None and self.num_layers is None:
            raise error_of(state, "computed in some layers; here, steps are of all layers")
        first, end = layers or (0, len(starts))
        through, above = set(starts[max(first, 0) : end]), (*starts, 0)[min(end, len(starts))]
        if not 0 <= first < end <= len(starts) or through != {stop} or not above <= start < stop:
            raise error_of(
                state,
                f"computed backward with tokens {start} to {stop} in layers {first} to {end - 1}; of the "
                f"{len(starts)} layers, tokens from {starts} on went back: allowed are those before, through the last "
                "layers first",
            )
        self.items[state.number] = WorkItem(state.number, start, stop)
        self.backward.add(state.number)
        if layers is not None:
            self.layers[state.number] = layers

    def drop(self, number: int) -> None:
        """Take a request out of the batch, if it is there."""
        self.items.pop(number, None)
        self.layers.pop(number, None)
        self.backward.discard(number)

    def layers_of(self, number: int) -> set[int]:
        """The layers that a request goes through in this batch; empty if it is not there."""
        if number not in self.items:
            return set()
        return set(range(*(self.layers.get(number) or (0, self.num_layers or 1))))

    def launches(self) -> tuple[Launch, ...]:
        """Return a launch for all layers, one for each other range of layers, and further ones for backward passes."""
        if not self.layers and not self.backward:
            return (Launch(tuple(self.items.values())),) if self.items else ()
        together: dict[tuple[Layers, Direction], list[WorkItem]] = {}
        for number, item in self.items.items():
            direction: Direction = "backward" if number in self.backward else "forward"
            together.setdefault((self.layers.get(number), direction), []).append(item)
        return tuple(
            Launch(tuple(items), layers=layers, direction=direction)
            for (layers, direction), items in together.items()
        )


def error_of(state: RequestState, what: str) -> ServeError:
    """The error that a policy wants what cannot be done with a request."""
    return ServeError(f"request {state.request.name!r} is to be {what}")
