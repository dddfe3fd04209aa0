"""How the engines of `trainyard serve run` are made: one for each replica of each model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import tyro

from trainyard.cli.bounds import DEVICES, PROCESSES
from trainyard.cli.serve.engine_options import LocalEngineOptions
from trainyard.cli.serve.possible_models import made_for_each
from trainyard.serve.errors import ServeError

if TYPE_CHECKING:
    from trainyard.hardware.cluster import Cluster
    from trainyard.serve.placement import Placement, Replica
    from trainyard.serve.run.engine_process import EngineFactory

__all__ = [
    "ReplicaOptions",
    "check_devices",
    "local_engines",
    "placement_of",
    "simulated_engines",
    "simulation_notes",
]


@dataclass(frozen=True, kw_only=True)
class ReplicaOptions:
    """Options that say how many engines each model has, and over how many devices each is split."""

    heading = "replicas"
    tp: Annotated[int, tyro.conf.arg(metavar="N"), DEVICES] = 1
    """Tensor parallelism: processes of this machine, or devices of a simulated engine, that share each layer."""
    replicas: Annotated[int, tyro.conf.arg(metavar="N"), PROCESSES] = 1
    """Copies of each model, each with --tp processes and a KV cache of its own."""
    router: Annotated[str, tyro.conf.arg(metavar="NAME")] = "round_robin"
    """Which replica serves a request: round_robin or least_requests, as in `trainyard serve simulate`."""

    placement: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Instead of --tp and --replicas: which devices have which of MODELS, as `serve plan` and `serve place` write it with
    --save. Processes of this machine stand for devices; with --device cuda, numbers are those of CUDA."""

    def placed(self, models: Mapping[str, str]) -> Placement:
        """Which devices, or processes in their place, have which models.

        Parameters
        ----------
        models : folders, or names of the zoo, by the names by which requests call them.

        Raises
        ------
        ServeError
            If the file has no placement of these models, or other options say the same.
        """
        from trainyard.serve.placement import Group, Placement, Replica

        if self.placement is not None:
            if (self.tp, self.replicas) != (1, 1):
                raise ServeError(
                    f"--placement {self.placement} says how many replicas there are, and how they are split; leave --tp "
                    "and --replicas out"
                )
            return placement_of(self.placement, models)
        replicas = tuple(Replica(name, tensor_parallel=self.tp) for name in models)
        firsts = range(0, self.replicas * self.tp, self.tp)
        return Placement(tuple(Group(tuple(range(i, i + self.tp)), replicas) for i in firsts))


def placement_of(path: Path, models: Mapping[str, str]) -> Placement:
    """A placement that was saved, of the models of a server.

    Parameters
    ----------
    models : folders, or names of the zoo, by the names by which requests call them. The file has either.

    Raises
    ------
    ServeError
        If it has not these models, or a plan is not for its replica.
    """
    from trainyard.serve.placement import Group, Placement
    from trainyard.serve.placement_document import load_placement

    given = load_placement(path)
    placed = {model for group in given.groups for model in group.models}
    names = {model: name for name, source in models.items() for model in (source, name) if model in placed}
    if placed != set(names) or set(names.values()) != set(models):
        raise ServeError(
            f"{path} places {', '.join(sorted(placed))}; given are {', '.join(models)}; name the models that are placed, "
            "each as NAME or NAME=FOLDER"
        )
    groups = []
    for group in given.groups:
        replicas = [_as_served(each, names[each.model], models[names[each.model]]) for each in group.replicas]
        groups.append(Group(group.devices, tuple(replicas)))
    return Placement(tuple(groups))


