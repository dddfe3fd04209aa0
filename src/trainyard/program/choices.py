"""Choices that a plan gives: how ops run along a mesh axis, which no propagation changes."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

from torch import fx

from trainyard.errors import TrainyardError
from trainyard.program.addresses import AddressError, address
from trainyard.program.algebra.notation import Choice, choices, options
from trainyard.program.algebra.rules import axes_of, tensor_args
from trainyard.program.decompose import expand, forward_of
from trainyard.program.patterns import PatternError, spread
from trainyard.program.placement import OpChoice, Partial, Placement, Shard
from trainyard.program.program import Program, tensors_of
from trainyard.reading import listed

__all__ = ["ChoiceError", "expand_named", "given_choices", "named_in"]

_PART = "/"


class ChoiceError(TrainyardError, ValueError):
    """A choice that an op does not have, or of an op that is not there; the message says which there are."""


def expand_named(program: Program, names: Iterable[str]) -> Program:
    """Expand the ops of which parts are named, such as ``:_log_softmax/sum``."""
    whole = {name.partition(_PART)[0] for name in names if _PART in name and not _found(program, name)}
    nodes = {n for name in whole for n in _found(program, name) if forward_of(n) is not None}
    if not nodes:
        return program
    return expand(program, nodes | {n for n in program.graph.nodes if forward_of(n) in nodes})


def named_in(program: Program, said: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of ops that a program has, or of parts of these."""
    return {name: value for name, value in said.items() if _found(program, name) or _is_part(program, name)}


def _is_part(program: Program, name: str) -> bool:
    whole = name.partition(_PART)[0]
    return whole != name and any(forward_of(n) is not None for n in _found(program, whole))


def _found(program: Program, name: str) -> tuple[fx.Node, ...]:
    try:
        return program.addresses.find(name)
    except AddressError:
        return ()


def given_choices(
    program: Program, axis_name: str, num_ranks: int, said: Mapping[str, OpChoice]
) -> dict[fx.Node, tuple[Choice, Placement | None]]:
    """How ops run, and to where the result of each is moved at once, if anywhere.

    Parameters
    ----------
    said : by address or pattern.

    Raises
    ------
    ChoiceError
        If there is no such op, or it cannot run so.
    """
    try:
        by_name = {name: {axis_name: choice} for name, choice in said.items()}
        found = spread(by_name, lambda name: program.addresses.names((name,)))
    except (AddressError, PatternError) as error:
        raise ChoiceError(str(error)) from error
    chosen: dict[fx.Node, tuple[Choice, Placement | None]] = {}
    for name, own in found.items():
        node, choice = program.addresses.nodes[name], own[axis_name]
        chosen[node] = _choice(node, choice, num_ranks), choice.moved_to
        _check_move(node, choice, num_ranks)
    return chosen


def _choice(node: fx.Node, said: OpChoice, num_ranks: int) -> Choice:
    if node.target is operator.getitem:
        # What it takes lies as the op has it whose result it is; that is compared once it is known.
        return Choice(None, said.operands, said.results)
    for option in _options(node, said, num_ranks):
        if (option.operands, option.results) == (said.operands, said.results):
            return option
    known = list(dict.fromkeys(option.text for option in choices(axes_of(node), num_ranks)))
    raise ChoiceError(
        f"{address(node)} cannot run as {OpChoice(said.operands, said.results)} on {num_ranks} ranks; it can as "
        f"{listed(known)}"
    )


def _options(node: fx.Node, said: OpChoice, num_ranks: int) -> tuple[Choice, ...]:
    """The choices that the op has; none where what is said does not fit its tensors."""
    given = [*said.operands, *said.results]
    tensors = [*(source.meta["val"] for source in tensor_args(node)), *tensors_of(node)]
    if len(said.operands) != len(tensor_args(node)) or len(given) != len(tensors):
        return ()
    if any(isinstance(p, Shard) and p.dim >= t.dim() for p, t in zip(given, tensors, strict=True)):
        return ()
    return options(axes_of(node), said.operands, dict(enumerate(said.results)), num_ranks)


def _check_move(node: fx.Node, said: OpChoice, num_ranks: int) -> None:
    need = said.moved_to
    if need is None:
        return
    shape = tuple(node.meta["val"].shape)
    divides = not isinstance(need, Shard) or (
        need.dim < len(shape) and shape[need.dim] % (need.blocks * num_ranks) == 0
    )
    if not divides or (isinstance(need, Partial) and need.reduction != "sum"):
        raise ChoiceError(
            f"{address(node)} cannot be moved to {need}: its result of shape {shape} can lie on {num_ranks} ranks "
            f"whole, R, cut in a dimension that divides by {num_ranks}, S<dim>, or as terms of a sum, P"
        )
