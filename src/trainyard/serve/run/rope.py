"""The longest sequence whose rotary angles do not depend on the other sequences of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainyard.reading import shown
from trainyard.serve.errors import ServeError

__all__ = ["longest_alike"]

_OF_POSITION = frozenset({"default", "linear", "yarn", "llama3", "proportional"})
"""Types whose angles depend on the position of a token only."""
_TURNED_BY_LENGTH = frozenset({"dynamic", "longrope"})
"""Types whose angles depend on the position only, up to a length; all angles of a longer sequence are others."""


def longest_alike(name: str, config: Any) -> int | None:
    """Return the longest sequence, in tokens, in which a model turns each position by the same angle.

    Transformers chooses the angles of ``dynamic`` and ``longrope`` by the longest sequence of a step. Up to the length
    that the model was first trained for they are the same in every step. Beyond, requests would change each other's
    answers.

    Parameters
    ----------
    name : by which errors call the model.
    config : of transformers.

    Returns
    -------
    None if the angles do not depend on the length.

    Raises
    ------
    ServeError
        If it is not known on what they depend.
    """
    lengths = []
    for rope in _ropes(getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)):
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind in _OF_POSITION:
            continue
        if kind not in _TURNED_BY_LENGTH:
            known = ", ".join(sorted(_OF_POSITION | _TURNED_BY_LENGTH))
            raise ServeError(f"{name} turns positions by rope_type {shown(kind)}; allowed are {known}")
        length = config.max_position_embeddings
        if kind == "longrope":
            length = rope.get("original_max_position_embeddings", length)
        if type(length) is not int or length < 1:
            raise ServeError(
                f"{name} has original_max_position_embeddings {shown(length)}; allowed is a number of tokens, from 1 on"
            )
        lengths.append(length)
    return min(lengths, default=None)


def _ropes(given: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the parameters of all layers: one set, or one by the type of layers."""
    if isinstance(given, Mapping):
        of_layers = [each for each in given.values() if isinstance(each, Mapping)]
        yield from of_layers or [given]
