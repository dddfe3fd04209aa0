"""Models of the zoo that `trainyard serve run` computes with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.cli.serve.engine_options import LocalEngineOptions
from trainyard.serve.errors import ServeError

if TYPE_CHECKING:
    from trainyard.serve.run.engine_process import EngineSpec

__all__ = ["random_specs"]


def random_specs(
    options: LocalEngineOptions,
    models: Mapping[str, str],
    policy: str,
    folder: Path,
    num_models: int,
    tensor_parallel: int = 1,
) -> Mapping[str, EngineSpec]:
    """How models are computed with random weights.

    Parameters
    ----------
    models : names in the zoo, by the names that requests call them by.
    policy : the name of one.
    folder : an empty one, for their configurations and tokenizers.
    num_models : that share the machine, others included.
    tensor_parallel : processes that share each model.

    Raises
    ------
    ServeError
        If a model is not known or cannot be served so, or the models need more memory than is free.
    """
    from trainyard.serve.run.random_model import random_model, save_random_model
    from trainyard.zoo.registry import config_of

    specs = {}
    for number, (name, model) in enumerate(models.items()):
        try:
            config = config_of(model)
        except ValueError as error:
            raise ServeError(f"there is no folder {model} with a model, and in the zoo: {error}") from error
        within = folder / str(number)
        within.mkdir()
        saved = save_random_model(model, config, within / model)
        spec = options.spec(saved, policy, num_models, tensor_parallel)
        specs[name] = replace(spec, load=random_model)
    _require_memory(specs)
    return specs


def _require_memory(specs: Mapping[str, EngineSpec]) -> None:
    """Refuse models that need more memory than is free."""
    import psutil

    from trainyard.report.units import bytes_text
    from trainyard.serve.run.random_model import weight_bytes
    from trainyard.serve.run.server.cache_size import block_bytes

    weights = caches = 0
    for spec in specs.values():
        num_processes = spec.shards.num_ranks if spec.shards is not None else 1
        weights += num_processes * weight_bytes(spec.folder, spec.dtype)  # each draws all, and keeps its part
        num_blocks = spec.options.num_blocks + spec.options.num_host_blocks
        caches += num_blocks * block_bytes(spec.folder, spec.options.block_tokens, spec.dtype)
    free = psutil.virtual_memory().available
    if weights + caches > free:
        raise ServeError(
            f"{', '.join(specs)} with random weights: {bytes_text(weights)} of weights and {bytes_text(caches)} of KV "
            f"cache are needed, and {bytes_text(free)} of memory are free; give a smaller model, --dtype bfloat16, or "
            "less --cache-memory"
        )
