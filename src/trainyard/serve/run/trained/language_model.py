"""The language model of transformers in a module that was trained, and the check that it is all of the module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from trainyard.program.model import Model
from trainyard.serve.errors import ServeError

__all__ = ["TokenLogits", "language_model", "recorded_logits", "require_equal_logits"]

_CLASSES = frozenset(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
_MOST_DIFFERENCE = 1e-3
"""As a share of the largest logit. Other orders of sums in float32 differ by less than a hundredth of it."""
_MASKS = ("attention_mask", "position_ids")


@dataclass
class TokenLogits:
    """Tokens, and the logits that a model computed for them.

    Attributes
    ----------
    tokens : shape ``(rows, length)``.
    logits : shape ``(rows, length, vocabulary)``, in float32.
    """

    tokens: Tensor = field(default_factory=lambda: torch.empty(0))
    logits: Tensor = field(default_factory=lambda: torch.empty(0))


def language_model(module: nn.Module, name: str) -> PreTrainedModel:
    """Find the causal language model of transformers that a module is, or that it has.

    Parameters
    ----------
    name : of the model, for messages.

    Raises
    ------
    ServeError
        If there is none, or more than one.
    """
    found = [
        each
        for each in module.modules()
        if isinstance(each, PreTrainedModel) and type(each).__name__ in _CLASSES
    ]
    if len(found) != 1:
        what = f"has {len(found)}" if found else "is no causal language model of transformers and has none"
        raise ServeError(
            f"the module {type(module).__name__} of {name} {what}; allowed is one such model, as a Python file may wrap "
            "it, or a GPT or Llama of the zoo"
        )
    return found[0]


def recorded_logits(model: Model, lm: PreTrainedModel, name: str) -> TokenLogits:
    """Compute the loss of the first row of the example batch; return the tokens and logits of the language model.

    Parameters
    ----------
    model : with weights.
    lm : its language model.
    name : of the model, for messages.

    Raises
    ------
    ServeError
        If the module gives other logits than the language model, or gives it anything else than tokens.
    """
    found = TokenLogits()

    def of_lm(_: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        tokens = args[0] if args else kwargs.get("input_ids")
        if not isinstance(tokens, Tensor) or kwargs.get("inputs_embeds") is not None:
            raise ServeError(f"{name} gives its language model embeddings; allowed are tokens (input_ids)")
        if any(kwargs.get(mask) is not None for mask in _MASKS) and not _is_plain(kwargs, tokens):
            raise ServeError(
                f"{name} gives its language model a mask or positions of its own; leave them out"
            )
        found.tokens, found.logits = tokens.detach(), _logits_of(output).detach().float()

    def of_module(_: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        given = [each for each in tree_leaves((args, dict(kwargs))) if isinstance(each, Tensor)]
        if not any(each.shape == found.tokens.shape and torch.equal(each, found.tokens) for each in given):
            raise ServeError(
                f"{name} gives its language model other tokens than it is given; pass them on as they are"
            )
        logits = _logits_of(output).detach().float()
        if logits.dim():  # not a loss
            require_equal_logits(found.logits, logits, f"the module of {name}", "its language model")

    hooks = [lm.register_forward_hook(of_lm, with_kwargs=True)]
    if lm is not model.module:
        hooks.append(model.module.register_forward_hook(of_module, with_kwargs=True))
    first_row = tree_map(lambda each: each[:1] if isinstance(each, Tensor) else each, _cut(model))
    try:
        with torch.no_grad():
            model.loss(model.module.eval(), first_row)
    finally:
        for hook in hooks:
            hook.remove()
    if not found.logits.numel():
        raise ServeError(f"the loss of {name} does not use its language model; serve that model itself")
    return found


def require_equal_logits(expected: Tensor, logits: Tensor, what: str, other: str) -> None:
    """Refuse logits that differ from those of another model by more than rounding.

    Parameters
    ----------
    what, other : the model with ``logits``, and the model with ``expected``, for messages.

    Raises
    ------
    ServeError
        If they differ.
    """
    if expected.numel() != logits.numel():
        raise ServeError(
            f"{what} returns a tensor of shape {tuple(logits.shape)}, and {other} logits of shape "
            f"{tuple(expected.shape)}; allowed is a module that returns the logits, or a loss"
        )
    difference = float((expected.reshape(logits.shape) - logits).abs().max())
    if not difference <= _MOST_DIFFERENCE * max(1.0, float(expected.abs().max())):
        raise ServeError(
            f"{what} computes logits that differ by up to {difference:.3g} from those of {other}; what is served would "
            "be another model than was trained"
        )


def _cut(model: Model) -> Any:
    """Return the batch; refuse one with entries that are not cut into rows."""
    if model.whole:
        raise ServeError(
            f"the batch of {model.name} has entries that are not rows ({', '.join(model.whole)})"
        )
    return model.batch


def _is_plain(kwargs: Mapping[str, Any], tokens: Tensor) -> bool:
    """Return whether all tokens are seen, and positions count from 0."""
    mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
    counted = torch.arange(tokens.shape[-1]).expand(tokens.shape)
    sees_all = mask is None or (mask.dim() == 2 and bool(mask.bool().all()))
    return sees_all and (positions is None or torch.equal(positions.expand(tokens.shape).cpu(), counted))


def _logits_of(output: Any) -> Tensor:
    """Return the logits of an output, or else its first tensor."""
    logits = getattr(output, "logits", output)
    found = logits if isinstance(logits, Tensor) else next(iter(tree_leaves(logits)), None)
    if not isinstance(found, Tensor):
        raise ServeError(f"the module returns {type(output).__name__}; allowed are logits, or a loss")
    return found
