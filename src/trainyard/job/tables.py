"""A program as flat arrays: what the core of a planner takes, whoever made them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

__all__ = ["Floats", "Ints", "LayerTable", "OpTable", "TensorTable"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class OpTable:
    """The ops of one microbatch that compute, in program order; views and constants are none. One entry per op.

    Attributes
    ----------
    names : their addresses, by which plans name them in ``recompute`` and ``stage_starts``.
    is_backward : of the backward pass.
    layer : its index in the layer table; an op outside of all layers belongs to the one before it, an op of the backward
        pass to that of the op it differentiates.
    flops : a multiply and an add are two.
    num_bytes : read and written.
    seconds : on a device of the cluster.
    """

    names: tuple[str, ...]
    is_backward: npt.NDArray[np.bool_]
    layer: Ints
    flops: Ints
    num_bytes: Ints
    seconds: Floats


@dataclass(frozen=True, eq=False)
class TensorTable:
    """Tensors of one microbatch: its inputs and the results of its ops; a view is the tensor that it shows.

    Attributes
    ----------
    names : path of the input, or address of the op that makes it.
    kinds : of an input (``param``, ``buffer``, ``batch``, ``rng``, ``constant``, ``total``); ``value`` of all others.
    num_bytes : of each.
    producer : op that makes it; -1 for an input.
    consumer_offsets, consumers : ops that read tensor ``i``, in program order, are
        ``consumers[consumer_offsets[i]:consumer_offsets[i + 1]]``.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    num_bytes: Ints
    producer: Ints
    consumer_offsets: Ints
    consumers: Ints

    def consumers_of(self, tensor: int) -> Ints:
        """Ops that read a tensor, in program order."""
        return self.consumers[self.consumer_offsets[tensor] : self.consumer_offsets[tensor + 1]]


@dataclass(frozen=True, eq=False)
class LayerTable:
    """Layers of a program in program order, where plans cut and recompute: what each costs for one microbatch.

    Attributes
    ----------
    paths : of the part of the model, ``blocks.3``, or the first component for what is not repeated (``tokens``).
    firsts : address of its first op, at which a stage can start.
    forward_s, backward_s : of its ops; communication and recomputation included, where the program has any.
    recompute_s : the part of ``backward_s`` that runs the forward pass again.
    kept_bytes : what its forward pass keeps for the backward pass.
    output_bytes : what it hands to the layers after it.
    working_bytes : the largest sum of what one op of its backward pass reads and writes, and what is recomputed.
    param_elements : of its parameters; ``trained_elements`` of those that are trained. A parameter is that of the layer
        which holds it, whoever uses it.
    """

    paths: tuple[str, ...]
    firsts: tuple[str, ...]
    forward_s: Floats
    backward_s: Floats
    recompute_s: Floats
    kept_bytes: Floats
    output_bytes: Floats
    working_bytes: Floats
    param_elements: Floats
    trained_elements: Floats

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, layers: Sequence[int], paths: Sequence[str]) -> LayerTable:
        """Some of the layers, one of them as often as it is named, under other paths."""
        index = np.asarray(layers, np.int64)
        columns = {name: getattr(self, name)[index] for name in COLUMNS}
        return replace(self, paths=tuple(paths), firsts=tuple(self.firsts[i] for i in layers), **columns)


COLUMNS = tuple(f.name for f in fields(LayerTable) if f.name not in ("paths", "firsts"))
"""Names of the arrays of a `LayerTable`."""