def _as_served(replica: Replica, name: str, source: str) -> Replica:
    """A replica by the name by which requests call its model."""
    from trainyard.job.remesh import TENSOR

    plan = replica.plan
    if plan is not None:
        if plan.model not in (replica.model, name, source):
            raise ServeError(
                f"replica of {replica.model!r}: its plan is for {plan.model!r}; give a plan of this model, or none"
            )
        sizes = {(mesh.num_ranks, mesh.size(TENSOR)) for mesh in plan.meshes}
        size = replica.tensor_parallel
        if len(plan.stages) != replica.pipeline_stages or sizes != {(size, size)}:
            raise ServeError(
                f"replica of {replica.model!r}: its plan has {plan.mesh_text}; allowed is what the replica has, "
                f"{replica.pipeline_stages} stages of {size} {TENSOR}"
            )
    return replace(replica, model=name)


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
    failed: dict[str, str],
) -> Mapping[str, Sequence[EngineFactory]]:
    """How each replica of each model is computed on this machine.

    Parameters
    ----------
    models : folders, or names of the zoo, by the names by which requests call them.
    drawn : names of those that have random weights.
    policy : the name of one.
    placement : of all models.
    folder : an empty one, for what models with random weights need.
    failed : gets why a model is not known or cannot be served so, by name; it is not among those that are returned.

    Raises
    ------
    ServeError
        If no model can be served, there is no such device, or not enough memory.
    """
    from trainyard.cli.serve.zoo_models import require_memory, saved_random_model
    from trainyard.serve.run.engine_process import EngineSpec

    num = sum(replica.num_devices for group in placement.groups for replica in group.replicas)
    places = {name: folder / str(number) for number, name in enumerate(models)}

    def engines(name: str, model: str) -> Sequence[EngineFactory]:
        path = saved_random_model(model, places[name]) if name in drawn else Path(model)
        made: dict[int, EngineFactory] = {}
        replicas = []
        for replica, devices in _placed(placement, name):
            size = replica.tensor_parallel
            if replica.pipeline_stages > 1:
                raise ServeError(
                    f"{name} has {replica.pipeline_stages} pipeline stages, and --engine torch computes a model in one; "
                    "use --engine simulated, or another placement"
                )
            if size not in made:
                made[size] = _local_spec(options, path, policy, num, size, is_drawn=name in drawn)
            replicas.append(_on_device(made[size], options.device, devices[0]))
        return replicas

    found = made_for_each(models, engines, failed)
    specs = {
        name: [each for each in found[name] if isinstance(each, EngineSpec)]
        for name in drawn
        if name in found
    }
    require_memory(specs)
    return found


def simulated_engines(
    options: LocalEngineOptions,
    models: Mapping[str, str],
    policy: str,
    cluster: str,
    placement: Placement,
    folder: Path,
    failed: dict[str, str],
) -> Mapping[str, Sequence[EngineFactory]]:
    """How each replica of each model is simulated.

    Parameters
    ----------
    cluster : as text, with the devices of the placement.
    folder : an empty one, for a tokenizer where a model has none of its own.
    models, policy, placement, failed : as of `local_engines`.

    Raises
    ------
    ServeError
        If no model fits on its devices, or options do not go together.
    """
    from trainyard.cli.serve.simulated_engine import simulated_spec

    def engines(name: str, model: str) -> Sequence[EngineFactory]:
        replicas = [replica for replica, _ in _placed(placement, name)]
        made = {
            each: simulated_spec(options, model, policy, cluster, each, num, folder)
            for each, num in Counter(replicas).items()
        }
        return [made[each] for each in replicas]

    return made_for_each(models, engines, failed)


def check_devices(placement: Placement, cluster: Cluster) -> None:
    """Refuse a placement on devices that a cluster does not have, or that are not like its first ones.

    Raises
    ------
    ServeError
        Names the devices.
    """
    for group in placement.groups:
        last = max(group.devices)
        if last >= cluster.num_devices:
            raise ServeError(
                f"the placement has device {last}; {cluster.name} has devices 0 to {cluster.num_devices - 1}; give the "
                "cluster for which it was made"
            )
        kinds = {cluster.devices[device].name for device in (0, *group.devices)}
        nodes = {int(cluster.node_of[device]) for device in group.devices}
        fit = max(int(num) for num in cluster.devices_per_node) >= len(group.devices)
        if len(kinds) > 1 or (fit and len(nodes) > 1):
            raise ServeError(
                f"the placement has a group of {group}; an engine is simulated on devices like the first ones of "
                f"{cluster.name}, and on one node if that has so many; use others"
            )


def simulation_notes(placement: Placement) -> list[str]:
    """What simulated engines do in another way than the simulator."""
    notes = []
    shared = [models for group in placement.groups if len(models := group.models) > 1]
    if shared:
        notes.append(
            f"{', '.join(shared[0])} have the same devices, and each is simulated as if it had them alone"
        )
    staged = [each.model for group in placement.groups for each in group.replicas if each.pipeline_stages > 1]
    if staged:
        notes.append(
            f"{staged[0]}: a batch begins when the one before has left the last stage; `serve simulate` computes one in "
            "each stage"
        )
    return notes


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
        spec = options.spec(folder, policy, num_processes, tensor_parallel, checks_weights=not is_drawn)
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
