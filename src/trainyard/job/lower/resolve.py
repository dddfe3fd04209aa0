"""Resolve the names of a plan, addresses and patterns, to nodes of one captured graph."""

from __future__ import annotations

import difflib
from dataclasses import replace

from torch import fx

from trainyard.job.plan import Plan, PlanError
from trainyard.program.addresses import AddressError
from trainyard.program.patterns import PatternError, is_like, spread
from trainyard.program.program import Program
from trainyard.reading import shown


def resolve(program: Program, plan: Plan) -> Plan:
    """The plan for one program: no patterns, and in ``tensors`` and ``start`` names of the program's nodes.

    Raises
    ------
    PlanError
        If it names what the program does not have, recomputes or starts stages with what is no forward op, or says two
        things of one tensor.
    """

    def tensors(name: str) -> list[str]:
        return [_forward_op(program, node, "recomputes").name for node in _ops(program, name, "tensors")]

    try:
        fates = spread({name: {"": fate} for name, fate in plan.tensors.items()}, tensors)
        placements = spread(plan.placements, lambda name: _tensors(program, name))
    except PatternError as error:
        raise PlanError(f"the plan for {program.name} says two things: {error}") from error
    return replace(
        plan,
        tensors={name: fate[""] for name, fate in fates.items()},
        stages=tuple(replace(s, start=_start(program, s.start) if s.start else "") for s in plan.stages),
        placements=placements,
    )


def _start(program: Program, name: str) -> str:
    found = _ops(program, name, "stages")
    if len(found) > 1:
        raise PlanError(
            f"stages of the plan: {shown(name)} stands for {len(found)} ops; write the address of one with which the "
            f"stage starts, such as {found[0].meta['address']}"
        )
    return _forward_op(program, found[0], "starts a stage with").name


def _ops(program: Program, name: str, part: str) -> tuple[fx.Node, ...]:
    try:
        return program.addresses.find(name)
    except AddressError as error:
        raise PlanError(f"{part} of the plan for {program.name}: {error}") from error


def _forward_op(program: Program, node: fx.Node, does: str) -> fx.Node:
    if node.meta["phase"] == "backward":
        raise PlanError(
            f"the plan {does} {node.meta['address']}, which is of the backward pass of {program.name}; name ops of its "
            "forward pass"
        )
    return node


def _tensors(program: Program, name: str) -> list[str]:
    """The inputs, by path, and the ops, by address, that a name or pattern of a placement stands for."""
    paths = [entry.path for entry in program.inputs if is_like(name, entry.path)]
    # That nothing may be said of a gradient is told where placements are checked.
    if paths or name.startswith("grad:"):
        return paths or [name]
    if ":" not in name:
        known = [entry.path for entry in program.inputs]
        close = ", ".join(difflib.get_close_matches(name, known) or known[:3])
        raise PlanError(
            f"placements of the plan: {shown(name)} is no input of {program.name}; there are {close}"
        )
    return [str(node.meta["address"]) for node in _ops(program, name, "placements")]
