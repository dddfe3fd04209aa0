"""Models that `trainyard serve run` serves in the time that they would take on other hardware."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.cli.serve.cache_memory import cache_bytes
from trainyard.cli.serve.engine_options import BLOCK_TOKENS, LocalEngineOptions
from trainyard.serve.errors import ServeError

if TYPE_CHECKING:
    from trainyard.job.plan import Plan
    from trainyard.serve.placement import Replica
    from trainyard.serve.run.simulated_engine import SimulatedEngineSpec

__all__ = ["simulated_spec"]


def simulated_spec(
    options: LocalEngineOptions,
    model: str,
    policy: str,
    cluster: str,
    replica: Replica,
    num_replicas: int,
    tokenizer_folder: Path,
) -> SimulatedEngineSpec:
    """How a model is simulated.

    Parameters
    ----------
    cluster : as text; its first devices serve the model.
    replica : how it is split.
    num_replicas : for which there must be devices.
    tokenizer_folder : an empty folder for a tokenizer with a token for each byte, where the model has none of its own.

    Raises
    ------
    ServeError
        If the model does not fit on the devices, there are not enough of them, or options do not go together.
    """
    from trainyard.hardware.parse import parse_cluster
    from trainyard.serve.catalog import parse_policies
    from trainyard.serve.deploy import deploy
    from trainyard.serve.run.byte_tokenizer import save_byte_tokenizer
    from trainyard.serve.run.engine import EngineOptions
    from trainyard.serve.run.simulated_engine import SimulatedEngineSpec
    from trainyard.serve.step_memory import largest_step

    found = deploy(
        model,
        parse_cluster(cluster),
        tensor_parallel=replica.tensor_parallel,
        pipeline_stages=replica.pipeline_stages,
        dtype=options.dtype,
        num_replicas=num_replicas,
        cache_blocks=options.cache_blocks,
        cache_bytes=cache_bytes(options.cache_memory, options.cache_blocks),
        block_tokens=options.block_tokens or BLOCK_TOKENS,
        host_cache_bytes=options.host_cache_memory or 0,
        max_model_len=options.max_model_len,
        step=largest_step(each for _, each in parse_policies(policy)),
    )
    _check_plan(replica, found.model.plan)
    engine = EngineOptions(found.num_blocks, found.block_tokens, found.num_host_blocks, found.max_model_len)
    folder = Path(model)
    if not (folder / "tokenizer.json").is_file():
        folder = save_byte_tokenizer(tokenizer_folder)
    split = replica.tensor_parallel, replica.pipeline_stages
    return SimulatedEngineSpec(folder, policy, engine, model, cluster, *split, options.dtype)


def _check_plan(replica: Replica, simulated: Plan | None) -> None:
    """Refuse a plan that the times of steps are not of."""
    plan = replica.plan
    if plan is None or simulated is None:
        return
    starts, ours = ([stage.start for stage in each.stages] for each in (plan, simulated))
    if starts != ours:
        raise ServeError(
            f"the plan of {replica.model} has stages that begin at {', '.join(starts[1:])}; those of a simulated engine "
            f"have as many layers each, and begin at {', '.join(ours[1:])}; give a placement of `serve plan --save`"
        )
    if plan.fingerprint == simulated.fingerprint and plan.placements != simulated.placements:
        raise ServeError(
            f"the plan of {replica.model} lays its weights on shards in another way than a simulated engine has them, "
            "whose products are cut by columns and then by rows; leave the plan out"
        )
