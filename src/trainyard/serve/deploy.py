"""Make a deployment from the name of a model and a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import prod
from pathlib import Path

import torch

from trainyard.cost.collectives import collective_cost
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.devices import DeviceSpec
from trainyard.job.balance import repeated_blocks
from trainyard.job.planning import load_model
from trainyard.program.model import Model
from trainyard.program.program import Program
from trainyard.serve.costs.activation_memory import step_memory
from trainyard.serve.costs.formats import FORMATS
from trainyard.serve.costs.forward_graph import forward_program
from trainyard.serve.costs.host_time import OVERLAPPED, HostTime
from trainyard.serve.costs.model_step_time import ModelStepTime, PipelineStepTime, StepCosts
from trainyard.serve.costs.sources import step_costs
from trainyard.serve.costs.split_plan import split_plan, with_whole_experts
from trainyard.serve.costs.step_graph import stage_graphs, with_shared_experts
from trainyard.serve.deployment import Deployment, ServedModel, cache_blocks_of
from trainyard.serve.errors import ServeError, check_context
from trainyard.serve.step_memory import DEFAULT_STEP, StepSize
from trainyard.serve.step_time import StepTime
from trainyard.zoo.decoder import with_heads_for_each

__all__ = ["deploy", "served_model", "usable_bytes"]

_MEMORY_FRACTION = 0.9  # of a device, that a server takes: the default of vLLM
_MOST_HOST_BLOCKS = 10_000_000
_LORA_BYTES = 2
_MANY = 1000  # blocks, of which latency is no part


def deploy(
    model: str,
    cluster: Cluster,
    *,
    kernels: Path | None = None,
    dtype: str = "bfloat16",
    tensor_parallel: int = 1,
    pipeline_stages: int = 1,
    data_parallel: int = 1,
    expert_parallel: bool = False,
    num_replicas: int | None = None,
    cache_blocks: int | None = None,
    cache_bytes: int | None = None,
    block_tokens: int = 16,
    host_cache_bytes: int = 0,
    max_model_len: int | None = None,
    max_loras: int | None = None,
    lora_rank: int = 16,
    step: StepSize = DEFAULT_STEP,
    host_time: HostTime = OVERLAPPED,
) -> Deployment:
    """Replicas of a model on the devices of a cluster.

    Parameters
    ----------
    model : its name in the zoo, a Python file, or a Hugging Face ``config.json`` or its folder.
    kernels, dtype : measured times, by default predicted, as of `step_costs`; type of the weights, a key of `FORMATS`.
    tensor_parallel, pipeline_stages, num_replicas : how each replica is split; how many, by default all with devices.
    data_parallel : ranks of a replica with their own requests and KV cache, which share the experts of a mixture.
    expert_parallel : whether each tensor-parallel device holds whole experts, instead of a slice of every expert.
    cache_blocks, cache_bytes : KV cache of a replica in blocks, or of a device; by default all that fit.
    block_tokens, step : tokens per block; and the largest step, whose activations have room.
    host_cache_bytes, host_time : host memory per device for swapped requests; and how long devices wait between steps.
    max_model_len : the longest sequence, in tokens; by default what the model and the KV cache allow.
    max_loras, lora_rank : LoRA adapters on the devices at once, by default all, in no memory; and their rank.

    Raises
    ------
    ServeError
        If the model cannot be split so, it does not fit with its KV cache, or there are not enough devices.
    """
    served = served_model(
        model,
        cluster,
        tensor_parallel=tensor_parallel,
        pipeline_stages=pipeline_stages,
        data_parallel=data_parallel,
        expert_parallel=expert_parallel,
        dtype=dtype,
        kernels=kernels,
        block_tokens=block_tokens,
        max_loras=max_loras,
        lora_rank=lora_rank,
        host_time=host_time,
    ).with_step(step)
    placed = _placed_replicas(cluster, served, num_replicas)
    num_blocks = _num_blocks(served, block_tokens, cache_blocks, cache_bytes)
    longest = _length(served, num_blocks * block_tokens, max_model_len)
    hosted = _host_blocks(host_cache_bytes, block_tokens * served.cache_bytes_per_token)
    return Deployment(served, len(placed), num_blocks, longest, block_tokens, hosted, placed)


def _placed_replicas(
    cluster: Cluster, served: ServedModel, num_replicas: int | None
) -> tuple[tuple[int, ...], ...]:
    """The devices of each replica that is deployed."""
    room = _replica_devices(cluster, served)
    return room[: _num_replicas(cluster, num_replicas, room, served.num_devices)]


def _replica_devices(cluster: Cluster, served: ServedModel) -> tuple[tuple[int, ...], ...]:
    """The devices of each replica that there is room for; those of a stage are of one node, if a node has so many."""
    size, nodes = served.tensor_parallel, [int(num) for num in cluster.devices_per_node]
    if size > max(nodes):
        nodes = [sum(nodes)]
    stages: list[tuple[int, ...]] = []
    first = 0
    for num in nodes:
        stages += [tuple(range(i, i + size)) for i in range(first, first + num - size + 1, size)]
        first += num
    per_replica = served.num_devices // size
    return tuple(
        sum(stages[i : i + per_replica], ()) for i in range(0, len(stages) - per_replica + 1, per_replica)
    )


def _num_replicas(
    cluster: Cluster, given: int | None, room: Sequence[tuple[int, ...]], num_devices: int
) -> int:
    """Count the replicas of so many devices; without room, or with unequal speeds, they are refused."""
    most = len(room)
    num_replicas = most if given is None else given
    if not 1 <= num_replicas <= most:
        raise ServeError(
            f"{num_replicas} replicas of {num_devices} devices; allowed is 1 to {most} on the {cluster.num_devices} "
            f"devices of {cluster.name}; use a larger cluster"
        )
    kinds = {cluster.devices[device].name for each in room[:num_replicas] for device in each}
    if len(kinds) > 1:
        raise ServeError(
            f"{num_replicas} replicas on devices that are not alike: {', '.join(sorted(kinds))}; give a cluster of "
            "like ones"
        )
    return num_replicas


def _num_blocks(
    served: ServedModel, block_tokens: int, cache_blocks: int | None, cache_bytes: int | None
) -> int:
    """Blocks of a replica's KV cache; more than a device has memory for are refused, as a server would."""
    if cache_blocks is None:
        return cache_blocks_of(served, block_tokens, cache_bytes)
    most = cache_blocks_of(replace(served, activation_bytes=0), block_tokens)  # as a size in bytes may be
    if cache_blocks > most:
        raise ServeError(
            f"{served.name} with {served.split}: a KV cache of {cache_blocks:,} blocks of {block_tokens} tokens; allowed "
            f"are 1 to {most:,}, which fit beside the weights; give fewer, or devices with more memory"
        )
    return cache_blocks


