"""The interface of models that an engine computes steps with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from trainyard.serve.batch import WorkItem
from trainyard.serve.request_state import RequestState
from trainyard.serve.run.kv_cache import CacheShape, KvCache

__all__ = ["StepModel"]


class StepModel(Protocol):
    """Computes the items of a batch.

    Attributes
    ----------
    name : by which errors call it.
    context : the longest sequence that it was made for, in tokens.
    vocabulary : number of tokens that it knows.
    shapes : what each layer keeps of a token.
    """

    name: str
    context: int
    vocabulary: int
    shapes: tuple[CacheShape, ...]

    @property
    def dtype(self) -> torch.dtype:
        """Type of what is cached."""
        ...

    def use_cache(self, cache: KvCache) -> None:
        """Keep keys and values there from now on."""
        ...

    def logits(
        self, items: Sequence[WorkItem], requests: Mapping[int, RequestState], ends: Sequence[int]
    ) -> Tensor:
        """Compute a step.

        Parameters
        ----------
        items : of the batch.
        requests : those that run, by number.
        ends : numbers of the items after whose last token a score is wanted.

        Returns
        -------
        Scores of all words after each of these, in float32; shape ``(ends, vocabulary)``.
        """
        ...
