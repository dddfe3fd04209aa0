"""Models of transformers from a folder: weights as safetensors, all of them there, and no code of the folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from trainyard.reading import listed
from trainyard.serve.errors import ServeError

__all__ = ["ModelLoader", "load_causal_pretrained", "load_pretrained", "require_fixed_rope"]

ModelLoader = Callable[[Path, torch.dtype], PreTrainedModel]
"""Makes the model of a folder, with weights of a type; a function of a module, for it is pickled."""

_LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


def load_pretrained(
    auto_class: Any, folder: Path, dtype: torch.dtype, unused: str | None = None
) -> PreTrainedModel:
    """Read a model in Hugging Face form: ``config.json`` and weights as safetensors.

    Parameters
    ----------
    auto_class : of transformers, such as `AutoModelForCausalLM`.
    dtype : type of its weights.
    unused : beginning of the names of weights that are not needed; None for none.

    Raises
    ------
    ServeError
        If the folder has no such model, or not all of its weights.
    """
    if not (folder / "config.json").is_file():
        raise ServeError(f"{folder} has no config.json; give a folder in Hugging Face form")
    if not any(folder.glob("*.safetensors")):
        raise ServeError(f"{folder} has no weights as safetensors; allowed is this format only")
    disable_progress_bar()  # of transformers, which would be in the output of a command
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        model, found = auto_class.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ServeError(f"{folder} cannot be read: {error}") from error
    missing = sorted(name for name in found["missing_keys"] if unused is None or not name.startswith(unused))
    if missing:  # transformers would draw them
        raise ServeError(
            f"{folder} has no weights {listed(missing[:3])} of a {type(model).__name__}; give a folder with "
            "all weights; one that gives embeddings also has a modules.json"
        )
    loaded: PreTrainedModel = model
    return loaded


def load_causal_pretrained(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Read a model that generates text; see `load_pretrained`."""
    return load_pretrained(AutoModelForCausalLM, folder, dtype)


def require_fixed_rope(name: str, config: Any) -> None:
    """Refuse a model whose positions depend on what else is in a step.

    Raises
    ------
    ServeError
        If it is one.
    """
    given = getattr(config, "rope_scaling", None) or getattr(config, "rope_parameters", None) or {}
    kind = given.get("rope_type", given.get("type")) if isinstance(given, dict) else None
    if kind in _LENGTH_DEPENDENT_ROPE:
        raise ServeError(
            f"{name} turns positions by the longest sequence of a step (rope_type {kind!r}); that would let requests "
            "change each other's answers; allowed are types that depend on the position only"
        )
