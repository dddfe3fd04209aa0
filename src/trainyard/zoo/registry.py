"""The models by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial

from trainyard.program.model import Model
from trainyard.zoo import gpt

Builder = Callable[[str, int], Model]


def _gpt(rows: int, **sizes: int | float) -> tuple[Builder, int]:
    config = gpt.GPTConfig(**sizes)  # type: ignore[arg-type]
    return partial(_call, gpt.build, config), rows


def _call(build: Callable[[str, object, int], Model], config: object, name: str, rows: int) -> Model:
    return build(name, config, rows)


BUILDERS: dict[str, tuple[Builder, int]] = {
    "gpt-tiny": _gpt(4, vocab=128, context=16, layers=2, hidden=64, heads=4),
    "gpt2": _gpt(8),
}


def build(name: str, batch_rows: int | None = None) -> Model:
    """Build a model of the zoo.

    Raises
    ------
    ValueError
        If the name is unknown; the message lists the known names, close ones first.
    """
    if name not in BUILDERS:
        close = difflib.get_close_matches(name, BUILDERS, n=len(BUILDERS), cutoff=0.4)
        others = [n for n in BUILDERS if n not in close]
        raise ValueError(f"unknown model {name!r}; known: {', '.join([*close, *others])}")
    builder, rows = BUILDERS[name]
    return builder(name, rows if batch_rows is None else batch_rows)
