"""Check that a run matches a checkpoint: settings that must be equal, and the model's identity."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from trainyard.job.plan import Plan
from trainyard.job.run.config import TrainConfig
from trainyard.job.run.errors import CheckpointError
from trainyard.job.task import Task
from trainyard.program.program import tensor_of

PARAMS, BUFFERS = "param", "buffer"
FIELDS = {"param": PARAMS, "buffer": BUFFERS}
"""Names of a checkpoint's fields, by the kind of a program's input."""
_MOST_NAMED = 4


@dataclass(frozen=True)
class ModelIdentity:
    """The identity of a model: values by which a checkpoint recognises it.

    Attributes
    ----------
    program : fingerprint of its step on the whole batch, as this version of PyTorch has it, and its lengths.
    torch : that version.
    shapes : of parameters and buffers, by ``param/<path>`` and ``buffer/<path>``; a number is a row of one.
    """

    program: str
    torch: str
    shapes: Mapping[str, tuple[int, ...]]


def model_identity(task: Task) -> ModelIdentity:
    """Return the identity of a model: its program on the whole batch, and the lengths to which batches are padded."""
    program, lengths = task.program(task.num_rows), task.model.lengths
    said = program.fingerprint if lengths is None else f"{program.fingerprint}, padded to {lengths}"
    shapes = {
        f"{FIELDS[entry.kind]}/{entry.path}": tuple(tensor_of(program.nodes[entry.node]).shape) or (1,)
        for entry in program.inputs
        if entry.kind in FIELDS
    }
    return ModelIdentity(said, str(torch.__version__), shapes)


def settings_of(plan: Plan, config: TrainConfig) -> dict[str, Any]:
    """Return the settings that identify a run, by names of options, as JSON has them."""
    optimizer = config.optimizer.settings()
    statistics = plan.statistics
    if statistics == "microbatch":
        statistics = f"each microbatch of {plan.rows_per_microbatch} rows"  # type: ignore[assignment]
    found = {
        "optimizer": optimizer.pop("name"),
        **optimizer,
        "seed": config.seed,
        "rows": plan.num_rows,
        "dtype": plan.dtype,
        "statistics": statistics,
    }
    if plan.schedule.has_updates:
        schedule = plan.schedule
        found["schedule"] = (
            f"{schedule.name} of {schedule.num_microbatches} microbatches in {schedule.num_stages} stages"
        )
    return dict(json.loads(json.dumps(found)))


def check_settings(saved: Mapping[str, Any], asked: Mapping[str, Any], where: object) -> None:
    """Compare what a checkpoint was trained with and what it is to be trained with.

    Raises
    ------
    CheckpointError
        If anything differs; the message names all of it.
    """
    unlike = [name for name in {**asked, **saved} if saved.get(name) != asked.get(name)]
    if unlike:
        parts = [
            f"{n} is {saved.get(n, 'not given')} there and {asked.get(n, 'not given')} here" for n in unlike
        ]
        raise CheckpointError(
            f"{where} is of another run: {', '.join(parts)}. Leave out what differs, which continues that run, or "
            "start a run of its own in another folder"
        )


def check_model(
    saved: Mapping[str, tuple[int, ...]], program: str, version: str, own: ModelIdentity, where: object
) -> None:
    """Compare the model that a checkpoint was written of with the one that is to go on.

    Parameters
    ----------
    saved : shapes of the tensors in the checkpoint, as in `ModelIdentity`.
    program, version : the fingerprint and the version of PyTorch that it was written with.

    Raises
    ------
    CheckpointError
        If names, shapes or what a step computes differ; the message names what does.
    """
    there = {key: shape for key, shape in saved.items() if key.startswith((f"{PARAMS}/", f"{BUFFERS}/"))}
    parts = []
    if unknown := [key for key in there if key not in own.shapes]:
        parts.append(f"this model has no {_named(unknown)}")
    if missing := [key for key in own.shapes if key not in there]:
        parts.append(f"the checkpoint has no {_named(missing)}")
    unlike = [key for key in there if own.shapes.get(key, there[key]) != there[key]]
    parts += [
        f"{_plain(k)} has shape {there[k]} there and {own.shapes[k]} here" for k in unlike[:_MOST_NAMED]
    ]
    # Another version of PyTorch may break a step down otherwise.
    if not parts and version == own.torch and program != own.program:
        parts.append(
            "parameters and buffers have the same names and shapes, and a step computes something else (fingerprint "
            f"{program} there and {own.program} here), as with another number of heads, another loss or other lengths"
        )
    if parts:
        raise CheckpointError(
            f"{where} is of another model: {'; '.join(parts)}. Give the model that it was written of, or another folder"
        )


def _named(keys: Iterable[str]) -> str:
    names = sorted(map(_plain, keys))
    rest = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + rest


def _plain(key: str) -> str:
    return key.partition("/")[2]
