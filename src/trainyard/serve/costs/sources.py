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


_NO_LAYERS: dict[str, Any] = {"products": (), "attention": (), "experts": (), "pointwise": ()}
"""Fields of a graph whose kernels are in profiles of layers, which have all but collectives."""


class StepSource(NamedTuple):
    """The source of step times.

    Attributes
    ----------
    text : a few words for people.
    described_kernels : kernels of a step whose times are predicted from the device's description, by kind.
    """

    text: str
    described_kernels: tuple[tuple[str, int], ...]

    @classmethod
    def of(
        cls, text: str, launched: Sequence[tuple[StepGraph, KernelTimes]], is_measured: bool
    ) -> StepSource:
        """Count the kernels that were not measured, and name them in the text.

        Parameters
        ----------
        text : names the source.
        launched : the kernels of a step, and the seconds of each.
        is_measured : whether the source has measured times; a text about predicted ones stays as it is.
        """
        described = _total(kernels.num_described(graph) for graph, kernels in launched)
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
    """Return the parts of a model's step time on each pipeline stage, and their source.

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
        launched.append((graphs[0].data_parallel_collectives, between))
    families = _families(graphs, tensor_parallel) if profile is None else ["comm"]
    tables_text = "" if tables is None else _tables_text(tables, cluster, tensor_parallel, weights, families)
    if profile is None:
        text = tables_text or f"predicted from the description of {device}"
        return tuple(costs[kind] for kind in kinds), StepSource.of(text, launched, tables is not None)
    _check_profile(profile.folder, len(graphs), weights)
    profiled_model = profile.named or _profiled(profile.folder, device, model)
    layers = _layers(profile.folder, device, profiled_model, tensor_parallel, data_parallel, costs[kinds[0]])
    text = f"layers of {profiled_model} measured on {device}, in {profile.folder}"
    text = f"{text}; collectives: {tables_text}" if tables_text else text
    collectives = [(replace(graph, **_NO_LAYERS), kernels) for graph, kernels in launched]
    return (layers,), StepSource.of(text, collectives, True)


def _layers(
    folder: Path, device: str, model: str, tensor_parallel: int, data_parallel: int, others: GraphCosts
) -> StepCosts:
    """Return the measured layers of a model of a profile, with the collectives of another source."""
    exchange = Exchange(others.communication_s, others.dispatched_s, data_parallel)
    num_layers = sum(num for _, num in others.graph.attention)
    mixture = next(((each.num_experts, each.num_used) for each, _ in others.graph.experts), (0, 0))
    return read_layer_profile(folder, device, model, tensor_parallel, num_layers, mixture, exchange)


def _tables_text(
    tables: _Source, cluster: Cluster, num_devices: int, weights: str, families: Sequence[str]
) -> str:
    """Name the versions of the tables that are read, for people."""
    versions = _measured(tables, cluster, num_devices, weights).versions(families)
    return f"kernels of {versions} measured on {cluster.devices[0].name}, in {tables.folder}"


def _total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add counts by kind."""
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(total)


def _predicted(cluster: Cluster, num_devices: int, weights: str) -> PredictedKernels:
    """Return the kernel times that follow from the description of the devices of a group."""
    form = FORMATS[weights]
    return PredictedKernels(cluster, num_devices, form.computed_in, form.num_bytes, form.cache_bytes)


def _measured(tables: _Source, cluster: Cluster, num_devices: int, weights: str) -> AiconfiguratorKernels:
    """Return the kernel times of some tables."""
    device, others = cluster.devices[0].name, _predicted(cluster, num_devices, weights)
    return AiconfiguratorKernels(tables.folder, device, num_devices, weights, others, tables.named or "vllm")


def _check_profile(folder: Path, num_stages: int, weights: str) -> None:
    """Refuse pipelines and weights that are not of 16 bits, which profiles of layers do not cover."""
    if num_stages > 1:
        raise ServeError(f"{folder} has profiles of layers, which do not cover pipelines; use --pp 1")
    if FORMATS[weights].num_bytes != 2:
        allowed = ", ".join(name for name, each in FORMATS.items() if each.num_bytes == 2)
        raise ServeError(
            f"dtype {weights} with profiles of layers ({folder}), which were measured with weights of 16 bits; "
            f"allowed are {allowed}; leave out the profiles, to have {weights} predicted"
        )


def _families(graphs: Sequence[StepGraph], num_devices: int) -> list[str]:
    """Name the families of tables that have the kernels of a step."""
    families = ["gemm", "attention"]
    if any(graph.experts for graph in graphs):
        families.append("moe")
    return [*families, "comm"] if num_devices > 1 else families


class _Source(NamedTuple):
    """A folder of measured times, and the model or server of it that the user named; "" for none."""

    folder: Path
    named: str


def _sources(kernels: Path | None) -> tuple[_Source | None, _Source | None]:
    """Return the folder of profiles of layers, and the folder of tables of kernels; None where there is none."""
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
    """Return the source of step times that `step_costs` takes.

    Parameters
    ----------
    kernels : as `step_costs` reads it.

    Raises
    ------
    ServeError
        If a folder is not there, or two are of one kind.
    """
    profile, tables = _sources(kernels)
    if profile is not None:
        return "layers"
    return "kernels" if tables is not None else "device"


def _folder(kernels: Path) -> _Source:
    """Split a folder from the name after it."""
    text, _, named = str(kernels).partition(":")
    if kernels.is_dir():
        return _Source(kernels, "")
    if not Path(text).is_dir():
        raise ServeError(
            f"{text} is no folder; give one with measured times: layer profiles, or an installed aiconfigurator_core"
        )
    return _Source(Path(text), named)


def _profiled(folder: Path, device: str, model: str) -> str:
    """Find the name of a model in the profiles of a folder."""
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
    """Split the last part of a model's name into words and numbers: llama, 3, 8b."""
    return set(re.findall(r"\d+[a-z]?(?![a-z\d])|\d+|[a-z]+", name.lower().rpartition("/")[2]))
