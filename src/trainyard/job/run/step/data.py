"""Data: the whole batch of a step as a pure function of its number, so that any rank can take its rows at any time.

There is no position to save and nothing to seek: after a restart, or on another number of processes, step 17
trains on the rows that it would have trained on.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from trainyard.errors import TrainyardError
from trainyard.program.batch import ROOT, key_text
from trainyard.program.model import Model
from trainyard.program.program import Program, tensor_of
from trainyard.reading import count_text
from trainyard.zoo.text import TextBatches, standard_library


class DataError(TrainyardError, ValueError):
    """A batch that the model cannot be trained on; the message names the entry."""


class Data(Protocol):
    """A source of batches. Processes get a copy each, so it must be possible to pickle it."""

    def batch(self, step: int) -> Mapping[str, Tensor]:
        """All rows of a step, by input path of the program (``batch.tokens``), on the CPU."""


@dataclass(frozen=True)
class TextData:
    """Pieces of the source text of Python's standard library, a byte a token, with the next bytes as targets.

    Attributes
    ----------
    num_rows : rows of a step.
    context : tokens per row.
    vocab : of the model; bytes that it does not know become its last token.
    seed : other seeds draw other pieces.
    """

    num_rows: int
    context: int
    vocab: int = 256
    seed: int = 0

    def batch(self, step: int) -> dict[str, Tensor]:
        """``batch.tokens`` and ``batch.targets``, int64 [num_rows, context]."""
        text = TextBatches(standard_library(), self.num_rows, self.context, self.seed).batch(step)
        return {f"batch.{name}": tokens.clamp(max=self.vocab - 1) for name, tokens in text.items()}


@dataclass(frozen=True)
class FunctionData:
    """Batches from a user's function.

    Attributes
    ----------
    function : from the step to a pytree of tensors like the model's example batch. It must return the same for the
        same step in every process, and be defined at the top level of a module.
    """

    function: Callable[[int], Any]

    def batch(self, step: int) -> dict[str, Tensor]:
        """The function's tensors by path."""
        return by_path(self.function(step))


@dataclass(frozen=True, eq=False)
class FixedData:
    """The same batch in every step: for measuring, and for trying a model out.

    Attributes
    ----------
    tensors : a pytree of tensors, such as a model's example batch.
    """

    tensors: Any

    def batch(self, step: int) -> dict[str, Tensor]:
        """The tensors by path, whatever the step."""
        return by_path(self.tensors)


def example_data(model: Model, num_rows: int) -> tuple[Data, str]:
    """Data to train a model of the zoo on, and what it is, in words.

    For language models the source text of Python's standard library; otherwise the model's example batch, again and
    again, which shows that training works and how fast it is.
    """
    if isinstance(model.batch, dict) and set(model.batch) == {"tokens", "targets"}:
        vocab = next(m.num_embeddings for m in model.module.modules() if isinstance(m, nn.Embedding))
        context = model.batch["tokens"].shape[1]
        return TextData(num_rows, context, vocab), "the source of Python's standard library, byte by byte"
    return FixedData(model.batch), "the example batch of the model, again and again"


def plain_batch(batch: Any) -> Any:
    """Return a batch as a dictionary if it is a mapping of another kind, such as a BatchEncoding of Hugging Face."""
    return dict(batch) if isinstance(batch, Mapping) and not isinstance(batch, dict) else batch


def by_path(batch: Any) -> dict[str, Tensor]:
    """Return the tensors of a pytree by paths, as a program's inputs are called: ``batch.tokens``.

    Raises
    ------
    DataError
        If a leaf is no tensor.
    """
    found: dict[str, Tensor] = {}
    for path, leaf in pytree.tree_flatten_with_path(plain_batch(batch))[0]:
        name = ".".join([ROOT, *map(key_text, path)])
        if not isinstance(leaf, Tensor):
            raise DataError(f"{name} is a {type(leaf).__name__}; a batch holds tensors only")
        found[name] = leaf.detach()
    return found


def check_batch(batch: Mapping[str, Tensor], program: Program, num_rows: int) -> None:
    """Compare a batch with what the program was captured on.

    Raises
    ------
    DataError
        If an entry is missing, has another shape or kind of number, or lies on the meta device.
    """
    for entry in (i for i in program.inputs if i.kind == "batch"):
        expected = tensor_of(program.nodes[entry.node])
        shape = tuple(expected.shape) if entry.whole else (num_rows, *expected.shape[1:])
        if entry.path not in batch:
            raise DataError(f"the data has no {entry.path}; it has {', '.join(batch) or 'nothing'}")
        given = batch[entry.path]
        if tuple(given.shape) != shape or _kind(given) != _kind(expected):
            raise DataError(
                f"{entry.path} is {given.dtype} {tuple(given.shape)}; the model was captured with "
                f"{expected.dtype} and the plan trains on {count_text(num_rows, 'row')} a step: {shape}. "
                "All batches have one shape: pad them to one length (collate_fn of a DataLoader), or say to which ones "
                "they are padded (Model(..., lengths=Lengths(...))), and leave out a last one of fewer rows (drop_last)"
            )
        if given.device.type == "meta":
            raise DataError(
                f"{entry.path} holds no numbers (it is on the meta device); make the data on the CPU"
            )


def _kind(tensor: Tensor) -> tuple[bool, bool, bool]:
    """Return the kind of numbers of a type: numbers that differ in precision only are converted."""
    return tensor.is_floating_point(), tensor.is_complex(), tensor.dtype is torch.bool


def checksum(tensor: Tensor) -> int:
    """Compute a checksum of shape, type and bits; a tensor on the meta device has no bits."""
    described = zlib.crc32(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    if tensor.device.type == "meta":
        return described
    plain = tensor.detach().cpu()
    plain = plain.to_dense() if plain.layout != torch.strided else plain
    plain = plain.resolve_conj().resolve_neg().contiguous()
    return zlib.crc32(plain.flatten().view(torch.uint8).numpy().data, described)


def num_tokens(batch: Mapping[str, Tensor]) -> int:
    """Tokens of a batch of sequences (integers [rows, length]); 0 for other data."""
    tokens = batch.get("batch.tokens")
    is_text = tokens is not None and tokens.dim() == 2 and tokens.dtype in (torch.int64, torch.int32)
    return tokens.numel() if tokens is not None and is_text else 0
