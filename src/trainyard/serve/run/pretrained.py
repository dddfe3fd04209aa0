"""Models of transformers from a folder: weights as safetensors, all of them there, and no code of the folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from trainyard.reading import listed, shortened
from trainyard.serve.errors import ServeError
from trainyard.serve.run.folder_files import check_files, tensor_headers, weight_files
from trainyard.serve.run.quantized_weights import lazy_weights
from trainyard.user_file import fault_in_user_file

__all__ = ["ModelLoader", "load_causal_pretrained", "load_pretrained", "refusing"]

ModelLoader = Callable[[Path, torch.dtype], PreTrainedModel]
"""Makes the model of a folder, with weights of a type; a function of a module, for it is pickled."""

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_EXPERT = re.compile(r"(?<=experts\.)(\d+)(?=\.)")
_OLD_BUFFERS = (".masked_bias", ".inv_freq", ".position_ids")
"""Ends of names that older versions of transformers saved, and that are no weights."""


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
    check_files(folder)
    files = weight_files(folder)
    with refusing(folder, "cannot be read"):
        weights = lazy_weights(folder, files)
        _require_equal_experts(folder, files)
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        loader: Any = auto_class
        if weights is not None:
            del config.quantization_config  # for which transformers would change its modules
            with torch.device("meta"):
                loader = type(auto_class.from_config(config, trust_remote_code=False))
        model, found = loader.from_pretrained(
            folder if weights is None else None,
            config=config,
            state_dict=weights,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    for name, *shapes in sorted(found["mismatched_keys"])[:1]:
        saved, wanted = map(list, shapes)
        raise ServeError(
            f"{folder} has {name} of shape {saved}; config.json says {wanted}; give the weights of this model"
        )
    missing = sorted(name for name in found["missing_keys"] if unused is None or not name.startswith(unused))
    if missing:  # transformers would draw them
        raise ServeError(
            f"{folder} has no weights {listed(missing[:3])} of a {type(model).__name__}; give a folder with "
            "all weights; one that gives embeddings also has a modules.json"
        )
    _require_no_more(folder, model, found["unexpected_keys"])
    loaded: PreTrainedModel = model
    return loaded


def _require_equal_experts(folder: Path, files: Sequence[Path]) -> None:
    """Refuse experts with other weights than each other: they are saved one by one and computed as one tensor."""
    shapes: dict[str, dict[int, Sequence[int]]] = {}
    for path in files:
        with safe_open(path, framework="np") as file:
            for name, header in tensor_headers(file).items():
                if len(parts := _EXPERT.split(name)) == 3:
                    found = shapes.setdefault(f"{parts[0]}#{parts[2]}", {})
                    found[int(parts[1])] = header.shape
    numbers: dict[str, set[int]] = {}
    for pattern, by_expert in shapes.items():
        numbers.setdefault(pattern.partition("#")[0], set()).update(by_expert)
    for pattern, by_expert in sorted(shapes.items()):
        shape = by_expert[min(by_expert)]
        for expert in sorted(numbers[pattern.partition("#")[0]]):
            name, other = pattern.replace("#", str(expert)), by_expert.get(expert)
            if other is None:
                raise ServeError(f"{folder} has no {name}; give all weights of all experts")
            if other != shape:
                raise ServeError(
                    f"{folder} has {name} of shape {list(other)}, and {list(shape)} of another expert; give the "
                    "weights of one model"
                )


def _require_no_more(folder: Path, model: Any, names: Collection[str]) -> None:
    """Refuse a weight of a layer or module of the model that the model does not use.

    Its config.json is of another model then.
    """
    modules = {_NUMBER.sub("#", name) for name, _ in model.named_modules()}
    modules |= {name.removeprefix(f"{model.base_model_prefix}.") for name in modules}
    for name in sorted(names):
        module = _NUMBER.sub("#", name).rpartition(".")[0]
        if module in modules and not name.endswith(_OLD_BUFFERS):
            raise ServeError(
                f"{folder} has {name}, which a {type(model).__name__} with this config.json does not use; give the "
                "config.json of these weights, with as many layers as they have"
            )


@contextmanager
def refusing(
    folder: Path, said: str, advice: str = "give a folder with a model as transformers saves it"
) -> Iterator[None]:
    """Within it, any error is the folder's: libraries raise whatever comes of what its files say.

    Errors in a user's own file stay what they are.

    Parameters
    ----------
    said : what cannot be done with the folder.
    advice : what to do instead.

    Raises
    ------
    ServeError
        In place of another error.
    """
    disable_progress_bar()  # of transformers, which would be in the output of a command
    set_verbosity_error()  # its tables of weights, too: the error says the same
    try:
        yield
    except ServeError:
        raise
    except Exception as error:
        if fault_in_user_file(error):
            raise
        told = shortened(" ".join(f"{type(error).__name__}: {error}".split()))
        raise ServeError(f"{folder} {said}: {told}; {advice}") from error


def load_causal_pretrained(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Read a model that generates text; see `load_pretrained`."""
    return load_pretrained(AutoModelForCausalLM, folder, dtype)
