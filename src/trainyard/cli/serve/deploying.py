"""Options that describe a deployment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from trainyard.cli.bounds import DEVICES, TOKENS
from trainyard.cli.quantities import Size
from trainyard.cli.serve.cache_memory import cache_bytes

if TYPE_CHECKING:
    from trainyard.serve.costs.expected_error import ExpectedError
    from trainyard.serve.deployment import Deployment

__all__ = ["DeployOptions", "deployment_document", "deployment_facts", "errors_to_expect"]


@dataclass(frozen=True, kw_only=True)
class DeployOptions:
    """A model on a cluster."""

    heading = "model and cluster"
    model: Annotated[str, tyro.conf.arg(metavar="M")]
    """A language model: its name, such as llama3-8b, a Python file, or a config.json of Hugging Face."""
    cluster: Annotated[str, tyro.conf.arg(metavar="C")]
    """NODESxDEVICESxTYPE, such as 1x2xA100-80G; or a YAML file (see `trainyard hardware`)."""
    kernels: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Folder of measured kernel times: layer profiles, or an installed aiconfigurator_core. PATH:NAME chooses a model of
    the profiles, or a server of aiconfigurator. By default, times are predicted from the device's peak rates."""
    host_time: Annotated[str, tyro.conf.arg(metavar="NAME")] = "overlapped"
    """Time between steps in which devices wait for the host: overlapped (none), vllm-0.5, vllm-0.6, or seconds of a step
    and of each request in it, such as 2ms+20us."""
    dtype: Annotated[str, tyro.conf.arg(metavar="NAME")] = "bfloat16"
    """Type of the weights: float32, float16, bfloat16, float8 or float4. The KV cache has at least 16 bits."""
    tp: Annotated[int, tyro.conf.arg(metavar="N"), DEVICES] = 1
    """Tensor parallelism: devices over which each layer is split."""
    pp: Annotated[int, tyro.conf.arg(metavar="N"), DEVICES] = 1
    """Pipeline parallelism: stages of layers, each on its own devices."""
    dp: Annotated[int, tyro.conf.arg(metavar="N"), DEVICES] = 1
    """Data-parallel attention, for mixtures of experts: ranks of a replica that have their own requests and KV cache, and
    share the experts."""
    expert_parallel: bool = False
    """Expert parallelism: each device of --tp holds whole experts, instead of a slice of every expert."""
    replicas: Annotated[int | None, tyro.conf.arg(metavar="N"), DEVICES] = None
    """Copies of the model, each on --tp x --pp x --dp devices; by default as many as the cluster has devices for."""
    cache_blocks: Annotated[int | None, tyro.conf.arg(metavar="N"), TOKENS] = None
    """KV cache of a replica, in blocks; by default as many as fit beside the weights and the activations of the largest
    step. At most as many as fit beside the weights: a server's own number is taken."""
    cache_memory: Size | None = None
    """KV cache as memory on each device, such as 40GB, instead of --cache-blocks."""
    host_cache_memory: Size | None = None
    """Host memory per device for swapped-out requests, under policies that swap; by default none."""
    block_tokens: Annotated[int, tyro.conf.arg(metavar="N"), TOKENS] = 16
    """Tokens per block of the KV cache."""
    max_model_len: Annotated[int | None, tyro.conf.arg(metavar="N"), TOKENS] = None
    """Longest sequence, prompt and output together; by default what the model and the KV cache allow."""
    max_loras: Annotated[int | None, tyro.conf.arg(metavar="N"), TOKENS] = None
    """LoRA adapters that are on the devices at once; others are loaded from the host when a request that uses them is
    admitted. By default all adapters are on the devices, and take no memory."""
    lora_rank: Annotated[int, tyro.conf.arg(metavar="N"), TOKENS] = 16
    """Rank of the LoRA adapters, which decides how much memory they take and how long they load."""

    def deployment(self, policies: str) -> Deployment:
        """The deployment.

        Parameters
        ----------
        policies : as `parse_policies` reads them; the largest step of any has room beside the KV cache.

        Raises
        ------
        ServeError
            If options do not go together, or the model does not fit.
        """
        from trainyard.hardware.parse import parse_cluster
        from trainyard.serve.catalog import parse_policies
        from trainyard.serve.costs.host_time import host_time_of
        from trainyard.serve.deploy import deploy
        from trainyard.serve.step_memory import largest_step

        return deploy(
            self.model,
            parse_cluster(self.cluster),
            kernels=self.kernels,
            host_time=host_time_of(self.host_time),
            dtype=self.dtype,
            tensor_parallel=self.tp,
            pipeline_stages=self.pp,
            data_parallel=self.dp,
            expert_parallel=self.expert_parallel,
            num_replicas=self.replicas,
            cache_blocks=self.cache_blocks,
            cache_bytes=cache_bytes(self.cache_memory, self.cache_blocks),
            block_tokens=self.block_tokens,
            host_cache_bytes=self.host_cache_memory or 0,
            max_model_len=self.max_model_len,
            max_loras=self.max_loras,
            lora_rank=self.lora_rank,
            step=largest_step(policy for _, policy in parse_policies(policies)),
        )


def deployment_document(deployment: Deployment) -> dict[str, Any]:
    """A deployment as numbers, for --json."""
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
        "max_loras": model.max_loras,
        "lora_bytes": model.lora_bytes,
        "weight_bytes": model.weight_bytes,
        "cache_bytes_per_token": model.cache_bytes_per_token,
        "usable_bytes": model.usable_bytes,
        "activation_bytes": model.activation_bytes,
        "step_time_from": model.source,
        "described_kernels": dict(model.described),
        "placement": [list(group.devices) for group in deployment.placement().groups],
        "plan": model.plan.to_text() if model.plan is not None else "",
    }


def deployment_facts(deployment: Deployment) -> dict[str, str]:
    """A deployment as text, by name."""
    from trainyard.report.units import bytes_text

    model = deployment.model
    cache_bytes = bytes_text(deployment.cache_bytes)
    return {
        "deployment": str(deployment),
        "weights": f"{bytes_text(model.weight_bytes)} per device",
        "KV cache": f"{deployment.cached_tokens:,} tokens per replica, {cache_bytes} per device",
        "max sequence length": f"{deployment.max_model_len:,} tokens",
        "step time": model.source,
    }


def errors_to_expect(
    deployment: Deployment, kernels: Path | None, policies: Iterable[str]
) -> list[ExpectedError]:
    """How far measured servers were from predictions like these; none for policies that no measured server has."""
    from trainyard.serve.costs.expected_error import expected_errors
    from trainyard.serve.costs.sources import time_source

    return expected_errors(policies, deployment.model.has_experts, time_source(kernels))
