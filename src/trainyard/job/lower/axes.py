"""The mesh axes that cut tensors: a program as one rank of each axis runs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainyard.job.lower.resolve import resolve
from trainyard.job.lower.shard import Sharded, shard
from trainyard.job.plan import Plan, PlanError
from trainyard.program.choices import ChoiceError, given_choices, written_out
from trainyard.program.placement import PARTIAL, OpChoice, Partial, Placement, Replicate, Shard
from trainyard.program.program import Program
from trainyard.program.propagate import Axis


def shard_axes(
    program: Program, plan: Plan
) -> tuple[Program, dict[str, dict[str, Placement]], list[dict[str, Placement]]]:
    """Cut the program over one axis of the mesh after the other, the outermost first.

    Returns
    -------
    One rank's program; the placements of its inputs by path and axis; of its outputs, in order, by axis.
    """
    inputs: dict[str, dict[str, Placement]] = {i.path: {} for i in program.inputs}
    outputs: list[dict[str, Placement]] = [{} for _ in program.outputs]
    for axis, sharded in _along_axes(program, plan):
        program = sharded.program
        for path, placement in sharded.inputs.items():
            inputs[path][axis] = placement
        for known, placement in zip(outputs, sharded.outputs, strict=True):
            known[axis] = placement
    return program, inputs, outputs


def all_choices(program: Program, plan: Plan) -> dict[str, dict[str, OpChoice]]:
    """How every op runs, by address and axis: what the plan says, and what was completed. A plan can say all of it.

    Raises
    ------
    PlanError
        If the program cannot be cut so.
    """
    found: dict[str, dict[str, OpChoice]] = {}
    for axis, sharded in _along_axes(program, resolve(program, plan)):
        for address, choice in sharded.assignment.decided().items():
            found.setdefault(address, {})[axis] = choice
    return found


def _along_axes(program: Program, plan: Plan) -> Iterator[tuple[str, Sharded]]:
    """The program cut over one axis after the other, those of one rank left out."""
    for name, size in plan.mesh.sizes:
        axis = Axis(name, size)
        wanted, choices = _wanted(program, plan, name), plan.chosen_along(name)
        _check_placements(program, axis, wanted)
        try:
            if axis.size == 1:
                given_choices(written_out(program, choices), name, size, choices)
                continue
            sharded = shard(program, axis, _with_gradients(program, plan, axis, wanted), choices)
        except ChoiceError as error:
            raise PlanError(f"choices on axis {name!r}: {error}") from error
        except (KeyError, ValueError) as error:
            raise PlanError(f"placements on axis {name!r}: {error.args[0]}") from error
        program = sharded.program
        yield name, sharded


def _wanted(program: Program, plan: Plan, axis: str) -> dict[str, Placement]:
    """What the plan places along an axis, and the rows of the batch if they are divided over it."""
    rows = [i.path for i in program.inputs if i.kind == "batch" and not i.whole]
    divided = dict.fromkeys(rows, Shard(0)) if axis in plan.stages[0].rows else {}
    return {**divided, **plan.placed_along(axis)}


def _check_placements(program: Program, axis: Axis, wanted: Mapping[str, Placement]) -> None:
    """Refuse placements in which ranks would hold something else than the model has."""
    inputs = {entry.path for entry in program.inputs}
    for name, placement in wanted.items():
        if name.startswith("grad:"):
            why = "a gradient lies as its parameter does; place the parameter"
        elif isinstance(placement, Partial) and (name in inputs or placement.reduction != "sum"):
            why = "ranks can hold terms of sums only, P, and of inputs none: these are whole or cut, R or S<dim>"
        else:
            continue
        raise PlanError(f"placements on axis {axis.name!r}: {name!r} is to be {placement}, but {why}")


def _with_gradients(
    program: Program, plan: Plan, axis: Axis, wanted: Mapping[str, Placement]
) -> dict[str, Placement]:
    """A gradient lies as its parameter does; along axes over which buckets sum, ranks keep terms of it."""
    whole = PARTIAL if axis.name in plan.state.summed_over else Replicate()
    grads: dict[str, Placement] = {}
    for output in program.outputs:
        if output.kind == "grad":
            placement = wanted.get(output.path, Replicate())
            grads[f"grad:{output.path}"] = placement if isinstance(placement, Shard) else whole
    return {**grads, **wanted}
