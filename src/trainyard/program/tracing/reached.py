"""Which parameters autograd reaches from a loss: a captured step must have the gradients that plain PyTorch has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from trainyard.program.capture_error import CaptureError


def leaves_of(loss: Any) -> list[Tensor]:
    """The leaves that autograd reaches from a loss: the tensors that could have a gradient."""
    found: list[Tensor] = []
    left = [loss.grad_fn] if isinstance(loss, Tensor) else []
    seen = set(left)
    while left:
        node = left.pop()
        if node is None:
            continue
        if hasattr(node, "variable"):
            found.append(node.variable)
        for before, _ in node.next_functions:
            if before not in seen:
                seen.add(before)
                left.append(before)
    return found


def names_among(leaves: Iterable[Tensor], params: Mapping[str, Tensor]) -> frozenset[str]:
    """The parameters that are among some leaves."""
    known = {id(leaf) for leaf in leaves}
    return frozenset(name for name, param in params.items() if id(param) in known)


def refuse_reached_elsewhere(name: str, module: nn.Module, leaves: Iterable[Tensor]) -> None:
    """Refuse a model that reaches its own parameters by another way than as the module's: in a tuple, or a closure.

    Raises
    ------
    CaptureError
        That names them.
    """
    elsewhere = names_among(leaves, dict(module.named_parameters()))
    if elsewhere:
        raise CaptureError(
            f"{name} cannot be captured: it reaches its parameter {_listed(elsewhere)} not by the module's attribute but "
            "by another reference, such as in a tuple or what a function closes over. Look it up on the module in every "
            "step"
        )


def refuse_unreached(name: str, wanted: Iterable[str], found: Iterable[str]) -> None:
    """Compare the parameters that have a gradient in plain PyTorch with those that have one in the captured step.

    Raises
    ------
    CaptureError
        If one is missing, that names it.
    """
    missing = frozenset(wanted) - frozenset(found)
    if missing:
        raise CaptureError(
            f"{name} cannot be captured: its parameter {_listed(missing)} has a gradient in plain PyTorch, but none in "
            "the captured step, so it would not be trained. Use it as it is, without wrapping it in another parameter"
        )


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:5]) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")
