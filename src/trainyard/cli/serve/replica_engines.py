"""How the engines of `trainyard serve run` are made: one for each replica of each model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import tyro

from trainyard.cli.bounds import DEVICES, PROCESSES
from trainyard.cli.serve.engine_options import LocalEngineOptions
from trainyard.serve.errors import ServeError

if TYPE_CHECKING:
    from trainyard.serve.placement import Placement, Replica
    from trainyard.serve.run.engine_process import EngineFactory

__all__ = ["ReplicaOptions", "local_engines", "simulated_engines"]


@dataclass(frozen=True, kw_only=True)
class ReplicaOptions:
    """Options that say how many engines each model has, and over how many devices each is split."""

    tp: Annotated[int, tyro.conf.arg(metavar="N"), DEVICES] = 1
    """Tensor parallelism: processes of this machine, or devices of a simulated engine, that share each layer."""
    replicas: Annotated[int, tyro.conf.arg(metavar="N"), PROCESSES] = 1
    """Copies of each model, each with --tp processes and a KV cache of its own."""
    router: Annotated[str, tyro.conf.arg(metavar="NAME")] = "round_robin"
    """Which replica serves a request: round_robin or least_requests, as in `trainyard serve simulate`."""

    def placed(self, models: Iterable[str]) -> Placement:
        """Which devices, or processes in their place, have which models."""
        from trainyard.serve.placement import Group, Placement, Replica

        replicas = tuple(Replica(name, tensor_parallel=self.tp) for name in models)
        firsts = range(0, self.replicas * self.tp, self.tp)
        return Placement(tuple(Group(tuple(range(i, i + self.tp)), replicas) for i in firsts))


class _Placed(NamedTuple):
    replica: Replica
    devices: tuple[int, ...]


def local_engines(
    options: LocalEngineOptions,
    models: Mapping[str, str],
    drawn: Collection[str],
    policy: str,
    placement: Placement,
    folder: Path,
) -> Mapping[str, Sequence[EngineFactory]]:
    """How each replica of each model is computed on this machine.

    Parameters
    ----------
    models : folders, or names of the zoo, by the names by which requests call them.
    drawn : names of those that have random weights.
    policy : the name of one.
    placement : of all models.
    folder : an empty one, for what models with random weights need.

    Raises
    ------
    ServeError
        If a model is not known or cannot be served so, or there is no such device, or not enough memory.
    """
    from trainyard.cli.serve.zoo_models import require_memory, saved_random_model
    from trainyard.serve.run.engine_process import EngineSpec

    num = sum(replica.num_devices for group in placement.groups for replica in group.replicas)
    found: dict[str, Sequence[EngineFactory]] = {}
    for name, model in models.items():
        within = folder / str(len(found))
        path = saved_random_model(model, within) if name in drawn else Path(model)
        made: dict[int, EngineFactory] = {}
        replicas = []
        for replica, devices in _placed(placement, name):
            size = replica.tensor_parallel
            if size not in made:
                made[size] = _local_spec(options, path, policy, num, size, is_drawn=name in drawn)
            replicas.append(_on_device(made[size], options.device, devices[0]))
        found[name] = replicas
    require_memory({name: [each for each in found[name] if isinstance(each, EngineSpec)] for name in drawn})
    return found


def simulated_engines(
    options: LocalEngineOptions,
    models: Mapping[str, str],
    policy: str,
    cluster: str,
    placement: Placement,
    folder: Path,
) -> Mapping[str, Sequence[EngineFactory]]:
    """How each replica of each model is simulated.

    Parameters
    ----------
    cluster : as text, with the devices of the placement.
    folder : an empty one, for a tokenizer where a model has none of its own.
    models, policy, placement : as of `local_engines`.

    Raises
    ------
    ServeError
        If a model does not fit on its devices, there are not enough of them, or options do not go together.
    """
    from trainyard.cli.serve.simulated_engine import simulated_spec

    found: dict[str, Sequence[EngineFactory]] = {}
    for name, model in models.items():
        splits = Counter(replica.tensor_parallel for replica, _ in _placed(placement, name))
        found[name] = [
            spec
            for size, num in splits.items()
            for spec in num * [simulated_spec(options, model, policy, cluster, size, num, folder)]
        ]
    return found


def _placed(placement: Placement, model: str) -> list[_Placed]:
    """The replicas of a model."""
    return [
        _Placed(replica, group.devices)
        for group in placement.groups
        for replica in group.replicas
        if replica.model == model
    ]


def _local_spec(
    options: LocalEngineOptions,
    folder: Path,
    policy: str,
    num_processes: int,
    tensor_parallel: int,
    *,
    is_drawn: bool,
) -> EngineFactory:
    """How a model is computed on this machine: for embeddings, if its folder says how these are made."""
    from trainyard.serve.run.pooling import has_pooling
    from trainyard.serve.run.random_model import random_model

    if is_drawn or not has_pooling(folder):
        spec = options.spec(folder, policy, num_processes, tensor_parallel)
        return replace(spec, load=random_model) if is_drawn else spec
    if tensor_parallel > 1:
        raise ServeError(
            f"--tp {tensor_parallel}; {folder.name} gives embeddings, which one process does; leave it out"
        )
    return options.embedding_spec(folder, num_processes)


def _on_device(spec: EngineFactory, device: str, number: int) -> EngineFactory:
    """The same on a device of a number, where devices have any."""
    from trainyard.serve.run.engine_process import EngineSpec

    if device == "cpu" or not isinstance(spec, EngineSpec):
        return spec
    import torch

    if number >= torch.cuda.device_count():
        raise ServeError(
            f"--device {device}: a replica is for device {number}, and torch finds {torch.cuda.device_count()}, numbered "
            "from 0; give fewer replicas"
        )
    return replace(spec, device=f"{device}:{number}")
