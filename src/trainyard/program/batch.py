"""The batch of a model: its tensors by path, how many rows it has, and which of them have none."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from trainyard.program.capture_error import CaptureError
from trainyard.program.refusals import kind_of, plain_instead

ROOT = "batch"


def batch_tensors(batch: Any) -> dict[str, Tensor]:
    """The tensors of a batch by path, such as ``batch.tokens``.

    Raises
    ------
    CaptureError
        If a leaf is no tensor, or not a plain one.
    """
    found: dict[str, Tensor] = {}
    for path, leaf in pytree.tree_flatten_with_path(batch)[0]:
        if not isinstance(leaf, Tensor):
            raise CaptureError(
                f"{ROOT}{pytree.keystr(path)} is a {type(leaf).__name__}; a batch holds tensors only"
            )
        name = ".".join([ROOT, *map(key_text, path)])
        if kind := kind_of(leaf):
            raise CaptureError(f"{name} is a {kind}; a batch holds plain ones: {plain_instead(kind)}")
        found[name] = leaf
    return found


def key_text(entry: Any) -> str:
    """A part of a path in a pytree: the key, index or attribute."""
    return str(getattr(entry, "key", getattr(entry, "idx", getattr(entry, "name", entry))))


def whole_paths(batch: Any, whole: Collection[str]) -> frozenset[str]:
    """The paths of the tensors that are declared whole: of an entry that is a container, all that it holds.

    Raises
    ------
    CaptureError
        If the batch has no such entry.
    """
    paths = list(batch_tensors(batch))
    found: set[str] = set()
    for name in whole:
        inside = entry_paths(paths, name)
        if not inside:
            known = ", ".join(p.removeprefix(f"{ROOT}.") for p in paths)
            raise CaptureError(f"whole names {name!r}, which the batch does not have; it has {known}")
        found |= {*inside}
    return frozenset(found)


def entry_paths(paths: Iterable[str], name: str) -> list[str]:
    """Return the paths of an entry of a batch, by its name; a container has those of all that it holds."""
    entry = name if name.startswith(f"{ROOT}.") else f"{ROOT}.{name}"
    return [path for path in paths if path == entry or path.startswith(f"{entry}.")]


def batch_rows(batch: Any, whole: Collection[str] = ()) -> int:
    """Rows (size of dim 0) of a batch; 1 where all of it is whole.

    Parameters
    ----------
    whole : names of entries that are not cut into rows (see ``Model.whole``).

    Raises
    ------
    CaptureError
        If its tensors disagree, there are none, or ``whole`` names what is not there.
    """
    tensors, kept = batch_tensors(batch), whole_paths(batch, whole)
    sizes = {path: t.shape[0] if t.dim() else None for path, t in tensors.items() if path not in kept}
    if tensors and not sizes:
        return 1
    if None in sizes.values() or len(set(sizes.values())) != 1:
        raise CaptureError(
            f"every tensor of the batch must have the same number of rows in dim 0; given {sizes}. "
            "Declare those that have none, such as the edges of a graph or a table, as whole: every rank gets all of "
            'them. With Model(..., whole=("edge_index",)), or in a file beside `def model():` the line '
            'whole = ("edge_index",). What never changes belongs into the module as a buffer'
        )
    return int(next(iter(sizes.values())) or 0)
