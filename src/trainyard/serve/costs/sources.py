"""Choose the source of step times: the device's description, or a folder of measured times."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from trainyard.hardware.cluster import Cluster
from trainyard.serve.costs.expected_error import TimeSource
from trainyard.serve.costs.formats import FORMATS
from trainyard.serve.costs.kernels import KernelTimes, StepGraph
from trainyard.serve.costs.model_step_time import GraphCosts, StepCosts
from trainyard.serve.costs.predicted import PredictedKernels
from trainyard.serve.costs.tables.aiconfigurator import AiconfiguratorKernels
from trainyard.serve.costs.tables.layer_profile import (
    Exchange,
    has_layer_profile,
    profiled_devices,
    profiled_models,
    read_layer_profile,
)
from trainyard.serve.errors import ServeError

__all__ = ["StepSource", "step_costs", "time_source"]


_OF_LAYERS: dict[str, Any] = {"products": (), "attention": (), "experts": (), "pointwise": ()}
"""What profiles of layers have instead of a graph's kernels: all but collectives."""


class StepSource(NamedTuple):
    """Where step times come from.

    Attributes
    ----------
    text : in a few words.
    described : kernels of a step whose times are predicted from the device's description, by kind.
    """

    text: str
    described: tuple[tuple[str, int], ...]

    @classmethod
    def of(
        cls, text: str, launched: Sequence[tuple[StepGraph, KernelTimes]], is_measured: bool
    ) -> StepSource:
        """Say after a text about measured times how many kernels have none.

        Parameters
        ----------
        launched : what is launched, and the seconds of each kernel.
        """
        described = _total(kernels.described(graph) for graph, kernels in launched)
        if is_measured and described:
            kinds = ", ".join(f"{num} {kind}" for kind, num in described.items())
            text += f"; not measured but described: {sum(described.values())} kernels of a step ({kinds})"
        return cls(text, tuple(described.items()))


def step_costs(
    model: str,
    graphs: Sequence[StepGraph],
    cluster: Cluster,
    tensor_parallel: int,
    weights: str,
    kernels: Path | None = None,
    data_parallel: int = 1,
) -> tuple[tuple[StepCosts, ...], StepSource]:
    """The parts of a model's step time on each pipeline stage, and their source.

    Parameters
    ----------
    model : its name.
    graphs : the kernels that a device of each stage launches.
    cluster : its first devices compute the step.
    tensor_parallel : devices of a stage.
    weights : format of the weights, a key of `FORMATS`.
    kernels : a folder of measured times: layer profiles (`read_layer_profile`), or the tables of an installed
        aiconfigurator; by default times are predicted. ``FOLDER:NAME`` chooses a model of the profiles, or the server
        whose kernels aiconfigurator measured, such as ``vllm`` or ``vllm/0.19.0``. One folder of each kind may be joined
        by a comma: then the tables give the collectives, which no profile has.
    data_parallel : ranks with their own requests, which share the experts of mixtures.

    Raises
    ------
    ServeError
        If the folder has no times of this model or device, or has profiles of layers and the weights are not of 16 bits.
        Files of profiles do not name a format: LLMServingSim measures models in their own, of 16 bits.
    """
    device = cluster.devices[0].name
    profile, tables = _sources(kernels)

    def times(num_devices: int) -> KernelTimes:
        if tables is None:
            return _predicted(cluster, num_devices, weights)
        return _measured(tables, cluster, num_devices, weights)

    within, between = times(tensor_parallel), times(data_parallel * tensor_parallel)
    between_ranks, last = between if data_parallel > 1 else None, len(graphs) - 1
    kinds = [(graph, stage < last) for stage, graph in enumerate(graphs)]
    costs = {kind: GraphCosts(kind[0], within, kind[1], between_ranks) for kind in dict.fromkeys(kinds)}
    launched = [(graph, within) for graph in graphs]
    if data_parallel > 1:
        launched.append((graphs[0].between_ranks, between))
    families = _families(graphs, tensor_parallel) if profile is None else ["comm"]
    beside = "" if tables is None else _tables_text(tables, cluster, tensor_parallel, weights, families)
    if profile is None:
        text = beside or f"predicted from the description of {device}"
        return tuple(costs[kind] for kind in kinds), StepSource.of(text, launched, bool(beside))
    _check_profile(profile.folder, len(graphs), weights)
    meant = profile.named or _profiled(profile.folder, device, model)
    layers = _layers(profile.folder, device, meant, tensor_parallel, data_parallel, costs[kinds[0]])
    text = f"layers of {meant} measured on {device}, in {profile.folder}"
    text = f"{text}; collectives: {beside}" if beside else text
    collectives = [(replace(graph, **_OF_LAYERS), kernels) for graph, kernels in launched]
    return (layers,), StepSource.of(text, collectives, True)


