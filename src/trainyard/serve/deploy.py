"""From a model's name and a cluster to what a server is told of them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from trainyard.hardware.cluster import Cluster
from trainyard.hardware.devices import DeviceSpec
from trainyard.job.planning import load_model
from trainyard.program.program import Program
from trainyard.serve.costs.kernels import KernelTimes, StepGraph
from trainyard.serve.costs.model_step_time import GraphCosts, ModelStepTime
from trainyard.serve.costs.predicted import PredictedKernels
from trainyard.serve.costs.step_graph import forward_program, step_graph
from trainyard.serve.deployment import Deployment, ServedModel, cache_blocks_of
from trainyard.serve.errors import ServeError

__all__ = ["FORMATS", "deploy", "served_model"]

_MEMORY_FRACTION = 0.9  # of a device, that a server takes: the default of vLLM
_STEP_TOKENS, _STEP_SEQUENCES = 2048, 256  # for which activations have room
_ACTIVATION_BYTES, _SCORE_BYTES = 2, 4


class _Format(NamedTuple):
    """How weights are held.

    Attributes
    ----------
    computed_in : format of products, as `trainyard.hardware.devices.DTYPES` names it.
    num_bytes : of a weight.
    """

    computed_in: str
    num_bytes: float


FORMATS = {
    "float32": _Format("float32", 4.0),
    "float16": _Format("float16", 2.0),
    "bfloat16": _Format("bfloat16", 2.0),
    "float8": _Format("float8", 1.0),
}
"""How weights may be held, by name. Keys and values have at least 16 bits."""


def deploy(
    model: str,
    cluster: Cluster,
    *,
    kernels: Path | None = None,
    dtype: str = "bfloat16",
    tensor_parallel: int = 1,
    pipeline_stages: int = 1,
    num_replicas: int | None = None,
    cache_blocks: int | None = None,
    cache_bytes: int | None = None,
    block_tokens: int = 16,
    max_model_len: int | None = None,
) -> Deployment:
    """Replicas of a model on a cluster.

    Parameters
    ----------
    model : its name in the zoo, or a Python file.
    cluster : whose devices serve it.
    kernels : measured times of kernels; by default they follow from the device's description.
    dtype : of weights, a key of `FORMATS`.
    tensor_parallel, pipeline_stages : how each replica is split.
    num_replicas : by default as many as the cluster has devices for.
    cache_blocks : of each replica.
    cache_bytes : memory of a device for the cache, where blocks are not given; by default what is left.
    block_tokens : that a block has room for.
    max_model_len : the longest sequence; by default that of the model, or what the cache has room for.

    Raises
    ------
    ServeError
        If the model cannot be split so or does not fit, or there are not enough devices.
    """
    served = served_model(
        model,
        cluster,
        tensor_parallel=tensor_parallel,
        pipeline_stages=pipeline_stages,
        dtype=dtype,
        kernels=kernels,
    )
    most = cluster.num_devices // served.num_devices
    replicas = most if num_replicas is None else num_replicas
    if not 1 <= replicas <= most:
        raise ServeError(
            f"{replicas} replicas of {served.num_devices} devices; allowed is 1 to {most} on the {cluster.num_devices} "
            f"devices of {cluster.name}; use a larger cluster"
        )
    num_blocks = cache_blocks_of(served, block_tokens, cache_bytes) if cache_blocks is None else cache_blocks
    length = min(served.context, num_blocks * block_tokens) if max_model_len is None else max_model_len
    return Deployment(served, replicas, num_blocks, length, block_tokens)


def served_model(
    model: str,
    cluster: Cluster,
    *,
    tensor_parallel: int = 1,
    pipeline_stages: int = 1,
    dtype: str = "bfloat16",
    kernels: Path | None = None,
) -> ServedModel:
    """A model on the first devices of a cluster; parameters and errors as of `deploy`."""
    if dtype not in FORMATS:
        raise ServeError(f"dtype {dtype!r}; allowed are {', '.join(FORMATS)}")
    if min(tensor_parallel, pipeline_stages) < 1:
        raise ServeError(f"{tensor_parallel} shards x {pipeline_stages} stages; allowed is 1 or more of both")
    num_devices = tensor_parallel * pipeline_stages
    if num_devices > cluster.num_devices:
        raise ServeError(
            f"{tensor_parallel} shards x {pipeline_stages} stages need {num_devices} devices; {cluster.name} has "
            f"{cluster.num_devices}; use fewer, or a larger cluster"
        )
    cluster.require_known()
    graph = step_graph(_program(model), tensor_parallel)
    times, source = _kernel_times(cluster, tensor_parallel, dtype, kernels)
    weight_bytes = graph.num_weights * FORMATS[dtype].num_bytes
    return ServedModel(
        model,
        ModelStepTime(GraphCosts(graph, times, pipeline_stages)),
        tensor_parallel,
        pipeline_stages,
        int(weight_bytes / pipeline_stages),
        int(graph.cached_per_token * _cache_bytes(dtype) / pipeline_stages),
        _usable_bytes(cluster.devices[0]),
        _activation_bytes(graph),
        _context(model),
        source,
    )


def _kernel_times(
    cluster: Cluster, tensor_parallel: int, dtype: str, kernels: Path | None
) -> tuple[KernelTimes, str]:
    """Seconds of kernels, and where they come from."""
    if kernels is not None:
        raise ServeError("--kernels")
    form = FORMATS[dtype]
    times = PredictedKernels(cluster, tensor_parallel, form.computed_in, form.num_bytes, _cache_bytes(dtype))
    return times, f"predicted from the description of {cluster.devices[0].name}"


def _cache_bytes(dtype: str) -> float:
    return max(2.0, FORMATS[dtype].num_bytes)


def _usable_bytes(device: DeviceSpec) -> int:
    overhead = device.overhead
    return int(device.usable_bytes * _MEMORY_FRACTION) - overhead.context_bytes - overhead.segment_bytes


def _activation_bytes(graph: StepGraph) -> int:
    """Of the widest kernel of a step, and the scores of all words."""
    widest = max(num for num, _ in graph.pointwise)
    scores = max((each.columns for each, _ in graph.products if each.is_of_last_tokens), default=0)
    return _STEP_TOKENS * widest * _ACTIVATION_BYTES + _STEP_SEQUENCES * scores * _SCORE_BYTES


@lru_cache(maxsize=8)
def _program(model: str) -> Program:
    with torch.device("meta"):
        return forward_program(load_model(model))


@lru_cache(maxsize=8)
def _context(model: str) -> int:
    """The longest sequence of a model: that of its example batch."""
    with torch.device("meta"):
        batch = load_model(model).batch
    leaves = torch.utils._pytree.tree_leaves(batch)
    return max(int(leaf.shape[1]) for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim() > 1)
