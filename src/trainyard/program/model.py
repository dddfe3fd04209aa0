"""Model: what the user gives, a module with a loss and an example batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from trainyard.program.lengths import Lengths
from trainyard.reading.arguments import name_list, require_field_types, require_function, require_type
from trainyard.shown import Shown

_LENGTHS = 'Lengths, such as Lengths((64, 128), pad={"input_ids": 0, "labels": -100})'
Loss = Callable[[nn.Module, Any], Tensor | tuple[Tensor, dict[str, Tensor]]]


@dataclass(frozen=True, eq=False, repr=False)
class Model(Shown):
    """One thing to train.

    Attributes
    ----------
    name : what reports call it.
    module : the network; its parameters may be on the meta device or fake, no value is read.
    loss : runs the module on a batch and returns the scalar to differentiate, or that scalar and a dictionary of
        further scalars to report. Whatever the plan, it is the loss of the whole batch: a batch is split into
        microbatches only where what they compute adds up to that (see `trainyard.job.lower.split`).
    batch : an example batch, a pytree (dictionary, tuple) of tensors whose dim 0 counts the rows.
    whole : names of entries of the batch that are not cut into rows, such as ``edge_index``, the edges of a graph:
        every rank and every microbatch gets all of such an entry. Its size may be any, but is the same in all steps.
        The entry of an entry is named with a point, as ``graph.edge_index``; positions in a tuple by their number.
    lengths : sizes to which batches of varying length are padded; None if all batches have one shape. The example batch
        is filled up to the largest, for which the run is planned; the same plan is applied to the others.

    Raises
    ------
    WrongTypeError
        If an attribute is of another type.
    LengthError
        If the example batch does not go with ``lengths``.

    References
    ----------
    See ``trainyard.zoo`` for ready ones.
    """

    name: str
    module: nn.Module
    loss: Loss
    batch: Any
    whole: tuple[str, ...] = ()
    lengths: Lengths | None = None

    def __post_init__(self) -> None:
        require_field_types(self)
        require_type("module", self.module, nn.Module, "a torch.nn.Module")
        require_function("loss", self.loss)
        object.__setattr__(self, "whole", name_list("whole", self.whole))
        if self.lengths is not None:
            require_type("lengths", self.lengths, Lengths, _LENGTHS)
            object.__setattr__(self, "batch", self.lengths.example(self.batch, self.lengths.largest))

    def at_length(self, size: int) -> Model:
        """Return the model for batches of one of its lengths, with an example batch of that length."""
        assert self.lengths is not None
        return replace(self, batch=self.lengths.example(self.batch, size), lengths=None)
