"""The parts of a plan beside its schedule: stages, model state, traffic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from trainyard.job.plan.errors import require
from trainyard.job.plan.mesh import Mesh
from trainyard.reading import listed

Axes = tuple[str, ...]


@dataclass(frozen=True)
class Stage:
    """Consecutive ops of the program, and the ranks that run them.

    Attributes
    ----------
    start : address of its first forward op in program order; empty for the first stage.
    mesh : of its ranks. Stages of one pipeline rank have the same.
    rows : axes over which the rows of a microbatch are divided; equally, unless the mesh says otherwise.
    """

    start: str = ""
    mesh: Mesh = field(default_factory=Mesh)
    rows: Axes = ()

    def __post_init__(self) -> None:
        require_axes(self.mesh.axes, self.rows, "rows are divided over")
        idle = [axis for axis, _ in self.mesh.unequal if axis not in self.rows]
        require(
            not idle,
            f"ranks along {listed(idle)} hold unequal shares, and rows are divided over "
            f"{listed(self.rows) or 'no axis'}; shares are of rows: name {listed(idle)} in rows, or give the number of "
            "its ranks alone",
        )

    @property
    def num_parts(self) -> int:
        """Parts into which the rows of a microbatch are divided."""
        return self.mesh.num_parts(*self.rows)

    def own_rows(self, num_rows: int) -> set[int]:
        """Return the numbers of rows that ranks have of so many, without repeats."""
        return {num_rows * held // self.num_parts for held in self.mesh.parts_of_ranks(*self.rows)}


@dataclass(frozen=True)
class State:
    """The division of model state over axes. Every rank keeps state that is divided over no axis.

    Attributes
    ----------
    summed_over : axes over which gradients are summed in buckets: at the end of the step, or with every microbatch
        where gradients are divided. Over other axes a gradient is summed within the backward pass.
    optimizer, gradients, parameters : axes over which optimizer state, gradients and parameters are divided: none, or
        all of ``summed_over``.
    """

    summed_over: Axes = ()
    optimizer: Axes = ()
    gradients: Axes = ()
    parameters: Axes = ()

    def __post_init__(self) -> None:
        for name in ("optimizer", "gradients", "parameters"):
            axes = getattr(self, name)
            require(
                axes in ((), self.summed_over),
                f"{name} {_are(name)} divided over {listed(axes) or 'none'}; what is divided is divided over all axes "
                f"over which gradients are summed: {listed(self.summed_over) or 'none'}",
            )
        for more, less in (("parameters", "gradients"), ("gradients", "optimizer")):
            require(
                not getattr(self, more) or bool(getattr(self, less)),
                f"{more} are divided and {less} {_are(less)} not; divide {less} over the same axes, too",
            )

    @property
    def divided_text(self) -> str:
        """Text such as ``optimizer state, gradients``."""
        return listed("optimizer state" if part == "optimizer" else part for part in self.divided)

    def over(self, axes: Axes) -> State:
        """Return a copy that is summed and divided over other axes; over none, nothing is divided."""
        return State(axes).dividing(self.divided if axes else ())

    def dividing(self, parts: Iterable[str]) -> State:
        """Return a copy in which optimizer state, gradients or parameters are divided where gradients are summed."""
        return State(self.summed_over, **dict.fromkeys(parts, self.summed_over))

    def to_dict(self) -> dict[str, dict[str, list[str]]]:
        """The text form: for each part of the state the axes, where there are any."""
        said = {name: {"divided_over": list(getattr(self, name))} for name in self.divided}
        if self.summed_over:
            said["gradients"] = {"summed_over": list(self.summed_over), **said.get("gradients", {})}
        return said

    @property
    def divided(self) -> tuple[str, ...]:
        """The kinds of state that are divided, of optimizer, gradients and parameters."""
        return tuple(f.name for f in fields(self) if f.name != "summed_over" and getattr(self, f.name))


@dataclass(frozen=True)
class Traffic:
    """Options of messages.

    Attributes
    ----------
    bucket_bytes : gradients and parameters travel in buckets of about this size.
    overlap : whether messages within a pass run beside the ops that do not need what they bring; else they are waited for
        at once. Buckets run beside ops in any case.
    """

    bucket_bytes: int = 25 * 2**20
    overlap: bool = True

    def __post_init__(self) -> None:
        require(self.bucket_bytes > 0, f"bucket_bytes must be positive, got {self.bucket_bytes}")

    def to_dict(self) -> dict[str, int | bool]:
        """The text form: what is not as usual."""
        usual = Traffic()
        return {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if getattr(self, f.name) != getattr(usual, f.name)
        }


def require_axes(known: Iterable[str], axes: Iterable[str], what: str) -> None:
    """Refuse axes that are none of the known ones, and one that is said twice.

    Raises
    ------
    PlanError
        If there is one.
    """
    axes = tuple(axes)
    require(len(set(axes)) == len(axes), f"{what} {listed(axes)}; name each axis once")
    unknown = [axis for axis in axes if axis not in known]
    require(not unknown, f"{what} {listed(unknown)}; the mesh has {listed(known) or 'no axes'}")


def _are(name: str) -> str:
    return "is" if name == "optimizer" else "are"
