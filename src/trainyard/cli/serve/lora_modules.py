"""LoRA adapters on the command line."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.cli.lists import between_commas
from trainyard.reading import listed
from trainyard.serve.errors import ServeError

if TYPE_CHECKING:
    from trainyard.serve.run.server.served_models import NamedAdapter

__all__ = ["parse_lora_modules"]

_FORM = "--lora-modules is NAME=FOLDER, or NAME=MODEL:FOLDER where several models are served"


def parse_lora_modules(text: str, models: Collection[str]) -> tuple[NamedAdapter, ...]:
    """Read the adapters that a server begins with.

    Parameters
    ----------
    text : ``NAME=FOLDER`` or ``NAME=MODEL:FOLDER``, separated by commas.
    models : names of the models that are served.

    Raises
    ------
    ServeError
        If it does not read so, a name is taken, or a folder has no adapter that can be served.
    """
    from trainyard.serve.run.lora_adapter import read_lora_config
    from trainyard.serve.run.server.served_models import NamedAdapter

    found: dict[str, NamedAdapter] = {}
    for part in between_commas(text):
        name, _, path = part.partition("=")
        if not name or not path:
            raise ServeError(f"--lora-modules has {part!r}; {_FORM}")
        if name in found or name in models:
            raise ServeError(f"--lora-modules: two models are called {name!r}; give one another name")
        named = [each for each in models if path.startswith(f"{each}:")]
        if not named and len(models) > 1:
            raise ServeError(
                f"--lora-modules: {part!r} does not say for which model; {_FORM}; models are {listed(models)}"
            )
        base = max(named, key=len, default=next(iter(models)))
        folder = Path(path.removeprefix(f"{base}:"))
        read_lora_config(folder)
        found[name] = NamedAdapter(name, folder, base)
    return tuple(found.values())
