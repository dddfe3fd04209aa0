"""Models that `trainyard serve run` serves in the time that they would take on other hardware."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.cli.serve.cache_memory import cache_bytes, host_cache_bytes
from trainyard.cli.serve.engine_options import BLOCK_TOKENS, LocalEngineOptions

if TYPE_CHECKING:
    from trainyard.serve.run.simulated_engine import SimulatedEngineSpec

__all__ = ["simulated_spec"]


def simulated_spec(
    options: LocalEngineOptions,
    model: str,
    policy: str,
    cluster: str,
    tensor_parallel: int,
    num_replicas: int,
    tokenizer_folder: Path,
) -> SimulatedEngineSpec:
    """How a model is simulated.

    Parameters
    ----------
    cluster : as text; its first devices serve the model.
    tensor_parallel : devices of a replica, which share each layer.
    num_replicas : for which there must be devices.
    tokenizer_folder : an empty folder for a tokenizer with a token for each byte, where the model has none of its own.

    Raises
    ------
    ServeError
        If the model does not fit on the devices, there are not enough of them, or options do not go together.
    """
    from trainyard.hardware.parse import parse_cluster
    from trainyard.serve.deploy import deploy
    from trainyard.serve.run.byte_tokenizer import save_byte_tokenizer
    from trainyard.serve.run.engine import EngineOptions
    from trainyard.serve.run.simulated_engine import SimulatedEngineSpec

    found = deploy(
        model,
        parse_cluster(cluster),
        tensor_parallel=tensor_parallel,
        dtype=options.dtype,
        num_replicas=num_replicas,
        cache_blocks=options.cache_blocks,
        cache_bytes=cache_bytes(options.cache_memory, options.cache_blocks),
        block_tokens=options.block_tokens or BLOCK_TOKENS,
        host_cache_bytes=host_cache_bytes(options.host_cache_memory),
        max_model_len=options.max_model_len,
    )
    engine = EngineOptions(found.num_blocks, found.block_tokens, found.num_host_blocks, found.max_model_len)
    folder = Path(model)
    if not (folder / "tokenizer.json").is_file():
        folder = save_byte_tokenizer(tokenizer_folder)
    return SimulatedEngineSpec(folder, policy, engine, model, cluster, tensor_parallel, options.dtype)
