"""Plan: how one training step runs on a cluster, as one frozen, printable value.

A strategy makes it, the simulator times it, ``validate`` checks it, the lowering turns it into one graph per
rank. Nothing else passes between those parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from trainyard.hardware.cluster import Cluster
from trainyard.hardware.errors import HardwareError
from trainyard.hardware.parse import cluster_from_dict
from trainyard.hardware.topology import MAX_DEVICES
from trainyard.job.schedule import Schedule, ScheduleError, parse_schedule
from trainyard.job.schedules import check, explain_versions, make_schedule
from trainyard.program.placement import Placement, parse_placement
from trainyard.reading import ReadingError, Section, parse_yaml, raised_as, read_text, shown
from trainyard.reading.limits import MOST_ROWS
from trainyard.user_file import is_file

PIPELINE, DATA, TENSOR = "pipeline", "data", "tensor"
AXES = (PIPELINE, DATA, TENSOR)
DTYPES = ("float32", "bfloat16", "float16")
Statistics = Literal["batch", "microbatch"]
STATISTICS: tuple[Statistics, ...] = get_args(Statistics)
_MOST_BUCKET_BYTES = 2**50

_MEANING: dict[Statistics, str] = {
    "batch": "Same loss as one device.",
    "microbatch": "Another loss than one device: the rows of a batch depend on each other, each microbatch is computed "
    "by itself, and the step's loss is the mean of their losses.",
}


class PlanError(ValueError):
    """A plan that cannot run; the message says which part of it, and what would be allowed."""


class DoesNotFitError(PlanError):
    """No plan that was found fits the memory of the devices; the message says what is short."""


@dataclass(frozen=True)
class Plan:
    """How one training step runs.

    Attributes
    ----------
    model : name of the captured model. Of one in a Python file it says where that was, and does not run it: see
        `model_for`.
    fingerprint : of the program of one microbatch, on all data-parallel ranks together.
    cluster : name of the cluster that it was made for.
    place : that cluster, where its name does not say what it is: an edited preset, or one from a file. The text form then
        holds all of it.
    num_rows : rows of the batch in one step.
    data, tensor : sizes of the mesh axes beside the pipeline's. Ranks are numbered with ``tensor`` innermost, then
        ``data``, then ``pipeline``.
    schedule : actions per pipeline rank; it holds the numbers of stages and microbatches.
    stage_starts : name of the first forward op of every stage but the first, in program order.
    placements : by mesh axis, the placements that are not left to propagation: by parameter or input path, or by node
        name. Gradients lie as their parameters do.
    recompute : forward nodes that are computed again in the backward pass instead of kept; what sharding makes of
        such a tensor (a gathered or summed copy) is made again with it.
    zero_stage : what the data-parallel ranks share instead of each keeping: 0 nothing, 1 optimizer state, 2 and
        gradients, 3 and parameters (ZeRO, arXiv 1910.02054).
    bucket_bytes : gradients and parameters travel in buckets of about this size.
    dtype : compute precision; parameters and optimizer state are kept in float32. Buffers that a step writes, such as
        running statistics, are kept in their own type.
    statistics : of what rows that depend on each other (batch statistics, pairs of rows, places of experts) are
        computed: of the whole ``batch``, so that loss and gradients are those of one device, or of each ``microbatch``
        by itself, so that the step's loss is the mean of the microbatches' losses.
    made_by : the strategies, in the order in which they were applied.
    reasons : why, one sentence each.
    """

    model: str
    fingerprint: str
    cluster: str
    num_rows: int
    data: int
    tensor: int
    schedule: Schedule
    stage_starts: tuple[str, ...] = ()
    placements: Mapping[str, Mapping[str, Placement]] = field(default_factory=dict)
    recompute: frozenset[str] = frozenset()
    zero_stage: int = 0
    bucket_bytes: int = 25 * 2**20
    dtype: str = "float32"
    statistics: Statistics = "batch"
    made_by: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    place: Cluster | None = None

    def __post_init__(self) -> None:
        _require(1 <= self.num_rows <= MOST_ROWS, f"num_rows is from 1 to {MOST_ROWS:,}, got {self.num_rows}")
        _require(
            self.data >= 1 and self.tensor >= 1,
            f"mesh axes count from 1, got data {self.data}, tensor {self.tensor}",
        )
        _require(
            self.num_ranks <= MAX_DEVICES,
            f"{self.pipeline} pipeline x {self.data} data x {self.tensor} tensor are {self.num_ranks:,} ranks; at most "
            f"{MAX_DEVICES:,} devices are in a cluster",
        )
        _require(self.zero_stage in (0, 1, 2, 3), f"ZeRO has stages 0 to 3, got {self.zero_stage}")
        _require(
            self.dtype in DTYPES, f"unknown dtype {self.dtype!r}; the known ones are {', '.join(DTYPES)}"
        )
        _require(
            self.statistics in STATISTICS,
            f"unknown statistics {self.statistics!r}; the known ones are {', '.join(STATISTICS)}",
        )
        _require(self.bucket_bytes > 0, f"bucket_bytes must be positive, got {self.bucket_bytes}")
        for axis in self.placements:
            _require(
                axis in (DATA, TENSOR), f"placements name axis {axis!r}; tensors lie on {DATA} and {TENSOR}"
            )
        _require(
            len(self.stage_starts) == self.schedule.num_stages - 1,
            f"a schedule of {self.schedule.num_stages} stages needs {self.schedule.num_stages - 1} stage starts, "
            f"got {len(self.stage_starts)}",
        )
        share = self.schedule.num_microbatches * self.data
        _require(
            self.num_rows % share == 0,
            f"a batch of {self.num_rows} rows cannot be cut into {self.schedule.num_microbatches} microbatches on "
            f"{self.data} data-parallel ranks; rows must be a multiple of {share}",
        )

    @property
    def pipeline(self) -> int:
        """Ranks along the pipeline."""
        return self.schedule.num_ranks

    @property
    def num_microbatches(self) -> int:
        """Parts into which the rows of a step are cut."""
        return self.schedule.num_microbatches

    @property
    def rows_per_microbatch(self) -> int:
        """Rows of one microbatch on all data-parallel ranks together."""
        return self.num_rows // self.num_microbatches

    @property
    def num_ranks(self) -> int:
        """Ranks on all axes together."""
        return self.pipeline * self.data * self.tensor

    def coordinate(self, rank: int) -> dict[str, int]:
        """Where a rank is on each mesh axis."""
        return {
            PIPELINE: rank // (self.data * self.tensor),
            DATA: rank // self.tensor % self.data,
            TENSOR: rank % self.tensor,
        }

    def rank_at(self, pipeline: int, data: int, tensor: int) -> int:
        """The rank at a coordinate."""
        return (pipeline * self.data + data) * self.tensor + tensor

    def explain(self) -> str:
        """The plan in sentences."""
        where = self.cluster if self.place is None else f"{self.cluster} as the plan describes it"
        parts = [
            f"{self.model} on {self.num_ranks} ranks of {where}: {self.pipeline} pipeline x {self.data} data x "
            f"{self.tensor} tensor.",
            f"{self.num_rows} rows a step in {microbatches_text(self.num_microbatches)} of {self.rows_per_microbatch} "
            f"rows ({self.rows_per_microbatch // self.data} on each data-parallel rank), in {self.dtype}.",
        ]
        if self.pipeline > 1:
            parts.append(f"Schedule {self.schedule.name}, {self.schedule.num_stages} stages.")
        if self.data > 1:
            shared = (
                "nothing",
                "optimizer state",
                "optimizer state and gradients",
                "optimizer state, gradients and parameters",
            )
            parts.append(
                f"Data-parallel ranks share {shared[self.zero_stage]} (ZeRO stage {self.zero_stage})."
            )
        if self.schedule.has_updates:
            parts.append(explain_versions(self.schedule))
        if self.statistics == "microbatch" or not self.schedule.has_updates:
            parts.append(_MEANING[self.statistics])
        if self.recompute:
            parts.append(f"{len(self.recompute)} tensors are recomputed in the backward pass.")
        return "\n".join((*parts, *self.reasons))

    def to_text(self) -> str:
        """YAML; ``parse_plan`` reads it back."""
        return yaml.safe_dump(self._as_dict(), sort_keys=False, width=110)

    def _as_dict(self) -> dict[str, Any]:
        named = _schedule_by_name(self.schedule)
        return {
            "model": self.model,
            "fingerprint": self.fingerprint,
            "cluster": self.cluster if self.place is None else self.place.to_dict(),
            "num_rows": self.num_rows,
            "mesh": {DATA: self.data, TENSOR: self.tensor},
            "schedule": named or self.schedule.to_text(),
            "stage_starts": list(self.stage_starts),
            "placements": {
                axis: {name: str(p) for name, p in wanted.items()} for axis, wanted in self.placements.items()
            },
            "recompute": sorted(self.recompute),
            "zero_stage": self.zero_stage,
            "bucket_bytes": self.bucket_bytes,
            "dtype": self.dtype,
            "statistics": self.statistics,
            "made_by": list(self.made_by),
            "reasons": list(self.reasons),
        }

    def save(self, path: Path) -> None:
        """Write the text form."""
        path.write_text(self.to_text())


def _schedule_by_name(schedule: Schedule) -> dict[str, Any] | None:
    """A published schedule by its four parameters; None for any other list of actions."""
    per_rank = schedule.num_stages // schedule.num_ranks
    try:
        same = make_schedule(schedule.name, schedule.num_ranks, schedule.num_microbatches, per_rank)
    except ValueError:
        return None
    if same != schedule:
        return None
    return {
        "name": schedule.name,
        "num_ranks": schedule.num_ranks,
        "num_microbatches": schedule.num_microbatches,
        "num_stages_per_rank": per_rank,
    }


def microbatches_text(count: int) -> str:
    """As in ``8 microbatches``."""
    return "1 microbatch" if count == 1 else f"{count} microbatches"


def parse_plan(text: str, source: str | Path = "the plan") -> Plan:
    """Read a plan's text form.

    Parameters
    ----------
    source : what errors call it.

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
        missing = [name for name in _NEEDED if name not in given]
        if missing:
            raise PlanError(f"{source} is not a plan: {', '.join(map(repr, missing))} missing; {_FORM}")
        mesh = given.section("mesh")
        mesh.refuse_unknown((DATA, TENSOR))
        optional: dict[str, Any] = {
            name: read(given, name) for name, read in _OPTIONAL.items() if name in given
        }
        try:
            return Plan(
                model=given.text("model"),
                fingerprint=given.text("fingerprint"),
                num_rows=given.whole("num_rows", 1, MOST_ROWS),
                data=mesh.whole(DATA, 1, MAX_DEVICES),
                tensor=mesh.whole(TENSOR, 1, MAX_DEVICES),
                schedule=_read_schedule(given),
                **_read_cluster(given, source),
                **optional,
            )
        except PlanError as error:
            raise PlanError(f"{source}: {error}") from error


