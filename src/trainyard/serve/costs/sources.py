"""Which source the seconds of a step come from: a device's description, or a folder of measured times."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from trainyard.hardware.cluster import Cluster
from trainyard.serve.costs.formats import FORMATS
from trainyard.serve.costs.kernels import StepGraph
from trainyard.serve.costs.model_step_time import GraphCosts, StepCosts
from trainyard.serve.costs.predicted import PredictedKernels
from trainyard.serve.costs.tables.aiconfigurator import AiconfiguratorKernels
from trainyard.serve.costs.tables.layer_profile import (
    Exchange,
    has_layer_profile,
    profiled_models,
    read_layer_profile,
)
from trainyard.serve.errors import ServeError

__all__ = ["step_costs"]


def step_costs(
    model: str,
    graph: StepGraph,
    cluster: Cluster,
    tensor_parallel: int,
    pipeline_stages: int,
    weights: str,
    kernels: Path | None = None,
    data_parallel: int = 1,
) -> tuple[StepCosts, str]:
    """The parts of a step of a model, and where their seconds come from, in a few words.

    Parameters
    ----------
    model : its name.
    graph : what a device launches.
    cluster : whose first devices compute it.
    tensor_parallel, pipeline_stages : how it is split.
    weights : how they are held, a key of `FORMATS`.
    kernels : a folder of measured times: profiles of layers (`read_layer_profile`), or the tables of an installed
        aiconfigurator. After it may stand a colon, and the name that a profile gives the model, or the server whose
        kernels aiconfigurator measured.
    data_parallel : ranks of attention that share the experts of mixtures.

    Raises
    ------
    ServeError
        If the folder has no times of this model or device.
    """
    device = cluster.devices[0].name
    form = FORMATS[weights]
    predicted = PredictedKernels(cluster, tensor_parallel, form.computed_in, form.num_bytes, form.cache_bytes)
    between = replace(predicted, num_devices=data_parallel * tensor_parallel) if data_parallel > 1 else None
    from_description = GraphCosts(graph, predicted, pipeline_stages, between)
    if kernels is None:
        return from_description, f"predicted from the description of {device}"
    folder, named = _folder(kernels)
    if has_layer_profile(folder):
        if pipeline_stages > 1:
            raise ServeError(
                f"{folder} has profiles of layers, which tell nothing of a pipeline; use one stage"
            )
        meant = named or _profiled(folder, device, model)
        num_layers = sum(num for _, num in graph.attention)
        mixture = next(((each.num_experts, each.num_used) for each, _ in graph.experts), (0, 0))
        exchange = Exchange(from_description.exchanged_s, from_description.dispatched_s, data_parallel)
        profile = read_layer_profile(folder, device, meant, tensor_parallel, num_layers, mixture, exchange)
        return profile, f"layers of {meant} measured on {device}, in {folder}"
    backend = named or "vllm"
    measured = AiconfiguratorKernels(folder, device, tensor_parallel, weights, predicted, backend)
    costs = GraphCosts(graph, measured, pipeline_stages, between)
    return costs, f"kernels of {backend} measured on {device}, in {folder}"


def _folder(kernels: Path) -> tuple[Path, str]:
    """A folder, and what is named after it."""
    text, _, named = str(kernels).partition(":")
    if kernels.is_dir():
        return kernels, ""
    if not Path(text).is_dir():
        raise ServeError(
            f"{text} is no folder; give one with measured times: profiles of layers, or an installed aiconfigurator"
        )
    return Path(text), named


def _profiled(folder: Path, device: str, model: str) -> str:
    """The name that a profile gives a model."""
    known = profiled_models(folder, device)
    wanted = _words(model)
    found = [name for name in known if wanted <= _words(name)]
    if len(found) != 1:
        raise ServeError(
            f"{folder} has layers of {', '.join(known) or 'no model'} on {device}; which of them is {model!r} is not "
            "clear: write it after the folder and a colon"
        )
    return found[0]


def _words(name: str) -> set[str]:
    """Of the last part of a model's name, with numbers apart: llama, 3, 8b."""
    return set(re.findall(r"\d+[a-z]?(?![a-z\d])|\d+|[a-z]+", name.lower().rpartition("/")[2]))
