"""Check the arguments of the public functions of level 1, each by its name, before any work starts."""

from __future__ import annotations

from typing import Any

from torch import nn

from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Plan
from trainyard.program.model import Model
from trainyard.reading.arguments import require_type

__all__ = ["require_model", "require_optimizer", "require_plan", "require_strategies"]

_MODEL = "a Model: make one with Model(name, module, loss, batch), or by its name with load_model(NAME)"


def require_model(given: Any, *, may_be_function: bool = False) -> None:
    """Refuse what is no model.

    Parameters
    ----------
    may_be_function : whether a function that builds the model may be given instead.

    Raises
    ------
    WrongTypeError
        If it is none.
    """
    if may_be_function and callable(given) and not isinstance(given, nn.Module):
        return
    require_type(
        "model", given, Model, f"{_MODEL}{', or a function that builds one' if may_be_function else ''}"
    )


def require_plan(given: Any) -> None:
    """Refuse what is no plan, such as its file or what `plan` returns.

    Raises
    ------
    WrongTypeError
        If it is none.
    """
    advice = "a Plan: the attribute plan of what plan(model, cluster) returns, or load_plan(PATH)"
    require_type("plan", given, Plan, advice)


def require_optimizer(given: Any) -> None:
    """Refuse an optimizer that is none of ours.

    Raises
    ------
    WrongTypeError
        If it is neither None nor an `OptimizerConfig`.
    """
    advice = 'an OptimizerConfig, such as OptimizerConfig("adamw", lr=1e-3), or None for AdamW'
    require_type("optimizer", given, (OptimizerConfig, type(None)), advice)


def require_strategies(given: Any) -> None:
    """Refuse strategies that are no text.

    Raises
    ------
    WrongTypeError
        If they are none.
    """
    advice = 'text: names joined by +, such as "zero" or "megatron+selective_recompute"'
    require_type("strategies", given, str, advice)
