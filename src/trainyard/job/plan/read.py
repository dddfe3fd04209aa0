"""The text form of plans, read back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from trainyard.hardware.errors import HardwareError
from trainyard.hardware.parse import cluster_from_dict
from trainyard.job.plan.errors import PlanError
from trainyard.job.plan.mesh import Mesh
from trainyard.job.plan.parts import Stage, State, Traffic
from trainyard.job.plan.plan import NEEDED, Plan
from trainyard.job.schedule import Schedule, ScheduleError, parse_schedule
from trainyard.job.schedules import check, make_schedule
from trainyard.program.placement import parse_op_choice, parse_placement
from trainyard.reading import ReadingError, Section, parse_yaml, raised_as, read_text, shown
from trainyard.reading.arguments import require_type
from trainyard.reading.limits import MOST_RANKS, MOST_ROWS
from trainyard.user_file import is_file

_MOST_BUCKET_BYTES = 2**50
_Said = TypeVar("_Said")


def parse_plan(text: str, source: str | Path = "the plan", *, trains: bool = True) -> Plan:
    """Read a plan's text form.

    Parameters
    ----------
    source : what errors call it.
    trains : whether its schedule must have backward passes; one that serves has none.

    Raises
    ------
    PlanError
        If the text is not YAML, a field is missing, unknown or of the wrong kind, or the schedule deadlocks.
    """
    with raised_as(PlanError):
        given = parse_yaml(text, source)
        if not isinstance(given, Section):
            raise PlanError(f"{source} is not a plan: expected a mapping, got {shown(given)}; {_FORM}")
        given.refuse_unknown(_FIELDS)
        missing = [name for name in NEEDED if name not in given]
        if missing:
            raise PlanError(f"{source} is not a plan: {', '.join(map(repr, missing))} missing; {_FORM}")
        try:
            return Plan(
                model=given.text("model"),
                fingerprint=given.text("fingerprint"),
                num_rows=given.whole("num_rows", 1, MOST_ROWS),
                schedule=_read_schedule(given, trains),
                stages=_read_stages(given),
                **_read_cluster(given, source),
                **{name: read(given, name) for name, read in _OPTIONAL.items() if name in given},
            )
        except PlanError as error:
            raise PlanError(f"{source}: {error}") from error


def load_plan(path: Path | str) -> Plan:
    """Read a plan file.

    Raises
    ------
    PlanError
        If there is no such file, or it holds no plan.
    WrongTypeError
        If the argument is no path.
    """
    require_type("path", path, (Path, str), "the path of a file")
    path = Path(path)
    if not path.is_file():
        raise PlanError(f"no plan at {path}; make one with `trainyard plan MODEL --cluster C --save {path}`")
    with raised_as(PlanError):
        text = read_text(path)
    return parse_plan(text, path)


def model_for(plan: Plan, given: str | None) -> str:
    """The model to take for a plan: the given one, else the one that the plan names.

    Raises
    ------
    PlanError
        If that is a Python file: plans are data, and run no code that the user did not name.
    """
    if given is not None:
        return given
    if is_file(plan.model):
        raise PlanError(
            f"the plan was made for the Python file {shown(plan.model)}, and a plan runs no code by itself; if you trust "
            "that file, name it: --model FILE.py, or in Python load_model"
        )
    return plan.model


def _read_cluster(given: Section, source: str | Path) -> dict[str, Any]:
    """A cluster by its name, or all of it."""
    if isinstance(given["cluster"], str):
        return {"cluster": given.text("cluster")}
    try:
        place = cluster_from_dict(given.section("cluster"))
    except HardwareError as error:
        where = "" if str(source) in str(error) else f"{given.place('cluster')}: "
        raise ReadingError(f"{where}the plan's cluster cannot be read: {error}") from error
    return {"cluster": place.name, "place": place}


def _read_schedule(given: Section, trains: bool) -> Schedule:
    """A published schedule by its parameters, or a list of actions; one that can run."""
    try:
        if isinstance(given["schedule"], str):
            schedule = parse_schedule(given["schedule"])
        else:
            named = given.section("schedule")
            named.refuse_unknown(("name", "num_ranks", "num_microbatches", "num_stages_per_rank"))
            schedule = make_schedule(
                named.text("name"),
                named.whole("num_ranks", 1, MOST_RANKS),
                named.whole("num_microbatches", 1, MOST_ROWS),
                named.whole("num_stages_per_rank", 1, MOST_RANKS, 1),
            )
        check(schedule, trains=trains)
    except ReadingError:
        raise
    except ScheduleError as error:
        raise ReadingError(f"{given.place('schedule')}: the plan's schedule cannot run: {error}") from error
    except ValueError as error:
        raise ReadingError(f"{given.place('schedule')}: {error}") from error
    return schedule


def _read_stages(given: Section) -> tuple[Stage, ...]:
    """A stage that says no mesh has that of the stage before, and its rows are divided likewise."""
    found: list[Stage] = []
    before = Stage()
    for said in given.sections("stages"):
        said.refuse_unknown(("start", "mesh", "rows"))
        mesh, rows = before.mesh, before.rows
        if "mesh" in said:
            mesh, rows = _read_mesh(said.section("mesh")), ()
        rows = said.texts("rows") if "rows" in said else rows
        before = Stage(said.text("start", ""), mesh, rows)
        found.append(before)
    return tuple(found)


def _read_mesh(given: Section) -> Mesh:
    """Read the number of ranks of each axis, or the list of the parts that each of them holds."""
    axes: dict[str, int | tuple[int, ...]] = {}
    for axis in given:
        said = given[axis]
        if type(said) is int and 1 <= said <= MOST_RANKS:
            axes[axis] = said
        elif (
            isinstance(said, list)
            and len(said) > 1
            and all(type(n) is int and 1 <= n <= MOST_ROWS for n in said)
        ):
            axes[axis] = tuple(said)
        else:
            raise given.error(
                axis,
                f"the number of its ranks, from 1 to {MOST_RANKS:,}, or a list of the parts of the rows that each of "
                "several ranks holds, 1 or more, such as [3, 1]",
            )
    return Mesh.of(**axes)


def _by_address_and_axis(
    given: Section, name: str, parse: Callable[[str], _Said]
) -> dict[str, dict[str, _Said]]:
    found: dict[str, dict[str, _Said]] = {}
    placed = given.section(name)
    for address in placed:
        wanted = placed.section(address)
        found[address] = {}
        for axis in wanted:
            try:
                found[address][axis] = parse(wanted.text(axis))
            except ReadingError:
                raise
            except ValueError as error:
                raise ReadingError(f"{wanted.place(axis)}: {error}") from error
    return found


def _read_tensors(given: Section, name: str) -> dict[str, str]:
    said = given.section(name)
    return {address: said.text(address) for address in said}


def _read_state(given: Section, name: str) -> State:
    said = given.section(name)
    said.refuse_unknown(("gradients", "optimizer", "parameters"))
    axes: dict[str, tuple[str, ...]] = {}
    for part in said:
        of_part = said.section(part)
        of_part.refuse_unknown(("summed_over", "divided_over") if part == "gradients" else ("divided_over",))
        axes |= {part if how == "divided_over" else how: of_part.texts(how) for how in of_part}
    return State(**axes)


def _read_traffic(given: Section, name: str) -> Traffic:
    said = given.section(name)
    usual = Traffic()
    said.refuse_unknown(("bucket_bytes", "overlap"))
    bucket_bytes = said.whole("bucket_bytes", 1, _MOST_BUCKET_BYTES, usual.bucket_bytes)
    return Traffic(bucket_bytes, said.flag("overlap", usual.overlap))


_FORM = "`trainyard plan --save` writes the form"
_OPTIONAL: dict[str, Callable[[Section, str], Any]] = {
    "placements": partial(_by_address_and_axis, parse=parse_placement),
    "choices": partial(_by_address_and_axis, parse=parse_op_choice),
    "tensors": _read_tensors,
    "state": _read_state,
    "traffic": _read_traffic,
    "dtype": Section.text,
    "statistics": Section.text,
    "made_by": Section.texts,
    "reasons": Section.texts,
}
_FIELDS = (*NEEDED, *_OPTIONAL)
