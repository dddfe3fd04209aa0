"""Options about a deployment: what a server would be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from trainyard.cli.bounds import DEVICES, TOKENS
from trainyard.cli.serve.requests import quantity

if TYPE_CHECKING:
    from trainyard.serve.deployment import Deployment

__all__ = ["DeployOptions", "deployment_document", "deployment_facts"]


@dataclass(frozen=True, kw_only=True)
class DeployOptions:
    """A model on a cluster, as a server is told."""

    model: Annotated[str, tyro.conf.arg(metavar="M")]
    """A language model: its name, such as llama3-8b, a Python file, or a config.json of Hugging Face."""
    cluster: Annotated[str, tyro.conf.arg(metavar="C")]
    """NODESxDEVICESxTYPE, such as 1x2xA100-80G; or a YAML file (see `trainyard hardware`)."""
    kernels: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Folder of measured times: profiles of layers, or an installed aiconfigurator_core; by default seconds are predicted
    from what is known of the device. After a colon may stand which model or server of it is meant."""
    dtype: Annotated[str, tyro.conf.arg(metavar="NAME")] = "bfloat16"
    """Of weights: float32, float16, bfloat16, float8 or float4; keys and values have at least 16 bits."""
    tp: Annotated[int, tyro.conf.arg(metavar="N"), DEVICES] = 1
    """Devices over which each layer is split: tensor parallelism."""
    pp: Annotated[int, tyro.conf.arg(metavar="N"), DEVICES] = 1
    """Stages of layers, each on devices of its own: pipeline parallelism."""
    dp: Annotated[int, tyro.conf.arg(metavar="N"), DEVICES] = 1
    """Ranks of a replica with attention, requests and a cache of their own, which share the experts of a mixture: data
    parallelism of attention."""
    expert_parallel: bool = False
    """Deal the experts of a mixture out to the devices of --tp, instead of giving each a part of every expert."""
    replicas: Annotated[int | None, tyro.conf.arg(metavar="N"), DEVICES] = None
    """Copies of the model; by default as many as the cluster has room for."""
    cache_blocks: Annotated[int | None, tyro.conf.arg(metavar="N"), TOKENS] = None
    """Blocks of the cache of a replica; by default as many as fit beside the weights."""
    cache_memory: Annotated[str | None, tyro.conf.arg(metavar="SIZE")] = None
    """The same as memory of each device, such as 40GB."""
    host_cache_memory: Annotated[str | None, tyro.conf.arg(metavar="SIZE")] = None
    """Memory of the host, for each device, to which policies that swap may swap requests out; by default none."""
    block_tokens: Annotated[int, tyro.conf.arg(metavar="N"), TOKENS] = 16
    """Tokens of a block."""
    max_model_len: Annotated[int | None, tyro.conf.arg(metavar="N"), TOKENS] = None
    """The longest sequence, prompt and output together; by default what the model and the cache allow."""

    def deployment(self) -> Deployment:
        """The deployment.

        Raises
        ------
        ServeError
            If options do not go together, or the model does not fit.
        """
        from trainyard.hardware.parse import parse_cluster
        from trainyard.reading.quantities import parse_bytes
        from trainyard.serve.deploy import deploy
        from trainyard.serve.errors import ServeError

        cache_bytes = None
        if self.cache_memory is not None:
            cache_bytes = quantity("--cache-memory", self.cache_memory, parse_bytes)
            if self.cache_blocks is not None:
                raise ServeError(
                    "--cache-blocks and --cache-memory both say how large the cache is; give one"
                )
        host_bytes = 0
        if self.host_cache_memory is not None:
            host_bytes = quantity("--host-cache-memory", self.host_cache_memory, parse_bytes)
        return deploy(
            self.model,
            parse_cluster(self.cluster),
            kernels=self.kernels,
            dtype=self.dtype,
            tensor_parallel=self.tp,
            pipeline_stages=self.pp,
            data_parallel=self.dp,
            expert_parallel=self.expert_parallel,
            num_replicas=self.replicas,
            cache_blocks=self.cache_blocks,
            cache_bytes=cache_bytes,
            block_tokens=self.block_tokens,
            host_cache_bytes=host_bytes,
            max_model_len=self.max_model_len,
        )


def deployment_document(deployment: Deployment) -> dict[str, Any]:
    """What a deployment is, in numbers."""
    model = deployment.model
    return {
        "model": model.name,
        "num_replicas": deployment.num_replicas,
        "num_devices": deployment.num_devices,
        "tensor_parallel": model.tensor_parallel,
        "pipeline_stages": model.pipeline_stages,
        "data_parallel": model.data_parallel,
        "num_blocks": deployment.num_blocks,
        "num_host_blocks": deployment.num_host_blocks,
        "block_tokens": deployment.block_tokens,
        "max_model_len": deployment.max_model_len,
        "weight_bytes": model.weight_bytes,
        "cache_bytes_per_token": model.cache_bytes_per_token,
        "usable_bytes": model.usable_bytes,
        "activation_bytes": model.activation_bytes,
        "seconds_from": model.source,
    }


def deployment_facts(deployment: Deployment) -> dict[str, str]:
    """What a deployment is, for people."""
    from trainyard.report.units import bytes_text

    model, room = deployment.model, deployment.num_blocks * deployment.block_tokens
    return {
        "deployment": str(deployment),
        "weights": f"{bytes_text(model.weight_bytes)} a device",
        "cache": f"{room:,} tokens a replica, {bytes_text(room * model.cache_bytes_per_token)} a device",
        "longest sequence": f"{deployment.max_model_len:,} tokens",
        "seconds of a step": model.source,
    }
