"""How the vectors of a text's tokens become its embedding, as a folder of sentence-transformers says.

``modules.json`` names the modules that follow each other: the model itself, the pooling, and whether embeddings are then
brought to length 1. ``1_Pooling/config.json`` names the kind of pooling, ``sentence_bert_config.json`` the longest text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_args

import torch
from torch import Tensor

from trainyard.reading import listed, shown
from trainyard.serve.errors import ServeError
from trainyard.serve.run.folder_files import read_json

__all__ = ["Pooling", "PoolingMode", "has_pooling", "pool", "read_pooling"]

PoolingMode = Literal["cls", "lasttoken", "max", "mean", "mean_sqrt_len_tokens"]
"""The vector of the first or last token, the largest of each element, the mean, the sum by the root of the length."""

_FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "pooling_mode_cls_token": "cls",
        "pooling_mode_lasttoken": "lasttoken",
        "pooling_mode_max_tokens": "max",
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
        "pooling_mode_weightedmean_tokens": "weightedmean",
    }
)
"""Kinds of pooling by the fields that older configurations have for them."""
_MODULES = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])


@dataclass(frozen=True)
class Pooling:
    """How the vectors of a text's tokens become its embedding.

    Attributes
    ----------
    mode : the kind of pooling.
    is_normalized : whether embeddings are brought to length 1.
    max_tokens : of the longest text; None for what the model was made for.
    """

    mode: PoolingMode
    is_normalized: bool = False
    max_tokens: int | None = None


def has_pooling(folder: Path) -> bool:
    """Whether a model says how its embeddings are made."""
    return (folder / "modules.json").is_file()


def read_pooling(folder: Path) -> Pooling:
    """How a model makes embeddings.

    Raises
    ------
    ServeError
        If its folder does not say it, or says what is not done here.
    """
    modules = read_json(folder / "modules.json", list)
    try:
        kinds = [str(each["type"]).rpartition(".")[2] for each in modules]
        paths = [str(each["path"]) for each in modules]
    except (TypeError, KeyError):
        raise ServeError(f"{folder}/modules.json has a module without type or path; give each both") from None
    if kinds not in _MODULES:
        allowed = listed(" ".join(each) for each in _MODULES)
        raise ServeError(f"{folder}/modules.json has modules {' '.join(kinds)}; allowed are {allowed}")
    if paths[0]:
        raise ServeError(f"{folder}/modules.json has the model in {paths[0]!r}; allowed is the folder itself")
    if Path(paths[1]).name != paths[1]:
        raise ServeError(
            f"{folder}/modules.json has the pooling in {shown(paths[1])}; allowed is one beside it, such as 1_Pooling"
        )
    path = folder / "sentence_bert_config.json"
    more = read_json(path)
    if more.get("do_lower_case"):
        raise ServeError(f"{path} has do_lower_case; allowed is a tokenizer that does it by itself")
    most = more.get("max_seq_length")
    if most is not None and not (type(most) is int and most >= 1):
        raise ServeError(f"{path} has max_seq_length {shown(most)}; allowed is a number of tokens")
    return Pooling(_mode(folder / paths[1] / "config.json"), kinds[-1] == "Normalize", most)


def pool(hidden: Tensor, lengths: Tensor, pooling: Pooling) -> Tensor:
    """Embeddings of texts.

    Parameters
    ----------
    hidden : vectors of their tokens; shape ``(texts, tokens, width)``. What follows the tokens of a text is not used.
    lengths : tokens of each text.

    Returns
    -------
    One for each text, in float32; shape ``(texts, width)``.
    """
    hidden = hidden.float()
    is_token = (torch.arange(hidden.shape[1]) < lengths[:, None])[..., None]
    if pooling.mode == "cls":
        found = hidden[:, 0]
    elif pooling.mode == "lasttoken":
        found = hidden[torch.arange(len(hidden)), lengths - 1]
    elif pooling.mode == "max":
        found = hidden.masked_fill(~is_token, -torch.inf).amax(1)
    else:
        by = lengths[:, None].float()
        found = hidden.masked_fill(~is_token, 0.0).sum(1) / (by if pooling.mode == "mean" else by.sqrt())
    return torch.nn.functional.normalize(found, dim=1) if pooling.is_normalized else found


def _mode(path: Path) -> PoolingMode:
    given = read_json(path)
    modes = given.get("pooling_mode", [mode for flag, mode in _FLAGS.items() if given.get(flag)])
    modes = [modes] if isinstance(modes, str) else modes
    if given.get("include_prompt") is False:
        raise ServeError(f"{path} leaves instructions out of the pooling (include_prompt); allowed is true")
    for mode in get_args(PoolingMode):
        if modes == [mode]:
            found: PoolingMode = mode
            return found
    allowed = listed(get_args(PoolingMode))
    raise ServeError(f"{path} has pooling mode {shown(modes)}; allowed is one of {allowed}")
