"""The interface of models that an engine computes steps with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor

from trainyard.serve.batch import CacheOp, WorkItem
from trainyard.serve.request_state import RequestState

__all__ = ["StepModel"]


class StepModel(Protocol):
    """Computes the items of a batch.

    Attributes
    ----------
    name : by which errors call it.
    context : the longest sequence that it was made for, in tokens.
    vocabulary : number of tokens that it knows.
    """

    name: str
    context: int
    vocabulary: int

    def new_cache(self, num_blocks: int, block_tokens: int, num_host_blocks: int) -> None:
        """Keep keys and values in a new KV cache from now on.

        Parameters
        ----------
        num_blocks, num_host_blocks : blocks on the device and on the host.
        block_tokens : tokens per block.
        """
        ...

    def apply(self, ops: Sequence[CacheOp]) -> None:
        """Do the operations of a batch on the KV cache, in their order."""
        ...

    def load_adapter(self, adapter: str, folder: Path) -> None:
        """Read an adapter; requests choose it by `Request.adapter`.

        Parameters
        ----------
        adapter : its name.
        folder : as PEFT saves it.

        Raises
        ------
        ServeError
            If the model cannot be computed with it.
        """
        ...

    def unload_adapter(self, adapter: str) -> None:
        """Forget an adapter that was loaded."""
        ...

    def logits(
        self, items: Sequence[WorkItem], requests: Mapping[int, RequestState], rows: Sequence[int]
    ) -> Tensor:
        """Compute a step.

        Parameters
        ----------
        items : of the batch.
        requests : those that run, by number.
        rows : numbers of the tokens after which scores are wanted, among the tokens of all items in their order.

        Returns
        -------
        Scores of all words after each of these tokens, in float32; shape ``(rows, vocabulary)``.
        """
        ...

    def report_progress(self, report: Callable[[], None]) -> None:
        """Call a function whenever a layer is computed."""
        ...

    def close(self) -> None:
        """End what it has started; it computes no more steps."""
        ...
