"""How a model may be split over devices, and for how many replicas there is room then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainyard.serve.deployment import Deployment, ServedModel, cache_blocks_of
from trainyard.serve.errors import ServeError

__all__ = ["MakeSplit", "PossibleSplit", "RefusedSplit", "possible_splits", "split_text"]

MakeSplit = Callable[[int, int], ServedModel]
"""The model in so many shards and so many stages; a `ServeError` where it cannot be split so."""

_MOST_STAGES = 4  # more of them make a token late, and are of use only to models that fit nowhere else


@dataclass(frozen=True)
class PossibleSplit:
    """A model split in a way that fits.

    Attributes
    ----------
    model : on the devices of one replica.
    most_replicas : for which there are devices.
    num_blocks : of the cache of each.
    max_model_len : the longest sequence, in tokens.
    block_tokens : that a block has room for.
    """

    model: ServedModel
    most_replicas: int
    num_blocks: int
    max_model_len: int
    block_tokens: int

    def deployment(self, num_replicas: int) -> Deployment:
        """So many replicas."""
        return Deployment(self.model, num_replicas, self.num_blocks, self.max_model_len, self.block_tokens)

    def __str__(self) -> str:
        return split_text(self.model.tensor_parallel, self.model.pipeline_stages)


@dataclass(frozen=True)
class RefusedSplit:
    """A way to split a model that cannot be, and why."""

    tensor_parallel: int
    pipeline_stages: int
    why: str

    def __str__(self) -> str:
        return split_text(self.tensor_parallel, self.pipeline_stages)


def split_text(tensor_parallel: int, pipeline_stages: int) -> str:
    """A split as people read it: ``tp 2``, or ``tp 2, pp 4`` where there are stages."""
    return f"tp {tensor_parallel}" + (f", pp {pipeline_stages}" if pipeline_stages > 1 else "")


def possible_splits(
    split: MakeSplit,
    num_devices: int,
    node_size: int,
    *,
    block_tokens: int = 16,
    max_model_len: int | None = None,
) -> tuple[tuple[PossibleSplit, ...], tuple[RefusedSplit, ...]]:
    """All splits of a model: shards in powers of two within a node, and up to 4 stages over nodes.

    Parameters
    ----------
    split : makes the model of one.
    num_devices : of the cluster.
    node_size : devices of a node, the same in all.
    block_tokens : that a block of the cache has room for.
    max_model_len : the longest sequence; by default that of the model, or what the cache has room for.

    Returns
    -------
    Those that fit, those of the fewest devices first, and those that cannot be.

    Raises
    ------
    ServeError
        If nodes are no part of the devices.
    """
    if not 1 <= node_size <= num_devices or num_devices % node_size:
        raise ServeError(
            f"{num_devices} devices in nodes of {node_size}; allowed are nodes that divide the devices"
        )
    found, refused = [], []
    for shards, stages, most in _shapes(num_devices, node_size):
        try:
            model = split(shards, stages)
            num_blocks = cache_blocks_of(model, block_tokens)
            room = num_blocks * block_tokens
            length = min(model.context, room) if max_model_len is None else max_model_len
            possible = PossibleSplit(model, most, num_blocks, length, block_tokens)
            possible.deployment(1)
        except ServeError as error:
            refused.append(RefusedSplit(shards, stages, str(error)))
        else:
            found.append(possible)
    return tuple(found), tuple(refused)


def _shapes(num_devices: int, node_size: int) -> Iterator[tuple[int, int, int]]:
    """Shards, stages, and for how many replicas there is room, the smallest first."""
    shapes = []
    shards = 1
    while shards <= node_size:
        groups = num_devices // node_size * (node_size // shards)
        stages = 1
        while stages <= min(groups, _MOST_STAGES):
            shapes.append((shards * stages, stages, shards, groups // stages))
            stages *= 2
        shards *= 2
    return ((shards, stages, most) for _, stages, shards, most in sorted(shapes))
