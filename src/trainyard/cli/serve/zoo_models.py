"""Models of the zoo that `trainyard serve run` computes with random weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.serve.errors import ServeError

if TYPE_CHECKING:
    from trainyard.serve.run.engine_process import EngineSpec

__all__ = ["require_memory", "saved_random_model"]


def saved_random_model(model: str, folder: Path) -> Path:
    """Save the configuration of a model of the zoo, and a tokenizer for it, without weights.

    Parameters
    ----------
    model : its name in the zoo.
    folder : a new one.

    Returns
    -------
    Where it is saved.

    Raises
    ------
    ServeError
        If the model is not known or cannot be served so.
    """
    from trainyard.serve.run.random_model import save_random_model
    from trainyard.zoo.registry import config_of

    try:
        config = config_of(model)
    except ValueError as error:
        raise ServeError(f"there is no folder {model}; as a model of the zoo: {error}") from error
    folder.mkdir()
    return save_random_model(model, config, folder / model)


def require_memory(specs: Mapping[str, Sequence[EngineSpec]]) -> None:
    """Refuse models with random weights that need more memory than is free.

    Parameters
    ----------
    specs : how each replica is computed, by the name of the model.

    Raises
    ------
    ServeError
        Says how much they need.
    """
    import psutil

    from trainyard.report.units import bytes_text
    from trainyard.serve.run.random_model import weight_bytes
    from trainyard.serve.run.server.cache_size import block_bytes

    weights = caches = 0
    for spec in (spec for replicas in specs.values() for spec in replicas):
        num_processes = spec.shards.num_ranks if spec.shards is not None else 1
        weights += num_processes * weight_bytes(spec.folder, spec.dtype)  # each draws all, and keeps its part
        num_blocks = spec.options.num_blocks + spec.options.num_host_blocks
        caches += num_blocks * block_bytes(spec.folder, spec.options.block_tokens, spec.dtype)
    free = psutil.virtual_memory().available
    if weights + caches > free:
        raise ServeError(
            f"{', '.join(specs)} with random weights: {bytes_text(weights)} of weights and {bytes_text(caches)} of KV "
            f"cache are needed, and {bytes_text(free)} of memory are free; give a smaller model, fewer --replicas, "
            "--dtype bfloat16, or less --cache-memory"
        )