def load_plan(path: Path) -> Plan:
    """Read a plan file.

    Raises
    ------
    PlanError
        If there is no such file, or it holds no plan.
    """
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


def _read_schedule(given: Section) -> Schedule:
    """A published schedule by its parameters, or a list of actions; one that can run."""
    try:
        if isinstance(given["schedule"], str):
            schedule = parse_schedule(given["schedule"])
        else:
            named = given.section("schedule")
            named.refuse_unknown(("name", "num_ranks", "num_microbatches", "num_stages_per_rank"))
            schedule = make_schedule(
                named.text("name"),
                named.whole("num_ranks", 1, MAX_DEVICES),
                named.whole("num_microbatches", 1, MOST_ROWS),
                named.whole("num_stages_per_rank", 1, MAX_DEVICES, 1),
            )
        check(schedule)
    except ReadingError:
        raise
    except ScheduleError as error:
        raise ReadingError(f"{given.place('schedule')}: the plan's schedule cannot run: {error}") from error
    except ValueError as error:
        raise ReadingError(f"{given.place('schedule')}: {error}") from error
    return schedule


def _read_placements(given: Section, name: str) -> dict[str, dict[str, Placement]]:
    axes = given.section(name)
    axes.refuse_unknown((DATA, TENSOR))
    found: dict[str, dict[str, Placement]] = {}
    for axis in axes:
        wanted = axes.section(axis)
        found[axis] = {}
        for path in wanted:
            try:
                found[axis][path] = parse_placement(wanted.text(path))
            except ReadingError:
                raise
            except ValueError as error:
                raise ReadingError(f"{wanted.place(path)}: {error}") from error
    return found


_FORM = "`trainyard plan --save` writes the form"
_NEEDED = ("model", "fingerprint", "cluster", "num_rows", "mesh", "schedule")
_OPTIONAL: dict[str, Callable[[Section, str], Any]] = {
    "stage_starts": Section.texts,
    "placements": _read_placements,
    "recompute": lambda given, name: frozenset(given.texts(name)),
    "zero_stage": lambda given, name: given.whole(name, 0, 3),
    "bucket_bytes": lambda given, name: given.whole(name, 1, _MOST_BUCKET_BYTES),
    "dtype": Section.text,
    "statistics": Section.text,
    "made_by": Section.texts,
    "reasons": Section.texts,
}
_FIELDS = (*_NEEDED, *_OPTIONAL)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise PlanError(message)


def single_device(model: str, fingerprint: str, cluster: str, num_rows: int) -> Plan:
    """Everything on one rank, nothing recomputed."""
    return Plan(model, fingerprint, cluster, num_rows, 1, 1, make_schedule("one_f_one_b", 1, 1))
