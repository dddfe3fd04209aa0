"""Requirements of a step: tokens of many sequences go through a model of transformers together."""

from __future__ import annotations

import inspect
from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, DynamicCache, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from trainyard.reading import listed
from trainyard.serve.errors import ServeError

__all__ = ["ALLOWED_FAMILIES", "family_of", "own_attention", "require_no_state", "require_steps"]

_MOST_SHOWN = 4
ALLOWED_FAMILIES = (
    "allowed are families with attention over all tokens, in windows or in chunks, such as llama or qwen3"
)
"""The end of messages about families that are not served."""


def family_of(model: PreTrainedModel) -> str:
    """Return the name of the family of a model, as transformers has it."""
    return str(model.config.get_text_config().model_type)


def own_attention(model: PreTrainedModel) -> str:
    """Return the message that a model has no attention over a paged KV cache."""
    return (
        f"{family_of(model)} models are not served: they compute attention in a way of their own, not through "
        f"transformers' attention interface; {ALLOWED_FAMILIES}"
    )


def require_no_state(config: Any) -> None:
    """Refuse a configuration of models that keep more of a sequence than keys and values.

    Raises
    ------
    ServeError
        Names the family, and the layers with states.
    """
    text = config.get_text_config()
    layers = DynamicCache(config=text).layers
    states = [i for i, each in enumerate(layers) if isinstance(each, LinearAttentionCacheLayerMixin)]
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if states or getattr(kind, "_is_stateful", False):
        more = f" and {len(states) - _MOST_SHOWN} more" if len(states) > _MOST_SHOWN else ""
        where = f" in layers {listed(map(str, states[:_MOST_SHOWN]))}{more}" if states else ""
        raise ServeError(
            f"{text.model_type} models are not served: they keep a state of a sequence{where} (linear attention, "
            f"convolution or Mamba), for which there is no cache; {ALLOWED_FAMILIES}"
        )


def require_steps(model: PreTrainedModel) -> None:
    """Refuse a model that needs more of a sequence than token ids, positions, keys and values.

    Raises
    ------
    ServeError
        Names the family, and the reason.
    """
    require_no_state(model.config)
    family, parameters = family_of(model), inspect.signature(model.forward).parameters
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if type(longest) is not int or longest < 1:
        raise ServeError(
            f"{family} models are not served: config.json has max_position_embeddings {longest!r}; allowed is a number "
            f"of tokens; {ALLOWED_FAMILIES}"
        )
    if "position_ids" not in parameters and not any(
        each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()
    ):
        raise ServeError(f"{family} models are not served: they take no position_ids; {ALLOWED_FAMILIES}")
