"""Models that `trainyard serve run` serves in the time that they would take on other hardware."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.cli.serve.engine_options import LocalEngineOptions
from trainyard.cli.serve.requests import quantity

if TYPE_CHECKING:
    from trainyard.serve.run.simulated_engine import SimulatedEngineSpec

__all__ = ["simulated_spec"]


def simulated_spec(
    choices: LocalEngineOptions, model: str, policy: str, cluster: str, tensor_parallel: int, spare: Path
) -> SimulatedEngineSpec:
    """How a model is simulated.

    Parameters
    ----------
    cluster : as text; its first devices serve the model.
    tensor_parallel : of these devices, how many share each layer.
    spare : an empty folder for a tokenizer with a token for each byte, where the model has none of its own.

    Raises
    ------
    ServeError
        If the model does not fit on the devices, or options do not go together.
    """
    from trainyard.hardware.parse import parse_cluster
    from trainyard.reading.quantities import parse_bytes
    from trainyard.serve.deploy import deploy
    from trainyard.serve.run.engine import EngineOptions
    from trainyard.serve.run.simulated_engine import SimulatedEngineSpec, save_byte_tokenizer

    given = {
        name: None if text is None else quantity(f"--{name.replace('_', '-')}", text, parse_bytes)
        for name, text in (
            ("cache_memory", choices.cache_memory),
            ("host_cache_memory", choices.host_cache_memory),
        )
    }
    found = deploy(
        model,
        parse_cluster(cluster),
        tensor_parallel=tensor_parallel,
        dtype=choices.dtype,
        num_replicas=1,
        cache_blocks=choices.cache_blocks,
        cache_bytes=given["cache_memory"],
        block_tokens=choices.block_tokens,
        host_cache_bytes=given["host_cache_memory"] or 0,
        max_model_len=choices.max_model_len,
    )
    options = EngineOptions(found.num_blocks, found.block_tokens, found.num_host_blocks, found.max_model_len)
    folder = Path(model)
    if not (folder / "tokenizer.json").is_file():
        folder = save_byte_tokenizer(spare)
    return SimulatedEngineSpec(folder, policy, options, model, cluster, tensor_parallel, choices.dtype)