def _layers(
    folder: Path, device: str, meant: str, tensor_parallel: int, data_parallel: int, others: GraphCosts
) -> StepCosts:
    """Measured layers of a model of a profile, with the collectives of another source."""
    exchange = Exchange(others.communication_s, others.dispatched_s, data_parallel)
    num_layers = sum(num for _, num in others.graph.attention)
    mixture = next(((each.num_experts, each.num_used) for each, _ in others.graph.experts), (0, 0))
    return read_layer_profile(folder, device, meant, tensor_parallel, num_layers, mixture, exchange)


def _tables_text(
    tables: _Source, cluster: Cluster, num_devices: int, weights: str, families: Sequence[str]
) -> str:
    """Say which versions of some tables are read."""
    read = _measured(tables, cluster, num_devices, weights).versions(families)
    return f"kernels of {read} measured on {cluster.devices[0].name}, in {tables.folder}"


def _total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sums by kind."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _predicted(cluster: Cluster, num_devices: int, weights: str) -> PredictedKernels:
    """From the description of the devices of a tensor-parallel group."""
    form = FORMATS[weights]
    return PredictedKernels(cluster, num_devices, form.computed_in, form.num_bytes, form.cache_bytes)


def _measured(tables: _Source, cluster: Cluster, num_devices: int, weights: str) -> AiconfiguratorKernels:
    """From tables of kernels."""
    device, others = cluster.devices[0].name, _predicted(cluster, num_devices, weights)
    return AiconfiguratorKernels(tables.folder, device, num_devices, weights, others, tables.named or "vllm")


def _check_profile(folder: Path, num_stages: int, weights: str) -> None:
    """Refuse what profiles of layers do not cover: pipelines, and weights that are not of 16 bits."""
    if num_stages > 1:
        raise ServeError(f"{folder} has profiles of layers, which do not cover pipelines; use --pp 1")
    if FORMATS[weights].num_bytes != 2:
        allowed = ", ".join(name for name, each in FORMATS.items() if each.num_bytes == 2)
        raise ServeError(
            f"dtype {weights} with profiles of layers ({folder}), which were measured with weights of 16 bits; "
            f"allowed are {allowed}; leave out the profiles, to have {weights} predicted"
        )


def _families(graphs: Sequence[StepGraph], num_devices: int) -> list[str]:
    """Of the tables of kernels that a stage launches."""
    families = ["gemm", "attention"]
    if any(graph.experts for graph in graphs):
        families.append("moe")
    return [*families, "comm"] if num_devices > 1 else families


class _Source(NamedTuple):
    """A folder of measured times, and which model or server of it is meant, if that is said."""

    folder: Path
    named: str


def _sources(kernels: Path | None) -> tuple[_Source | None, _Source | None]:
    """The folder of profiles of layers and that of tables of kernels, of those that are given."""
    found: dict[bool, _Source] = {}
    for text in str(kernels).split(",") if kernels is not None else ():
        source = _folder(Path(text))
        is_profile = has_layer_profile(source.folder)
        if is_profile in found:
            raise ServeError(
                f"{kernels}: two folders of the same kind; allowed are one of profiles of layers and one of tables of "
                "kernels"
            )
        found[is_profile] = source
    return found.get(True), found.get(False)


def time_source(kernels: Path | None) -> TimeSource:
    """The source of step times that `step_costs` takes.

    Raises
    ------
    ServeError
        If a folder is none, or there are two of one kind.
    """
    profile, tables = _sources(kernels)
    if profile is not None:
        return "layers"
    return "kernels" if tables is not None else "device"


def _folder(kernels: Path) -> _Source:
    """A folder, and what is named after it."""
    text, _, named = str(kernels).partition(":")
    if kernels.is_dir():
        return _Source(kernels, "")
    if not Path(text).is_dir():
        raise ServeError(
            f"{text} is no folder; give one with measured times: layer profiles, or an installed aiconfigurator_core"
        )
    return _Source(Path(text), named)


def _profiled(folder: Path, device: str, model: str) -> str:
    """The name that a profile gives a model."""
    known = profiled_models(folder, device)
    if not known:
        raise ServeError(
            f"{folder} has no layers measured on {device}; it has {', '.join(profiled_devices(folder)) or 'none'}"
        )
    wanted = _words(model)
    found = [name for name in known if wanted <= _words(name)]
    if len(found) != 1:
        raise ServeError(
            f"{folder} has layers of {', '.join(known)} on {device}; which of them is {model!r} is not "
            "clear: write it after the folder and a colon"
        )
    return found[0]


def _words(name: str) -> set[str]:
    """Of the last part of a model's name, with numbers apart: llama, 3, 8b."""
    return set(re.findall(r"\d+[a-z]?(?![a-z\d])|\d+|[a-z]+", name.lower().rpartition("/")[2]))