def _host_blocks(host_bytes: int, block_bytes: int) -> int:
    """Blocks of a replica on its host."""
    num = host_bytes // block_bytes
    if num > _MOST_HOST_BLOCKS:
        raise ServeError(
            f"{host_bytes / 1e9:.4g} GB of a host are {num:,} blocks; allowed are {_MOST_HOST_BLOCKS:,}; give less "
            "memory of the host, or larger blocks"
        )
    return num


def _length(served: ServedModel, cached_tokens: int, asked: int | None) -> int:
    """The longest sequence."""
    if asked is None:
        return min(served.context, cached_tokens)
    check_context(asked, served.name, served.context)
    return asked


def served_model(
    model: str,
    cluster: Cluster,
    *,
    tensor_parallel: int = 1,
    pipeline_stages: int = 1,
    data_parallel: int = 1,
    expert_parallel: bool = False,
    dtype: str = "bfloat16",
    kernels: Path | None = None,
    block_tokens: int = 16,
    max_loras: int | None = None,
    lora_rank: int = 16,
    host_time: HostTime = OVERLAPPED,
) -> ServedModel:
    """A model on the first devices of a cluster; parameters and errors are those of `deploy`."""
    if dtype not in FORMATS:
        raise ServeError(f"dtype {dtype!r}; allowed are {', '.join(FORMATS)}")
    _check_split(cluster, tensor_parallel, pipeline_stages, data_parallel)
    cluster.require_known()
    program = _program(model, tensor_parallel)
    plan = split_plan(program, cluster.name, tensor_parallel=tensor_parallel, pipeline_stages=pipeline_stages)
    graphs = stage_graphs(program, plan, expert_parallel=expert_parallel)
    has_experts = any(graph.experts for graph in graphs)
    if expert_parallel and not has_experts:
        raise ServeError(f"{model} has no experts that could be dealt out; leave out expert_parallel")
    if data_parallel > 1:
        graphs = (with_shared_experts(model, graphs[0], data_parallel, tensor_parallel),)
    costs, source = step_costs(model, graphs, cluster, tensor_parallel, dtype, kernels, data_parallel)
    form = FORMATS[dtype]
    token_bytes = int(max(graph.cached_per_token for graph in graphs) * form.cache_bytes)
    lora_bytes = int(lora_rank * max(graph.lora_width for graph in graphs) * _LORA_BYTES)
    weight_bytes = int(max(graph.num_weights for graph in graphs) * form.num_bytes)
    memory = tuple(dict.fromkeys(step_memory(graph) for graph in graphs))
    return ServedModel(
        model,
        _step_time(costs, cluster, block_tokens * token_bytes, lora_bytes, weight_bytes, host_time),
        tensor_parallel,
        pipeline_stages,
        weight_bytes,
        token_bytes,
        usable_bytes(cluster.devices[0]),
        max(each.peak_bytes(DEFAULT_STEP) for each in memory),
        _context(model),
        source.text if host_time == OVERLAPPED else f"{source.text}; {host_time}",
        data_parallel,
        with_whole_experts(program, plan) if expert_parallel or data_parallel > 1 else plan,
        has_experts,
        len(repeated_blocks(program)) or None,
        max_loras,
        lora_bytes,
        memory,
        source.described_kernels,
    )


