"""A model on devices: how it is split, how much KV cache it has, and how many replicas there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from trainyard.job.plan import Plan
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.data_parallel import DataParallelInstance
from trainyard.serve.errors import DoesNotFitError, ServeError, check_max_model_len, require_at_least
from trainyard.serve.instance import Instance
from trainyard.serve.placement import Group, Placement, Replica
from trainyard.serve.policy import BatchPolicy
from trainyard.serve.step_memory import StepMemory, StepSize, largest_step
from trainyard.serve.step_time import StepTime

__all__ = ["Deployment", "ServedModel", "cache_blocks_of", "split_text"]


@dataclass(frozen=True)
class ServedModel:
    """A model split over some devices that serve it together.

    Attributes
    ----------
    name : of the model.
    step_time : how long its steps take there.
    tensor_parallel, pipeline_stages : how it, or each of its ranks, is split.
    weight_bytes : weights on one device, the one that holds most.
    cache_bytes_per_token : KV cache of a token on one device, the one that holds most.
    usable_bytes : memory of a device for weights, KV cache and activations.
    activation_bytes : activations on one device at the peak of the largest step; see `with_step`.
    context : the longest sequence that the model supports, in tokens.
    source : where step times come from, in a few words.
    data_parallel : ranks with their own requests and KV cache, which share the experts of a mixture.
    plan : which layers each stage has, and how its weights lie on its devices; None where step times are of no graph.
    has_experts : whether it has a mixture of experts, which data-parallel ranks could share.
    num_layers : equal blocks of the model, of which a step may compute some; None if they are not known.
    max_loras : LoRA adapters that are on its devices at once, where others are loaded from the host; None if all are
        there, in no memory.
    lora_bytes : of an adapter on one device, the one that holds most.
    step_memory : from which `activation_bytes` of other steps follow, of each kind of device; empty if they do not.
    described : kernels of a step whose times are predicted from the device's description, by kind.
    """

    name: str
    step_time: StepTime
    tensor_parallel: int
    pipeline_stages: int
    weight_bytes: int
    cache_bytes_per_token: int
    usable_bytes: int
    activation_bytes: int
    context: int
    source: str
    data_parallel: int = 1
    plan: Plan | None = field(default=None, hash=False)
    has_experts: bool = False
    num_layers: int | None = None
    max_loras: int | None = None
    lora_bytes: int = 0
    step_memory: tuple[StepMemory, ...] = ()
    described: tuple[tuple[str, int], ...] = ()

    def with_step(self, step: StepSize) -> ServedModel:
        """The same model, where activations of another largest step have room."""
        if not self.step_memory:
            return self
        return replace(self, activation_bytes=max(each.peak_bytes(step) for each in self.step_memory))

    @property
    def split(self) -> str:
        """How it is split, as text."""
        return split_text(self.tensor_parallel, self.pipeline_stages, self.data_parallel)

    @property
    def num_devices(self) -> int:
        """Devices of one replica."""
        return self.tensor_parallel * self.pipeline_stages * self.data_parallel

    @property
    def cache_bytes(self) -> int:
        """Memory of a device that is left for the KV cache; 0 or less if the model does not fit."""
        num_loras = self.max_loras or 0
        return self.usable_bytes - self.weight_bytes - self.activation_bytes - num_loras * self.lora_bytes


@dataclass(frozen=True)
class Deployment:
    """Identical replicas of a model.

    Attributes
    ----------
    model : the model on the devices of one replica.
    num_replicas : number of replicas.
    num_blocks : KV cache of each replica, or of each of its data-parallel ranks, in blocks.
    max_model_len : the longest sequence that is served, in tokens.
    block_tokens : tokens per block.
    num_host_blocks : blocks of each replica on its host, to which requests are swapped out.
    devices : of each replica; by default they follow each other.
    fills_memory : whether the KV cache has all blocks that fit, so that `sized_for` may change their number.

    Raises
    ------
    ServeError
        If a number is too small, or the cache has no room for the longest sequence.
    """

    model: ServedModel
    num_replicas: int
    num_blocks: int
    max_model_len: int
    block_tokens: int = 16
    num_host_blocks: int = 0
    devices: tuple[tuple[int, ...], ...] = ()
    fills_memory: bool = False

    def __post_init__(self) -> None:
        require_at_least(self, 1, "num_replicas", "num_blocks", "block_tokens")
        require_at_least(self, 0, "num_host_blocks")
        check_max_model_len(self.max_model_len, self.num_blocks * self.block_tokens)

    def sized_for(self, policies: Iterable[BatchPolicy]) -> Deployment:
        """The deployment whose KV cache fills what the largest step of these policies leaves.

        Raises
        ------
        DoesNotFitError
            If that step leaves too little memory.
        """
        if not self.fills_memory:
            return self
        model = self.model.with_step(largest_step(policies))
        num_blocks = cache_blocks_of(model, self.block_tokens)
        usual = self.max_model_len == min(model.context, self.num_blocks * self.block_tokens)
        length = min(model.context, num_blocks * self.block_tokens) if usual else self.max_model_len
        return replace(self, model=model, num_blocks=num_blocks, max_model_len=length)

    @property
    def num_devices(self) -> int:
        """Devices of all replicas."""
        return self.num_replicas * self.model.num_devices

    @property
    def cached_tokens(self) -> int:
        """Tokens for which the KV cache of a replica has room, with those of all its ranks."""
        return self.num_blocks * self.block_tokens * self.model.data_parallel

    @property
    def cache_bytes(self) -> int:
        """KV cache on one device, the one that holds most."""
        return self.num_blocks * self.block_tokens * self.model.cache_bytes_per_token

    def instances(self, policy: BatchPolicy, make: Callable[..., Instance] = Instance) -> list[Instance]:
        """New instances, one for each replica.

        Parameters
        ----------
        make : makes an instance from the arguments of `Instance`.
        """

        def rank() -> Instance:
            return make(
                policy,
                BlockCache(self.num_blocks, self.block_tokens, self.num_host_blocks),
                self.max_model_len,
                num_stages=self.model.pipeline_stages,
                max_loras=self.model.max_loras,
                num_layers=self.model.num_layers,
            )

        num_ranks = self.model.data_parallel
        if num_ranks == 1:
            return [rank() for _ in range(self.num_replicas)]
        return [DataParallelInstance([rank() for _ in range(num_ranks)]) for _ in range(self.num_replicas)]

    def placement(self) -> Placement:
        """Which devices each replica has; each data-parallel rank is a group of its own."""
        model = self.model
        size = model.tensor_parallel * model.pipeline_stages
        replica = Replica(model.name, model.pipeline_stages, model.tensor_parallel, model.plan)
        devices = sum(self.devices, ()) or tuple(range(self.num_devices))
        firsts = range(0, self.num_devices, size)
        return Placement(tuple(Group(devices[i : i + size], (replica,)) for i in firsts))

    def __str__(self) -> str:
        replicas = f"{self.num_replicas} replica{'s' if self.num_replicas > 1 else ''} of {self.model.name}"
        return f"{replicas} with {self.model.split}" if self.model.num_devices > 1 else replicas


def split_text(tensor_parallel: int, pipeline_stages: int, data_parallel: int = 1) -> str:
    """A split as people read it: ``tp 2``, ``tp 2, pp 4`` with stages, or ``tp 2, dp 4`` with data-parallel ranks."""
    others = [f"{name} {num}" for name, num in (("pp", pipeline_stages), ("dp", data_parallel)) if num > 1]
    return ", ".join([f"tp {tensor_parallel}", *others])


def cache_blocks_of(model: ServedModel, block_tokens: int, cache_bytes: int | None = None) -> int:
    """Blocks of KV cache that fit on a device.

    A size that is given may take the room of the activations: how much they need is an estimate, and what a server
    reports of itself is not.

    Parameters
    ----------
    block_tokens : tokens per block.
    cache_bytes : memory of a device for the KV cache; by default all that weights and activations leave.

    Raises
    ------
    DoesNotFitError
        If not even one block fits.
    ServeError
        If more memory is given than the weights leave.
    """
    most = model.cache_bytes if cache_bytes is None else model.cache_bytes + model.activation_bytes
    given = most if cache_bytes is None else cache_bytes
    block_bytes = block_tokens * model.cache_bytes_per_token
    if most < block_bytes:
        raise DoesNotFitError(
            f"{model.name} with {model.split} does not fit: a device has {model.usable_bytes / 1e9:.4g} GB for weights "
            f"of {model.weight_bytes / 1e9:.4g} GB, activations of {model.activation_bytes / 1e9:.4g} GB and the KV "
            "cache; use more devices per replica, or smaller weights"
        )
    if not block_bytes <= given <= most:
        raise ServeError(
            f"{model.name} with {model.split}: a KV cache of {given / 1e9:.4g} GB per device; allowed is one block of "
            f"{block_bytes / 1e9:.4g} GB to {most / 1e9:.4g} GB, beside weights of {model.weight_bytes / 1e9:.4g} GB"
        )
    return given // block_bytes
