"""Plan: how one training step runs on a cluster, as one frozen, printable value.

A strategy makes it, the simulator times it, ``validate`` checks it, the lowering turns it into one graph per
rank. Nothing else passes between those parts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import num_named_devices
from trainyard.job.plan.errors import require
from trainyard.job.plan.mesh import PIPELINE, Mesh
from trainyard.job.plan.parts import Axes, Stage, State, Traffic, require_axes
from trainyard.job.schedule import Schedule
from trainyard.job.schedules import explain_versions, is_one_step, make_schedule
from trainyard.program.patterns import in_words
from trainyard.program.placement import OpChoice, Placement
from trainyard.reading import count_text, listed
from trainyard.reading.limits import MOST_RANKS, MOST_ROWS
from trainyard.shown import Shown

DTYPES = ("float32", "bfloat16", "float16")
Statistics = Literal["batch", "microbatch"]
STATISTICS: tuple[Statistics, ...] = get_args(Statistics)
Fate = Literal["recompute"]
"""Treatment of a tensor of the forward pass that the backward pass needs, and that is not kept."""
FATES: tuple[Fate, ...] = get_args(Fate)
NEEDED = ("model", "fingerprint", "cluster", "num_rows", "schedule", "stages")
"""Fields that the text form of every plan has."""

_MEANING: dict[Statistics, str] = {
    "batch": "Same loss as one device.",
    "microbatch": "Another loss than one device: the rows of a batch depend on each other, each microbatch is computed "
    "by itself, and the step's loss is the mean of their losses.",
}


@dataclass(frozen=True, repr=False)
class Plan(Shown):
    """A plan of one training step.

    Attributes
    ----------
    model : name of the captured model. Of one in a Python file it says where that was, and does not run it: see
        `model_for`.
    fingerprint : of the program of one microbatch, before it is divided over ranks.
    cluster : name of the cluster that it was made for.
    place : that cluster, where its name does not say what it is: an edited preset, or one from a file. The text form then
        holds all of it.
    num_rows : rows of the batch in one step, which is one run of the schedule.
    schedule : actions per pipeline rank; it holds the numbers of stages and microbatches.
    stages : in program order, each with the mesh of its ranks. Ranks are numbered by the lines of the
        schedule: first all ranks of its first pipeline rank, then those of the second.
    placements : by the path of a parameter or input, by the address of an op (see `trainyard.program.addresses`), or by a
        pattern, then by mesh axis, what is not left to propagation. Gradients lie as their parameters do, and rows as
        the stages divide them.
    choices : by the address of an op or by a pattern, then by mesh axis, how it runs, where that is not left to
        propagation. An op that is cut apart is named by its parts (``:_log_softmax/sum``), and what an axis before has
        made, such as a gathered copy, by its address in the text of the routines.
    tensors : by the address of a forward op or by a pattern, what becomes of its result until the backward pass needs
        it. What is not named is kept. What is computed again takes with it what sharding made of it (a gathered or
        summed copy).
    state : who keeps parameters, gradients and optimizer state.
    traffic : how messages travel.
    dtype : compute precision; with ``float32`` parameters are computed with in their own types. What is trained, and
        optimizer state, are kept in float32. Buffers that a step writes, such as running statistics, are kept in their
        own type.
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
    schedule: Schedule
    stages: tuple[Stage, ...] = (Stage(),)
    placements: Mapping[str, Mapping[str, Placement]] = field(default_factory=dict)
    choices: Mapping[str, Mapping[str, OpChoice]] = field(default_factory=dict)
    tensors: Mapping[str, Fate] = field(default_factory=dict)
    state: State = field(default_factory=State)
    traffic: Traffic = field(default_factory=Traffic)
    dtype: str = "float32"
    statistics: Statistics = "batch"
    made_by: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    place: Cluster | None = None

    def __post_init__(self) -> None:
        require(1 <= self.num_rows <= MOST_ROWS, f"num_rows is from 1 to {MOST_ROWS:,}, got {self.num_rows}")
        for what, given, known in (
            ("dtype", self.dtype, DTYPES),
            ("statistics", self.statistics, STATISTICS),
            *(("fate", fate, FATES) for fate in self.tensors.values()),
        ):
            require(given in known, f"unknown {what} {given!r}; known: {', '.join(known)}")
        self._check_stages()
        axes = dict.fromkeys(axis for stage in self.stages for axis in stage.mesh.axes)
        require_axes(axes, self.state.summed_over, "gradients are summed over")
        for name, wanted in self.placements.items():
            require_axes(axes, wanted, f"{name!r} is placed on")
        for name, chosen in self.choices.items():
            require_axes(axes, chosen, f"{name!r} has a choice on")
        num_parts = math.lcm(*(stage.num_parts for stage in self.stages))
        share = self.num_microbatches * num_parts
        require(
            self.num_rows % share == 0,
            f"a batch of {count_text(self.num_rows, 'row')} cannot be cut into "
            f"{microbatches_text(self.num_microbatches)} of {count_text(num_parts, 'part')}; rows must be a "
            f"multiple of {share}",
        )

    def _check_stages(self) -> None:
        schedule, stages = self.schedule, self.stages
        require(
            len(stages) == schedule.num_stages,
            f"a schedule of {schedule.num_stages} stages needs as many stages in the plan, got {len(stages)}",
        )
        require(
            not stages[0].start and all(s.start for s in stages[1:]),
            "every stage but the first says with which op it starts, and the first does not",
        )
        for rank in range(schedule.num_ranks):
            own = {stages[s].mesh for s in schedule.stages_of(rank)}
            require(
                len(own) <= 1,
                f"pipeline rank {rank} runs stages on {len(own)} meshes: {listed(map(str, own))}; give them one mesh",
            )
        require(
            self.num_ranks <= MOST_RANKS,
            f"{self.mesh_text} are {self.num_ranks:,} ranks; at most {MOST_RANKS:,} are in a plan",
        )

    @property
    def pipeline(self) -> int:
        """Pipeline ranks: lists of actions in the schedule, each run by the ranks of a mesh."""
        return self.schedule.num_ranks

    @property
    def mesh(self) -> Mesh:
        """The mesh of all stages.

        Raises
        ------
        PlanError
            If they have unlike ones.
        """
        meshes = dict.fromkeys(stage.mesh for stage in self.stages)
        require(
            len(meshes) == 1,
            f"the stages lie on unlike meshes, {listed(str(mesh.to_dict()) for mesh in meshes)}; give all of them the "
            "same axes and sizes",
        )
        return self.stages[0].mesh

    @cached_property
    def meshes(self) -> tuple[Mesh, ...]:
        """The mesh of each pipeline rank."""
        schedule = self.schedule
        own = (schedule.stages_of(rank) for rank in range(schedule.num_ranks))
        return tuple(self.stages[stages[0]].mesh if stages else Mesh() for stages in own)

    @cached_property
    def _first_ranks(self) -> tuple[int, ...]:
        return tuple(accumulate((mesh.num_ranks for mesh in self.meshes), initial=0))

    @property
    def stage_starts(self) -> tuple[str, ...]:
        """Addresses of the ops with which the stages but the first begin."""
        return tuple(stage.start for stage in self.stages[1:])

    @property
    def num_microbatches(self) -> int:
        """Parts into which the rows of a step are cut."""
        return self.schedule.num_microbatches

    @property
    def rows_per_microbatch(self) -> int:
        """Rows of one microbatch, on all ranks together."""
        return self.num_rows // self.num_microbatches

    @property
    def num_ranks(self) -> int:
        """Ranks of all stages together."""
        return self._first_ranks[-1]

    def ranks(self, pipeline: int) -> range:
        """The ranks of a pipeline rank."""
        return range(self._first_ranks[pipeline], self._first_ranks[pipeline + 1])

    def coordinate(self, rank: int) -> dict[str, int]:
        """The pipeline rank of a rank, and where it is on each axis of its mesh."""
        pipeline = bisect_right(self._first_ranks, rank) - 1
        return {PIPELINE: pipeline, **self.meshes[pipeline].coordinate(rank - self._first_ranks[pipeline])}

    def rank_at(self, coordinate: Mapping[str, int]) -> int:
        """The rank at a coordinate."""
        pipeline = coordinate[PIPELINE]
        return self.ranks(pipeline)[self.meshes[pipeline].rank_at(coordinate)]

    def groups(self, axes: Axes, pipeline: int) -> list[tuple[int, ...]]:
        """The ranks of a pipeline rank in groups that differ on some axes only."""
        ranks = self.ranks(pipeline)
        return [tuple(ranks[i] for i in group) for group in self.meshes[pipeline].groups(axes)]

    def groups_across(self, pipelines: Iterable[int]) -> list[tuple[int, ...]]:
        """Groups of one rank of each of some pipeline ranks, which are at the same place of their equal meshes."""
        return list(zip(*map(self.ranks, pipelines), strict=True))

    @property
    def recomputed(self) -> frozenset[str]:
        """Addresses and patterns of the ops whose results are computed again."""
        return frozenset(address for address, fate in self.tensors.items() if fate == "recompute")

    def with_recomputed(self, addresses: Iterable[str]) -> Plan:
        """The plan in which these results are computed again, too."""
        return replace(self, tensors={**self.tensors, **dict.fromkeys(sorted(addresses), "recompute")})

    def placed_along(self, axis: str) -> dict[str, Placement]:
        """Placements along one axis."""
        return {name: wanted[axis] for name, wanted in self.placements.items() if axis in wanted}

    def chosen_along(self, axis: str) -> dict[str, OpChoice]:
        """Choices along one axis."""
        return {name: chosen[axis] for name, chosen in self.choices.items() if axis in chosen}

    def with_placements(self, axis: str, wanted: Mapping[str, Placement]) -> Plan:
        """The plan in which these lie so along an axis, too."""
        more = {name: {**self.placements.get(name, {}), axis: p} for name, p in wanted.items()}
        return replace(self, placements={**self.placements, **more})

    @property
    def mesh_text(self) -> str:
        """Text such as ``2 pipeline x 4 data``; ``1 device`` for one rank."""
        if len(set(self.meshes)) > 1:
            return " + ".join(map(str, self.meshes))
        pipeline = [f"{self.pipeline} {PIPELINE}"] if self.pipeline > 1 else []
        mesh = [str(self.meshes[0])] if self.meshes[0].num_ranks > 1 else []
        return " x ".join((*pipeline, *mesh)) or "1 device"

    def explain(self) -> str:
        """The plan in sentences."""
        where = self.cluster if self.place is None else f"{self.cluster} as the plan describes it"
        shares = set[int]().union(*(stage.own_rows(self.rows_per_microbatch) for stage in set(self.stages)))
        are_divided = shares != {self.rows_per_microbatch}
        own = f" ({' or '.join(map(str, sorted(shares)))} on each rank)" if are_divided else ""
        parts = [
            f"{self.model} on {self._ranks_text(where)}: {self.mesh_text}.",
            f"{count_text(self.num_rows, 'row')} a step in {microbatches_text(self.num_microbatches)} of "
            f"{count_text(self.rows_per_microbatch, 'row')}{own}, in {self.dtype}.",
        ]
        if self.pipeline > 1:
            parts.append(f"Schedule {self.schedule.name}, {self.schedule.num_stages} stages.")
        summed = self.state.summed_over
        if any(mesh.size(*summed) > 1 for mesh in self.meshes):
            divided = self.state.divided_text
            kept = f"divide {divided} between them" if divided else "each keep all of the model state"
            parts.append(f"The ranks along {listed(summed)} sum their gradients, and {kept}.")
        if not is_one_step(self.schedule):
            parts.append(explain_versions(self.schedule))
        if self.statistics == "microbatch" or is_one_step(self.schedule):
            parts.append(_MEANING[self.statistics])
        if self.choices:
            along = listed(dict.fromkeys(axis for chosen in self.choices.values() for axis in chosen))
            parts.append(f"The plan says how ops run along {along}: {in_words(self.choices, 3)}.")
        if self.recomputed:
            parts.append(f"Recomputed in the backward pass: {in_words(self.recomputed, 3)}.")
        return "\n".join((*parts, *self.reasons))

    def require_processes(self, num_processes: int) -> None:
        """Refuse a launcher that started more or fewer processes than the plan has ranks.

        Raises
        ------
        PlanError
            If the numbers differ.
        """
        require(
            num_processes == self.num_ranks,
            f"the launcher started {num_processes} processes, and the plan is for {self.num_ranks}: start as many as "
            "it has ranks",
        )

    def _ranks_text(self, where: str) -> str:
        """Return the number of ranks as text; with the number of devices if the plan leaves some idle."""
        known = num_named_devices(self.cluster) if self.place is None else self.place.num_devices
        if known is None or known <= self.num_ranks:
            return f"{count_text(self.num_ranks, 'rank')} of {where}"
        return f"{self.num_ranks} of the {known} devices of {where} ({known - self.num_ranks} idle)"

    def to_text(self) -> str:
        """YAML; ``parse_plan`` reads it back."""
        return yaml.dump(self._as_dict(), Dumper=_Dumper, sort_keys=False, width=110)

    def _as_dict(self) -> dict[str, Any]:
        """Return the content of the text form. Parts that say nothing special are left out."""
        whole = {
            "model": self.model,
            "fingerprint": self.fingerprint,
            "cluster": self.cluster if self.place is None else self.place.to_dict(),
            "num_rows": self.num_rows,
            "dtype": self.dtype,
            "statistics": self.statistics,
            "schedule": _schedule_by_name(self.schedule) or self.schedule.to_text(),
            "stages": _stages_as_dicts(self.stages),
            "placements": {n: _Line((a, str(p)) for a, p in w.items()) for n, w in self.placements.items()},
            "choices": {
                n: _Line((a, str(c)) for a, c in chosen.items()) for n, chosen in self.choices.items()
            },
            "tensors": dict(self.tensors),
            "state": {part: _Line(said) for part, said in self.state.to_dict().items()},
            "traffic": _Line(self.traffic.to_dict()),
            "made_by": list(self.made_by),
            "reasons": list(self.reasons),
        }
        return {name: value for name, value in whole.items() if value or name in NEEDED}

    def save(self, path: Path) -> None:
        """Write the text form."""
        path.write_text(self.to_text())


class _Dumper(yaml.SafeDumper):
    """Writes short things on one line."""


class _Line(dict[str, Any]):
    """A value that is written on one line."""


_Dumper.add_representer(
    _Line, lambda dumper, said: dumper.represent_mapping("tag:yaml.org,2002:map", said, True)
)


def _stages_as_dicts(stages: tuple[Stage, ...]) -> list[dict[str, Any]]:
    """A mesh and rows like those of the stage before are not said again."""
    found: list[dict[str, Any]] = []
    before = Stage()
    for stage in stages:
        said: dict[str, Any] = {"start": stage.start} if stage.start else {}
        if (stage.mesh, stage.rows) != (before.mesh, before.rows):
            said |= {"mesh": stage.mesh.to_dict(), "rows": list(stage.rows)}
        found.append(_Line(said))
        before = stage
    return found


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
    """Text such as ``8 microbatches``."""
    return count_text(count, "microbatch")