def _step_time(
    costs: Sequence[StepCosts],
    cluster: Cluster,
    block_bytes: int,
    lora_bytes: int,
    weight_bytes: int,
    host: HostTime,
) -> StepTime:
    """Make the step time of stages; bytes of a block, an adapter and weights are those of the fullest device."""
    device = cluster.devices[0]
    made = partial(
        ModelStepTime,
        copied_block_s=2 * block_bytes / device.memory_rate_bytes_per_s(2 * block_bytes),
        swapped_block_s=block_bytes / device.host_bandwidth_bytes_per_s,
        moved_block_s=_moved_s(cluster, block_bytes),
        adapter_s=lora_bytes / device.host_bandwidth_bytes_per_s,
        weights_s=weight_bytes / device.host_bandwidth_bytes_per_s,
    )
    if len(costs) == 1:
        return made(costs[0], host)
    # The last stage samples, and sends no more: it is like no other one.
    kinds = {each: made(each, host if each is costs[-1] else OVERLAPPED) for each in dict.fromkeys(costs)}
    return PipelineStepTime([kinds[each] for each in costs])


def _check_split(cluster: Cluster, tensor_parallel: int, pipeline_stages: int, data_parallel: int) -> None:
    split = (tensor_parallel, pipeline_stages, data_parallel)
    text = f"tp {tensor_parallel} x pp {pipeline_stages} x dp {data_parallel}"
    if min(split) < 1 or (data_parallel > 1 and pipeline_stages > 1):
        raise ServeError(f"{text}; allowed is 1 or more of each, and pp or dp, not both")
    if prod(split) > cluster.num_devices:
        raise ServeError(
            f"{text} needs {prod(split)} devices; {cluster.name} has {cluster.num_devices}; use fewer, or a larger "
            "cluster"
        )


def _moved_s(cluster: Cluster, num_bytes: int) -> float:
    """Seconds of bytes from the first device of a cluster to the last one, among many."""
    if cluster.num_devices == 1:
        return 0.0
    return collective_cost(cluster, "send", (0, cluster.num_devices - 1), _MANY * num_bytes).moving_s / _MANY


def usable_bytes(device: DeviceSpec) -> int:
    """Bytes of a device that a server may use; the CUDA context is in the rest, as vLLM counts it."""
    return int(device.usable_bytes * _MEMORY_FRACTION) - device.overhead.segment_bytes


def _program(model: str, tensor_parallel: int) -> Program:
    """The graph of a model, in which each device of a group has a head of keys and values."""
    whole = _loaded(model)
    with torch.device("meta"):
        split = with_heads_for_each(whole, tensor_parallel)
    return _captured(model, 0 if split is whole else tensor_parallel)


@lru_cache(maxsize=8)
def _captured(model: str, num_copies: int) -> Program:
    with torch.device("meta"):
        whole = _loaded(model)
        return forward_program(with_heads_for_each(whole, num_copies) if num_copies else whole)


@lru_cache(maxsize=8)
def _loaded(model: str) -> Model:
    with torch.device("meta"):
        return load_model(model)


def _context(model: str) -> int:
    """The longest sequence of a model: that of its example batch."""
    leaves = torch.utils._pytree.tree_leaves(_loaded(model).batch)
    return max(int(leaf.shape[1]) for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim() > 1)
