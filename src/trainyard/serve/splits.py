"""The ways to split a model over devices, and how many replicas fit.

Each is of some tensor-parallel devices, and either of stages of a pipeline, or of data-parallel ranks that share experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from trainyard.serve.deployment import Deployment, ServedModel, cache_blocks_of, split_text
from trainyard.serve.errors import DoesNotFitError, ServeError, check_context

__all__ = ["ExcludedSplit", "MakeSplit", "PossibleSplit", "no_split_error", "possible_splits"]

MakeSplit = Callable[[int, int, int], ServedModel]
"""Takes the tensor-parallel degree, the number of stages and the number of data-parallel ranks; raises `ServeError` if
the model cannot be split so."""

_MOST_STAGES = 4  # more of them make a token late, and are of use only to models that fit nowhere else


@dataclass(frozen=True)
class PossibleSplit:
    """A split of a model that fits.

    Attributes
    ----------
    model : on the devices of one replica.
    max_replicas : as many as there are devices for.
    num_blocks : of the cache of each, or of each of its data-parallel ranks.
    max_model_len : the longest sequence, in tokens.
    block_tokens : that a block has room for.
    """

    model: ServedModel
    max_replicas: int
    num_blocks: int
    max_model_len: int
    block_tokens: int

    def deployment(self, num_replicas: int) -> Deployment:
        """The deployment with so many replicas."""
        return Deployment(
            self.model,
            num_replicas,
            self.num_blocks,
            self.max_model_len,
            self.block_tokens,
            fills_memory=True,
        )

    def excluded(self, why: str) -> ExcludedSplit:
        """The split, ruled out."""
        model = self.model
        return ExcludedSplit(model.tensor_parallel, model.pipeline_stages, model.data_parallel, why)

    def __str__(self) -> str:
        return self.model.split


@dataclass(frozen=True)
class ExcludedSplit:
    """A split of a model that is ruled out.

    Attributes
    ----------
    tensor_parallel, pipeline_stages, data_parallel : of the split.
    why : in a sentence.
    is_memory_short : whether it would be possible on devices with more memory.
    """

    tensor_parallel: int
    pipeline_stages: int
    data_parallel: int
    why: str
    is_memory_short: bool = False

    def __str__(self) -> str:
        return split_text(self.tensor_parallel, self.pipeline_stages, self.data_parallel)


def possible_splits(
    split: MakeSplit,
    num_devices: int,
    node_size: int,
    *,
    block_tokens: int = 16,
    max_model_len: int | None = None,
) -> tuple[tuple[PossibleSplit, ...], tuple[ExcludedSplit, ...]]:
    """All splits of a model: a power of two of devices within a node for tensor parallelism, and up to 4 stages.

    A model with a mixture of experts is also split over data-parallel ranks, a power of two of them, without stages.

    Parameters
    ----------
    split : makes the model of one.
    num_devices : of the cluster.
    node_size : devices of a node, the same in all.
    block_tokens : that a block of the cache has room for.
    max_model_len : the longest sequence; by default that of the model, or what the cache has room for.

    Returns
    -------
    The splits that fit, fewest devices first, and those that do not.

    Raises
    ------
    ServeError
        If the number of devices is no multiple of the node size.
    """
    if not 1 <= node_size <= num_devices or num_devices % node_size:
        raise ServeError(
            f"{num_devices} devices in nodes of {node_size}; allowed are nodes that divide the devices"
        )
    found, refused = [], []
    with_experts = set[int]()  # shards of which a device has experts that ranks may share
    for shards, stages, ranks, most in _shapes(num_devices, node_size):
        if ranks > 1 and shards not in with_experts:
            continue
        try:
            model = split(shards, stages, ranks)
            if model.has_experts:
                with_experts.add(shards)
            num_blocks = cache_blocks_of(model, block_tokens)
            room = num_blocks * block_tokens
            length = min(model.context, room) if max_model_len is None else max_model_len
            check_context(length, model.name, model.context)
            possible = PossibleSplit(model, most, num_blocks, length, block_tokens)
            possible.deployment(1)
        except ServeError as error:
            is_short = isinstance(error, DoesNotFitError)
            refused.append(ExcludedSplit(shards, stages, ranks, str(error), is_short))
        else:
            found.append(possible)
    return tuple(found), tuple(refused)


def no_split_error(excluded: Sequence[ExcludedSplit]) -> ServeError:
    """The error where every split is ruled out: a `DoesNotFitError` if any of them only lacks memory."""
    reasons = list(dict.fromkeys(each.why for each in excluded))
    if len(reasons) == 1:  # it has nothing to do with the split
        text = reasons[0]
    else:
        text = "the model fits nowhere: " + "; ".join(f"{each}: {each.why}" for each in excluded)
    return (DoesNotFitError if any(each.is_memory_short for each in excluded) else ServeError)(text)


def _shapes(num_devices: int, node_size: int) -> Iterator[tuple[int, int, int, int]]:
    """Shards, stages, ranks, and for how many replicas there is room: fewest devices first, then without ranks."""
    shapes = []
    for shards in _powers(node_size):
        groups = num_devices // node_size * (node_size // shards)
        shapes += [(1, stages, shards, groups // stages) for stages in _powers(min(groups, _MOST_STAGES))]
        shapes += [(ranks, 1, shards, groups // ranks) for ranks in _powers(groups) if ranks > 1]
    shapes.sort(key=lambda each: (each[0] * each[1] * each[2], *each))
    return ((shards, stages, ranks, most) for ranks, stages, shards, most in shapes)


def _powers(most: int) -> Iterator[int]:
    """Yield the powers of two up to a number."""
    return (2**power for power in range(most.bit_length()))
