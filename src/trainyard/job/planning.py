"""Planning: from a model and a cluster to a plan, its simulation and what else was considered."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from trainyard.garbage import collecting_rarely
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import cluster_of
from trainyard.job.arguments import require_model, require_optimizer, require_plan, require_strategies
from trainyard.job.catalog import parse_strategies, published_strategies
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Plan, PlanError, Statistics, model_for
from trainyard.job.setting import RunnerUp, apply
from trainyard.job.simulate import Simulation
from trainyard.job.simulated_setting import SimulatedSetting
from trainyard.job.task import Task
from trainyard.program.model import Model
from trainyard.program.tracing.conversions import HALF
from trainyard.progress import Progress, no_progress
from trainyard.reading import count_text, listed
from trainyard.reading.arguments import WrongValueError, name_list, require_type
from trainyard.shown import ShownOnPage
from trainyard.user_file import is_file
from trainyard.zoo import build, load_model_file


@dataclass(frozen=True, eq=False, repr=False)
class Planned(ShownOnPage):
    """A plan and what is known of it.

    Attributes
    ----------
    runners_up : the next best, by estimated step time.
    seconds : that planning took.
    """

    plan: Plan
    simulation: Simulation
    task: Task
    runners_up: tuple[RunnerUp, ...]
    seconds: float


@dataclass(frozen=True)
class Infeasible:
    """A strategy that has no plan here, and why: a result, not an error."""

    strategies: str
    reason: str


class PlanComparison(ShownOnPage, tuple[Planned | Infeasible, ...]):
    """The results of `compare`, in the order of the strategies: a plan each, or why there is none.

    Attributes
    ----------
    strategies : as they were named, in the same order.
    """

    strategies: tuple[str, ...]

    def __new__(cls, strategies: Sequence[str], found: Sequence[Planned | Infeasible]) -> PlanComparison:
        made = super().__new__(cls, found)
        made.strategies = tuple(strategies)
        return made

    @property
    def best(self) -> Planned | None:
        """The fastest plan that fits; None if there is none."""
        fitting = [each for each in self if isinstance(each, Planned) and each.simulation.fits]
        return min(fitting, key=lambda each: each.simulation.step_s, default=None)

    def rows(self) -> list[dict[str, Any]]:
        """The figures of each strategy, in the order in which they were named, as ``pandas.DataFrame`` takes them."""
        return [_row(name, each) for name, each in zip(self.strategies, self, strict=True)]


def _row(name: str, found: Planned | Infeasible) -> dict[str, Any]:
    if isinstance(found, Infeasible):
        return {"strategies": name, "fits": False, "reason": found.reason}
    simulation = found.simulation
    return {
        "strategies": name,
        "fits": simulation.fits,
        "reason": simulation.shortage,
        "step_s": simulation.step_s,
        "rows_per_s": simulation.rows_per_s,
        "mfu": simulation.plausible_mfu,
        "peak_memory_bytes": simulation.peak_memory_bytes,
        "num_ranks": found.plan.num_ranks,
    }


def load_model(spec: str, rows: int | None = None) -> Model:
    """A model by its name in the zoo, or the path of a Python file, a Hugging Face ``config.json`` or its folder.

    Parameters
    ----------
    rows : of the batch of one step; by default those of the example batch.

    Raises
    ------
    WrongValueError
        If there is no such model or file, or ``rows`` is given for a Python file (its batch says how many).
    """
    require_type("spec", spec, str, "the name of a model, or a path, as a string")
    if not is_file(spec):
        with torch.device("meta"):
            return build(spec, rows)
    model = load_model_file(Path(spec))
    if rows is not None:
        raise WrongValueError(f"{spec} gives its own batch; change its rows there, and leave rows={rows} out")
    return replace(model, name=spec)


def plan(
    model: Model,
    cluster: Cluster | str,
    strategies: str = "auto",
    dtype: str = "float32",
    progress: Progress = no_progress,
    statistics: Statistics = "batch",
    all_devices: bool = False,
    optimizer: OptimizerConfig | None = None,
) -> Planned:
    """Make a plan and simulate it.

    Parameters
    ----------
    cluster : or its text form, ``"16x8xA100-80G"``.
    strategies : names of the catalog joined by ``+`` and applied left to right; ``auto`` searches.
    statistics : ``microbatch`` splits a batch into microbatches also where its rows depend on each other; see `Task`.
    all_devices : a search takes no plan that leaves devices idle, even if it is faster.
    optimizer : how parameters are updated, which decides what is kept for each of them; by default AdamW.

    Raises
    ------
    DoesNotFitError
        If no plan that a search finds fits the memory of the devices; the plan of other strategies is returned with a
        simulation that says so.
    PlanError
        If the strategies have no plan for this model on this cluster; the message says what would help.
    WrongTypeError
        If an argument is of another type.
    """
    require_model(model)
    require_strategies(strategies)
    require_optimizer(optimizer)
    place = cluster_of(cluster)
    task = Task(model, dtype, statistics, optimizer=optimizer or OptimizerConfig())
    return plan_task(task, place, strategies, progress, all_devices)


def plan_task(
    task: Task,
    place: Cluster,
    strategies: str = "auto",
    progress: Progress = no_progress,
    all_devices: bool = False,
) -> Planned:
    """The same for a task, which keeps what was captured of it: to plan it in several places.

    Raises
    ------
    PlanError
        As `plan`.
    """
    started = time.perf_counter()
    task.check_patterns()
    named = parse_strategies(strategies)
    setting = make_setting(task, place, progress, all_devices)
    with collecting_rarely():
        progress("capturing the model", "")
        task.program(task.num_rows)
        progress(f"applying {strategies}", "")
        chosen = apply(named, setting)
        progress("simulating the plan", "")
        simulation = setting.simulate_lengths(chosen)
    seconds = time.perf_counter() - started
    chosen = _noted(chosen, task, simulation)
    return Planned(chosen, simulation, task, tuple(setting.runners_up), seconds)


def make_setting(
    task: Task, place: Cluster, progress: Progress = no_progress, all_devices: bool = False
) -> SimulatedSetting:
    """Return the setting in which strategies decide.

    Parameters
    ----------
    progress : called with what they do.
    all_devices : see `Setting`.

    Raises
    ------
    HardwareError
        If it is not known how fast the cluster is.
    """
    place.require_known()
    return SimulatedSetting(
        task, place, published=published_strategies(), all_devices=all_devices, progress=progress
    )


def _noted(plan: Plan, task: Task, simulation: Simulation) -> Plan:
    """A plan whose reasons say what the model itself asks for and leaves aside, and whether memory is tight."""
    program = task.program(plan.rows_per_microbatch)
    notes = [_note_of_types(task), _note_of_lengths(simulation), simulation.tightness]
    notes = [note for note in notes if note]
    coupling = task.coupling if plan.num_microbatches == 1 else None
    if coupling is not None and not any(coupling in reason for reason in plan.reasons):
        notes.append(f"The batch is not split into microbatches: {coupling}.")
    if program.recompute:
        notes.append("What the model checkpoints (torch.utils.checkpoint) is recomputed.")
    if program.unused:
        first = ", ".join(program.unused[:5])
        more = f" and {len(program.unused) - 5} more" if len(program.unused) > 5 else ""
        notes.append(
            f"The loss does not use {first}{more}: no gradient, no update, no decay; kept as initialized."
        )
    return replace(plan, reasons=(*plan.reasons, *notes))


def _note_of_types(task: Task) -> str:
    """Describe the treatment of parameters that the model itself has in 16 bits."""
    params = [*task.model.module.parameters()]
    short = [p for p in params if p.dtype in HALF]
    if task.dtype != "float32" or not short:
        return ""
    types = listed(sorted({str(p.dtype).removeprefix("torch.") for p in short}))
    note = f"Not in float32: {len(short)} of {len(params)} parameters, which the model has and computes with in {types}"
    if any(p.requires_grad for p in short):
        note += "; the optimizer updates float32 copies of them, which checkpoints keep"
    return f"{note}."


def _note_of_lengths(simulation: Simulation) -> str:
    """Describe the sizes to which batches are padded; empty where all have one length."""
    if not simulation.by_length:
        return ""
    each = "; ".join(f"{size}: {found.time_and_memory_text}" for size, found in simulation.by_length.items())
    return f"A batch is padded to the smallest length that holds it, and runs by the plan of the largest. {each}."


def simulate(
    plan: Plan,
    model: Model | None = None,
    cluster: Cluster | str | None = None,
    optimizer: OptimizerConfig | None = None,
) -> Simulation:
    """Time a plan on the cluster that it was made for, or on another of at least as many devices.

    Parameters
    ----------
    model : what the plan is of, which may be left out where that has a name.
    optimizer : how parameters are updated; by default AdamW.

    Raises
    ------
    PlanError
        If the plan was made for another model, or for one in a Python file and none is given, or needs more devices.
    """
    require_plan(plan)
    if model is not None:
        require_model(model)
    require_optimizer(optimizer)
    place = None if cluster is None else cluster_of(cluster)
    return simulate_task(plan, task_of(plan, model, optimizer), place)


def task_of(plan: Plan, model: Model | None = None, optimizer: OptimizerConfig | None = None) -> Task:
    """Return the task that a plan trains; arguments and errors as of `simulate`."""
    whole = model or load_model(model_for(plan, None), plan.num_rows)
    return Task(whole, plan.dtype, plan.statistics, plan.num_rows, optimizer or OptimizerConfig())


def simulate_task(
    plan: Plan, task: Task, cluster: Cluster | str | None = None, progress: Progress = no_progress
) -> Simulation:
    """The same for a task, which keeps what was captured of it.

    Raises
    ------
    PlanError
        As `simulate`.
    """
    task.check_patterns()
    place = cluster_of(cluster or plan.place or plan.cluster)
    if plan.num_ranks > place.num_devices:
        raise PlanError(
            f"the plan needs {count_text(plan.num_ranks, 'device')}; {place.name} has {place.num_devices}. "
            "Plan again for this cluster"
        )
    return make_setting(task, place, progress).simulate_lengths(plan)


def compare(
    model: Model,
    cluster: Cluster | str,
    strategies: Sequence[str],
    dtype: str = "float32",
    statistics: Statistics = "batch",
    optimizer: OptimizerConfig | None = None,
    progress: Progress = no_progress,
) -> PlanComparison:
    """Plan with each of several strategies; those that have no plan say why.

    Parameters
    ----------
    strategies : a list of what `plan` takes.
    model, cluster, dtype, statistics, optimizer : as of `plan`.

    Raises
    ------
    WrongTypeError
        If an argument is of another type, such as one string instead of a list of strategies.
    WrongValueError
        If a strategy is unknown.
    """
    require_model(model)
    require_optimizer(optimizer)
    names, place = name_list("strategies", strategies), cluster_of(cluster)
    for name in names:
        parse_strategies(name)
    found: list[Planned | Infeasible] = []
    for name in names:
        try:
            found.append(plan(model, place, name, dtype, progress, statistics, optimizer=optimizer))
        except PlanError as error:
            found.append(Infeasible(name, str(error)))
    return PlanComparison(names, found)
