"""Export of a model of transformers that was trained: a folder that ``from_pretrained`` loads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from trainyard.job.run.errors import WeightsError
from trainyard.job.run.export.weight_files import MOST_SHARD_BYTES, StateDict, new_path

__all__ = ["export_hugging_face"]

_CONFIG = "config.json"


def export_hugging_face(
    state: StateDict, folder: Path, config: Path | None = None, most_shard_bytes: int = MOST_SHARD_BYTES
) -> list[Path]:
    """Write the model of transformers that a checkpoint's module is, or that it wraps.

    No code is run but that of transformers: neither the model's Python file, nor code of a repository.

    Parameters
    ----------
    folder : a new one.
    config : folder with the ``config.json`` of the model; by default the configuration in the checkpoint.
    most_shard_bytes : of a file of weights.

    Returns
    -------
    list of Path
        The files of weights.

    Raises
    ------
    WeightsError
        If the module is no model of transformers, has more weights than that, or others; or the folder exists.
    """
    if state.transformers_config is None and config is None:
        raise WeightsError(
            f"the module of {state.source} is no model of transformers, and wraps none, so there is no configuration "
            f"for from_pretrained; give --config FOLDER with the {_CONFIG} of a model of the same weights, or export "
            "with --to safetensors"
        )
    with new_path(folder) as place:
        place.mkdir(parents=True)
        if config is None:
            (place / _CONFIG).write_text(json.dumps(state.transformers_config))
        model = _empty_model(config or place)
        prefix = _prefix(list(model.state_dict()), state, state.source)
        _load(model, {name.removeprefix(prefix): value for name, value in state.items()}, state.source)
        model.save_pretrained(place, max_shard_size=most_shard_bytes)
        names = sorted(file.name for file in place.glob("*.safetensors"))
    return [folder / name for name in names]


def _load(model: PreTrainedModel, state: dict[str, Tensor], source: Path) -> None:
    """Give a model its weights, and refuse weights that transformers would change."""
    try:
        model.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise WeightsError(
            f"the module of {source} is not of this configuration: {' '.join(str(error).split())[:200]}; "
            "give --config FOLDER with that of the model that was trained"
        ) from error
    model.tie_weights()
    for name, value in model.state_dict().items():
        if not torch.equal(value, state[name]):
            raise WeightsError(
                f"transformers ties {name} to another weight, and they differ in {source}; give --config "
                "with tie_word_embeddings false, or export with --to safetensors"
            )


def _empty_model(folder: Path) -> PreTrainedModel:
    """Build the model of a configuration on the meta device."""
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        with torch.device("meta"):
            return _class_of(config)(config)
    except (OSError, ValueError, KeyError, TypeError) as error:
        first = " ".join(str(error).split())[:200]
        raise WeightsError(
            f"transformers {transformers.__version__} cannot build the model of {folder / _CONFIG}: {first}; give "
            "--config FOLDER with one that it knows"
        ) from error


def _class_of(config: PretrainedConfig) -> type[PreTrainedModel]:
    """Return the class that a configuration names, else the language model of its kind."""
    named = getattr(transformers, (config.architectures or [""])[0], None)
    if isinstance(named, type) and issubclass(named, PreTrainedModel):
        return named
    found: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return cast("type[PreTrainedModel]", found)


def _and_more(num: int) -> str:
    return f" and {num} more" if num else ""


def _prefix(expected: list[str], given: Iterable[str], source: Path) -> str:
    """Return what the module's names have before those of the model of transformers.

    Raises
    ------
    WeightsError
        If the module has other weights than that model.
    """
    names = set(given)
    found = [name.removesuffix(expected[0]) for name in names if name.endswith(expected[0])]
    for prefix in sorted(found, key=len):
        if names.issuperset(prefix + name for name in expected):
            if extra := sorted(names - {prefix + name for name in expected}):
                raise WeightsError(
                    f"the module of {source} has {extra[0]}{_and_more(len(extra) - 1)} beside its model of transformers, "
                    "which from_pretrained would not have; export with --to safetensors"
                )
            return prefix
    missing = next((name for name in expected if name not in names), expected[0])
    raise WeightsError(
        f"the module of {source} has no {missing}, which the model of the configuration has; give --config FOLDER with "
        f"the {_CONFIG} of the model that was trained, or export with --to safetensors"
    )
