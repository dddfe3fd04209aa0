"""Optimizers of the user's own: PyTorch's classes, others derived from them, and functions that make one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainyard.errors import TrainyardError
from trainyard.job.optimizer.config import OptimizerFactory, name_of
from trainyard.reading import listed
from trainyard.reading.arguments import WrongTypeError

__all__ = ["GROUP", "Optimizers", "Piece", "UserOptimizerError", "make_optimizer"]


class UserOptimizerError(TrainyardError, ValueError):
    """An optimizer of the user that cannot be used; the message has its name, and says why and what to do."""


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of a parameter that is updated for itself.

    Attributes
    ----------
    first, last : its elements, counted in the flattened parameter.
    tensor : its values, of the parameter's shape if it is whole, else of one dimension.
    """

    first: int
    last: int
    tensor: Tensor

    def of(self, whole: Tensor) -> Tensor:
        """The same part of a tensor of the parameter's shape."""
        return whole.reshape(-1)[self.first : self.last].view(self.tensor.shape)


class Optimizers:
    """The optimizer that a user's function makes, or the several, each of some of the parameters, as one.

    Parameters
    ----------
    make : the function.
    named : what it is given, pairs of a name and a parameter.

    Attributes
    ----------
    name : of their classes.
    members : the optimizers.
    described : their classes, and the options of their groups, in one line.

    Raises
    ------
    WrongTypeError
        If the function returns no optimizer.
    """

    def __init__(self, make: OptimizerFactory, named: list[tuple[str, Any]]) -> None:
        made = make(named)
        self.members = list(made) if isinstance(made, list | tuple) else [made]
        other = next((m for m in self.members if not isinstance(m, torch.optim.Optimizer)), None)
        if not self.members or other is not None:
            raise WrongTypeError(
                f"{name_of(make)}(params) returned a {type(made if other is None else other).__name__}; it has to return "
                "a torch.optim.Optimizer, or a list of such"
            )
        self.name = listed([type(m).__name__ for m in self.members])
        self.described = " + ".join(f"{type(m).__name__}: {_options_text(m)}" for m in self.members)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all of them."""
        return [group for member in self.members for group in member.param_groups]

    def state_of(self, tensor: Tensor) -> dict[str, Any]:
        """Return the state that the optimizers keep for a tensor; empty before the first step."""
        found: dict[str, Any] = next((m.state[tensor] for m in self.members if tensor in m.state), {})
        return found

    def group_of(self, tensor: Tensor) -> dict[str, Any]:
        """The group that a tensor is in."""
        return next(g for g in self.param_groups if any(tensor is each for each in g["params"]))

    def set_state(self, tensor: Tensor, kept: dict[str, Any]) -> None:
        """Give them what they keep of a tensor, by the optimizer that updates it."""
        for member in self.members:
            if any(tensor is each for group in member.param_groups for each in group["params"]):
                member.state[tensor] = kept

    def step(self) -> None:
        """Update with all of them."""
        for member in self.members:
            step: Callable[[], object] = member.step
            if member.param_groups:
                step()


def _options_text(optimizer: torch.optim.Optimizer) -> str:
    groups = (sorted(group.items()) for group in optimizer.param_groups)
    return "; ".join(", ".join(f"{k} {v}" for k, v in group if k not in _NOT_OPTIONS) for group in groups)


GROUP = "group"
"""Key of a group's number among all groups of a user's optimizer, of which a rank may not have all."""
_NOT_OPTIONS = ("params", "param_names", "initial_lr", GROUP)


def make_optimizer(
    make: OptimizerFactory,
    shapes: Mapping[str, Sequence[int]],
    pieces: Mapping[str, Sequence[Piece]],
    device: torch.device,
) -> Optimizers:
    """Make an optimizer as the user's function does, and let it update pieces in place of whole parameters.

    The function is given parameters that have the names and shapes of the model's (a number is a row of one), and no
    memory of their own.

    Parameters
    ----------
    shapes : of all trained parameters of the model, by path.
    pieces : that are here, by path; groups without any are left out.

    Raises
    ------
    WrongTypeError
        If the function returns no optimizer.
    UserOptimizerError
        If the optimizers have not all parameters, or one twice.
    """
    dtype = next((piece.tensor.dtype for own in pieces.values() for piece in own), torch.float32)
    number = torch.zeros((), dtype=dtype, device=device)
    named = [(path, nn.Parameter(number.expand(tuple(shape) or (1,)))) for path, shape in shapes.items()]
    optimizers = Optimizers(make, list(named))
    _check_all_are_in_a_group(optimizers, named)
    path_of = {id(parameter): path for path, parameter in named}
    for number_of_group, group in enumerate(optimizers.param_groups):
        group[GROUP] = number_of_group
    for member in optimizers.members:
        state = dict(member.state)
        member.state.clear()
        for group in member.param_groups:
            own = [
                (path_of[id(p)], p, piece)
                for p in group["params"]
                for piece in pieces.get(path_of[id(p)], ())
            ]
            group["params"][:] = [piece.tensor for _, _, piece in own]
            if "param_names" in group:
                group["param_names"] = [path for path, _, _ in own]
            for _, parameter, piece in own:
                if kept := state.get(parameter):
                    member.state[piece.tensor] = {k: _part(v, parameter, piece) for k, v in kept.items()}
        member.param_groups[:] = [group for group in member.param_groups if group["params"]]
    return optimizers


def _check_all_are_in_a_group(optimizers: Optimizers, named: Sequence[tuple[str, Tensor]]) -> None:
    known = [id(p) for group in optimizers.param_groups for p in group["params"]]
    if left := [path for path, p in named if id(p) not in known]:
        raise UserOptimizerError(
            f"{optimizers.name} has no group with {left[0]}, which is trained ({len(left)} such parameters); put all "
            "params into groups, or set requires_grad=False in the model"
        )
    if twice := [path for path, p in named if known.count(id(p)) > 1]:
        raise UserOptimizerError(
            f"{optimizers.name} has {twice[0]} in several groups; put each parameter into one"
        )


def _part(value: object, parameter: Tensor, piece: Piece) -> object:
    if isinstance(value, Tensor):
        return (piece.of(value) if value.shape == parameter.shape else value).clone()
    return value
