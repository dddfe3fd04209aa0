"""What a plan names, in one captured program: its addresses and patterns stand for nodes of the graph."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace

from torch import fx

from trainyard.job.plan import Plan, PlanError
from trainyard.program.addresses import AddressError
from trainyard.program.patterns import is_like
from trainyard.program.placement import Placement
from trainyard.program.program import Program
from trainyard.reading import shown


def resolve(program: Program, plan: Plan) -> Plan:
    """The plan for one program: no patterns, and in ``recompute`` and ``stage_starts`` names of the program's nodes.

    Raises
    ------
    PlanError
        If it names what the program does not have, or recomputes or starts stages with what is no forward op.
    """
    again = [
        _forward_op(program, node, "recomputes") for node in _named(program, plan.recompute, "recompute")
    ]
    starts = []
    for start in plan.stage_starts:
        found = _named(program, (start,), "stage_starts")
        if len(found) > 1:
            raise PlanError(
                f"stage start {shown(start)} stands for {len(found)} ops; write the address of one, such as "
                f"{found[0].meta['address']}"
            )
        starts.append(_forward_op(program, found[0], "starts a stage with"))
    return replace(
        plan,
        recompute=frozenset(node.name for node in again),
        stage_starts=tuple(node.name for node in starts),
        placements={axis: _placements(program, axis, wanted) for axis, wanted in plan.placements.items()},
    )


def _named(program: Program, names: frozenset[str] | tuple[str, ...], part: str) -> list[fx.Node]:
    try:
        return [node for name in sorted(names) for node in program.addresses.find(name)]
    except AddressError as error:
        raise PlanError(f"{part} of the plan for {program.name}: {error}") from error


def _forward_op(program: Program, node: fx.Node, does: str) -> fx.Node:
    if node.meta["phase"] == "backward":
        raise PlanError(
            f"the plan {does} {node.meta['address']}, which is of the backward pass of {program.name}; name ops of its "
            "forward pass"
        )
    return node


def _placements(program: Program, axis: str, wanted: Mapping[str, Placement]) -> dict[str, Placement]:
    """Placements by the path of an input or the address of an op; one that is named comes before all patterns."""
    exact = {name: placement for name, placement in wanted.items() if "*" not in name}
    found: dict[str, Placement] = {}
    origin: dict[str, str] = {}
    for pattern, placement in wanted.items():
        for name in _tensors(program, axis, pattern):
            if name in exact:
                continue
            if found.setdefault(name, placement) != placement:
                raise PlanError(
                    f"placements on axis {axis!r}: {name} is to be {found[name]} as {origin[name]} has it, and "
                    f"{placement} as {pattern} has it; leave one of them out, or place {name} by its name"
                )
            origin.setdefault(name, pattern)
    return found | exact


def _tensors(program: Program, axis: str, name: str) -> list[str]:
    """The inputs, by path, and the ops, by address, that a name or pattern of a placement stands for."""
    paths = [entry.path for entry in program.inputs if is_like(name, entry.path)]
    # That nothing may be said of a gradient is told where placements are checked.
    if paths or name.startswith("grad:"):
        return paths or [name]
    try:
        return [str(node.meta["address"]) for node in program.addresses.find(name)]
    except AddressError as error:
        known = [entry.path for entry in program.inputs]
        close = difflib.get_close_matches(name, known)
        what = f"{shown(name)} is no input of {program.name}; there are {', '.join(close)}"
        raise PlanError(f"placements on axis {axis!r}: {what if close else error}") from error
