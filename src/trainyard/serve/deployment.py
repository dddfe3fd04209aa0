"""A model on devices, as a server is told: how it is split, how much cache it has, how many replicas there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.data_parallel import DataParallelInstance
from trainyard.serve.errors import ServeError, require_at_least
from trainyard.serve.instance import Instance
from trainyard.serve.policy import BatchPolicy
from trainyard.serve.step_time import StepTime

__all__ = ["Deployment", "ServedModel", "cache_blocks_of"]


@dataclass(frozen=True)
class ServedModel:
    """A model split over some devices that serve it together.

    Attributes
    ----------
    name : of the model.
    step_time : how long its steps take there.
    tensor_parallel, pipeline_stages : how it is split; the product is the number of devices.
    weight_bytes : of one device, the one that holds most.
    cache_bytes_per_token : of one device, the one that holds most.
    usable_bytes : memory of a device that weights, cache and activations may take.
    activation_bytes : of one device, in its largest step.
    context : the longest sequence for which the model was made, in tokens.
    source : where the seconds of a step come from, in a few words.
    data_parallel : ranks with attention, requests and a cache of their own, which share the experts of a mixture.
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

    @property
    def num_devices(self) -> int:
        """That serve it together."""
        return self.tensor_parallel * self.pipeline_stages * self.data_parallel

    @property
    def cache_bytes(self) -> int:
        """Memory of a device that is left for the cache; 0 or less where the model does not fit."""
        return self.usable_bytes - self.weight_bytes - self.activation_bytes


@dataclass(frozen=True)
class Deployment:
    """Replicas of a model, alike.

    Attributes
    ----------
    model : on the devices of one replica.
    num_replicas : how many there are.
    num_blocks : of the cache of each, or of each of its ranks.
    block_tokens : that a block has room for.
    max_model_len : the longest sequence that is served, in tokens.
    num_host_blocks : of the cache of each, on its host, to which requests are swapped out.

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

    def __post_init__(self) -> None:
        require_at_least(self, 1, "num_replicas", "num_blocks", "block_tokens")
        require_at_least(self, 0, "num_host_blocks")
        if not 2 <= self.max_model_len <= (room := self.num_blocks * self.block_tokens):
            raise ServeError(
                f"max_model_len {self.max_model_len}; allowed is 2 to {room}, for which the cache has room; give it more"
            )

    @property
    def num_devices(self) -> int:
        """Of all replicas."""
        return self.num_replicas * self.model.num_devices

    def instances(self, policy: BatchPolicy, make: Callable[..., Instance] = Instance) -> list[Instance]:
        """New ones, one for each replica.

        Parameters
        ----------
        make : takes what `Instance` takes.
        """

        def rank() -> Instance:
            return make(
                policy,
                BlockCache(self.num_blocks, self.block_tokens, self.num_host_blocks),
                self.max_model_len,
                num_stages=self.model.pipeline_stages,
            )

        num_ranks = self.model.data_parallel
        if num_ranks == 1:
            return [rank() for _ in range(self.num_replicas)]
        return [DataParallelInstance([rank() for _ in range(num_ranks)]) for _ in range(self.num_replicas)]

    def __str__(self) -> str:
        split = [
            f"{number} {word}"
            for number, word in (
                (self.model.tensor_parallel, "shards"),
                (self.model.pipeline_stages, "stages"),
                (self.model.data_parallel, "ranks"),
            )
            if number > 1
        ]
        replicas = f"{self.num_replicas} replica{'s' if self.num_replicas > 1 else ''} of {self.model.name}"
        return f"{replicas} in {' x '.join(split)}" if split else replicas


def cache_blocks_of(model: ServedModel, block_tokens: int, cache_bytes: int | None = None) -> int:
    """Blocks for which a device has memory.

    Parameters
    ----------
    block_tokens : that a block has room for.
    cache_bytes : memory of a device for the cache; by default what is left.

    Raises
    ------
    ServeError
        If there is none for one block, or less is left than is given.
    """
    left = model.cache_bytes
    given = left if cache_bytes is None else cache_bytes
    block_bytes = block_tokens * model.cache_bytes_per_token
    if given > left or given < block_bytes:
        raise ServeError(
            f"{model.name} on {model.num_devices} devices: a device has {left / 1e9:.4g} GB for the cache beside weights "
            f"of {model.weight_bytes / 1e9:.4g} GB; asked for are {given / 1e9:.4g} GB, and a block takes "
            f"{block_bytes / 1e9:.4g} GB; use more devices for a replica, or another size of the cache"
        )
    return given // block_bytes
