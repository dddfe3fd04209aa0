"""Jobs that are level-1 trainings: what to train, and how fast that is predicted to be on any devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from trainyard.divisors import divisors
from trainyard.fleet.site import FleetError
from trainyard.fleet.workload.goodput import Limits, Noise, Report, Timing
from trainyard.fleet.workload.job import Adaptive, Grant, Job, Pace, Spot
from trainyard.fleet.workload.level1 import ask

if TYPE_CHECKING:
    from trainyard.hardware.cluster import Cluster
    from trainyard.job.plan import Plan
    from trainyard.job.run.config import ModelSource
    from trainyard.job.task import Task

THIS_MACHINE = "local"
"""The device type of this machine: a device of it is one process."""
_NO_NOISE = Noise(1.0, 0.0)
_MOST_EPOCHS = 100
_SHOWN_SIZES = 64
_CAPTURING = Lock()  # capture changes PyTorch for all threads of a process


@dataclass(frozen=True)
class Training:
    """A training of a model of the zoo. Its batch is the same however many devices it has, and so is its loss curve.

    Attributes
    ----------
    model : name in the zoo.
    rows : of the batch of one step.
    steps : of the whole training.
    strategies : how it is spread over its devices, as ``parse_strategies`` reads them.
    learning_rate, seed : of the training.
    checkpoint_every : steps between checkpoints: what a job that dies may lose.
    """

    model: str
    rows: int
    steps: int
    strategies: str = "data_parallel"
    learning_rate: float = 1e-3
    seed: int = 0
    checkpoint_every: int = 5

    @property
    def as_fast(self) -> Training:
        """One step of it, without what changes losses and not speed: of trainings that are equally fast it is equal."""
        return Training(self.model, self.rows, 1, self.strategies, checkpoint_every=self.checkpoint_every)

    @property
    def source(self) -> ModelSource:
        """Builds the model, in whatever process that is needed."""
        from trainyard.zoo import build

        return partial(build, self.model, self.rows)

    def task(self) -> Task:
        """One step of it; keeps the programs that were captured, and its weights take no memory."""
        import torch

        from trainyard.job.task import Task

        with torch.device("meta"):
            return Task(self.source())

    def plan(self, cluster: Cluster, task: Task | None = None) -> Plan:
        """How it runs on all devices of a cluster.

        Parameters
        ----------
        task : its own; a new one if the caller needs no programs.

        Raises
        ------
        PlanError
            If its strategies have no plan there.
        """
        from trainyard.job.catalog import parse_strategies
        from trainyard.job.task import Setting, apply

        with _CAPTURING:
            return apply(parse_strategies(self.strategies), Setting(task or self.task(), cluster))

    def sizes(self, most: int) -> tuple[int, ...]:
        """Numbers of devices over which the batch divides."""
        return tuple(n for n in divisors(self.rows) if n <= most)

    @property
    def sizes_text(self) -> str:
        """The smaller numbers of devices over which the batch divides."""
        shown = ", ".join(map(str, self.sizes(min(self.rows, _SHOWN_SIZES))))
        return shown if self.rows <= _SHOWN_SIZES else f"{shown}, or more"

    @property
    def epoch_steps(self) -> int:
        """Steps that count as an epoch, whose mean loss it tells: from checkpoint to checkpoint, or a hundredth of all.

        The longer of both, so that who follows a long training is not told of thousands.
        """
        return max(self.checkpoint_every, -(-self.steps // _MOST_EPOCHS))

    def report(
        self,
        known: Report | None,
        spot: Spot,
        step_s: float,
        losses: tuple[tuple[float, float], ...] = (),
    ) -> Report:
        """What a job knows of itself after it has measured its steps somewhere.

        Its batch is fixed, so the noise of its gradients does not matter. Of a step on several devices, what one device
        would take for a pass as large counts as computing.

        Parameters
        ----------
        losses : steps done and mean loss at the end of every epoch; those that it knew before if there are none.
        """
        before = known or self.remembered(())
        local = self.rows // spot.num_devices
        alone_s = [t.step_s * local / self.rows for t in before.timings if t.num_devices == 1]
        compute_s = min([step_s, *alone_s])
        timing = Timing(spot.device_type, spot.num_nodes, spot.num_devices, local, compute_s, step_s)
        return replace(before.with_timing(timing, _NO_NOISE), losses=losses or before.losses)

    def remembered(self, timings: tuple[Timing, ...]) -> Report:
        """What a job knows of itself that measured its steps before."""
        limits = Limits(self.rows, self.rows, 1, self.rows)
        return Report(limits, timings, _NO_NOISE if timings else None, fixed_batch=self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain form, for files; ``from_dict`` reads it back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Training:
        """Read the plain form.

        Raises
        ------
        FleetError
            If a field is unknown, missing, or has another type.
        """
        kinds: dict[str, type] = {
            "model": str, "rows": int, "steps": int, "strategies": str, "learning_rate": float, "seed": int,
            "checkpoint_every": int,
        }  # fmt: skip
        unknown = sorted(given.keys() - kinds.keys())
        missing = [f for f in ("model", "rows", "steps") if f not in given]
        if unknown or missing:
            raise FleetError(
                f"a training has the fields {', '.join(kinds)}; "
                + (f"{unknown[0]!r} is none of them" if unknown else f"{missing[0]} is missing")
            )
        values = {}
        for name, value in given.items():
            kind = kinds[name]
            if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
                raise FleetError(f"training: {name} is {value!r}; it takes {kind.__name__}")
            values[name] = kind(value)
        return cls(**values)


@dataclass(frozen=True)
class Predicted(Adaptive):
    """The profile that other schedulers make their users measure: the speed of a training, as level 1 predicts it.

    Attributes
    ----------
    training : what runs.
    steps_per_s : by number of devices, where that is known better than by prediction.
    core_part : of the time of a core of its own that each process takes, where devices are places for processes; 1 where
        level 1 predicts devices as they are.
    """

    training: Training
    steps_per_s: Mapping[int, float] = field(default_factory=dict, compare=False)
    core_part: float = 1.0

    def pace(self, spot: Spot, grant: Grant, done: float, report: Any) -> Pace:
        """It keeps its pace, and learns how long its steps take."""
        known = report if isinstance(report, Report) else None
        rate = self.work_per_s(spot, grant)
        learnt = self.training.report(known, spot, grant.share / rate) if rate > 0 else known
        return Pace(rate, float(self.training.steps), learnt)

    @property
    def skew(self) -> float:
        """See `Job.skew`."""
        found: float = ask("skew", self.training.model)
        return found

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        """Steps in a second; 0 on devices over which the batch does not divide, or for which there is no plan.

        Raises
        ------
        FleetError
            If the type of the devices is none that level 1 knows.
        """
        if self.steps_per_s:
            return grant.share * self.steps_per_s.get(spot.num_devices, 0.0)
        if self.training.rows % spot.num_devices:
            return 0.0
        shape = spot.device_type, spot.per_node, self.core_part < 1.0
        steps_per_s: float = ask("steps_per_s", self.training.as_fast, *shape)
        return grant.share * self.core_part * steps_per_s


def _steps_per_s(
    training: Training, device_type: str, per_node: tuple[int, ...], own_cores: bool = False
) -> float:
    from trainyard.hardware import cluster_of_profile, local_profile, parse_cluster

    if own_cores:
        num_devices = sum(per_node)
        cluster = cluster_of_profile(replace(local_profile(), num_cores=num_devices), num_devices)
    else:
        cluster = parse_cluster(cluster_text([(device_type, count) for count in per_node]))
    return predicted_steps_per_s(_task(training), cluster, training.strategies)[0]


@lru_cache(maxsize=4)  # programs of large models are large
def _task(training: Training) -> Task:
    """One for all places, so that each program is captured once."""
    return training.task()


def predicted_steps_per_s(task: Task, cluster: Cluster, strategies: str) -> tuple[float, str]:
    """Steps in a second that level 1 predicts for a task on all devices of a cluster; 0, and why, where it cannot run."""
    from trainyard.job.plan import PlanError
    from trainyard.job.planning import plan_task
    from trainyard.job.schedule import ScheduleError

    try:
        with _CAPTURING:
            found = plan_task(task, cluster, strategies).simulation
    except (PlanError, ScheduleError) as error:
        return 0.0, str(error)
    if not found.fits:
        return 0.0, f"a device is short of {max(found.shortage_bytes) / 2**30:.3g} GiB of memory"
    return 1.0 / found.step_s, ""


def _skew(model: str) -> float:
    import torch

    from trainyard.zoo import build

    with _CAPTURING, torch.device("meta"):
        sizes = [tensor.numel() * tensor.element_size() for tensor in build(model).module.parameters()]
    return max(sizes) / sum(sizes)


def _plan_problem(training: Training, cluster: str) -> str:
    """Why a training cannot run on a cluster, as ``parse_cluster`` reads it: no plan, or no memory; "" if it can."""
    from trainyard.hardware import parse_cluster
    from trainyard.job.lower.lower import lower
    from trainyard.job.plan import PlanError
    from trainyard.job.schedule import ScheduleError
    from trainyard.job.simulate import simulate_plan

    place, task = parse_cluster(cluster), _task(training)
    try:
        plan = training.plan(place, task)
        with _CAPTURING:
            lowered = lower(task.program(plan.rows_per_microbatch), plan)
    except (PlanError, ScheduleError) as error:
        return f"no plan for {training.model} by {training.strategies}: {error}"
    found = simulate_plan(lowered, place)  # nothing is measured for the memory that it takes
    return "" if found.fits else f"{training.model} with {training.rows} rows does not fit: {found.shortage}"


def _name_problem(model: str, strategies: str) -> tuple[str, str] | None:
    """Which of two names is none, ``model`` or ``strategies``, and what is allowed; None if both are."""
    from trainyard.job.catalog import parse_strategies
    from trainyard.job.plan import PlanError
    from trainyard.zoo import names

    if model not in names():
        return "model", f"a model of the zoo: {', '.join(names())}"
    try:
        parse_strategies(strategies)
    except PlanError as error:
        return "strategies", str(error)
    return None


def _checkpoint_problem(model: str, most_bytes: float) -> str:
    """Why the checkpoints of a model take more of the disk than they may; "" if they do not."""
    import torch

    from trainyard.job.run.config import TrainConfig
    from trainyard.job.run.optimizer import OptimizerConfig
    from trainyard.job.run.quota import QuotaError, check_quota, checkpoint_bytes
    from trainyard.zoo import build

    with _CAPTURING, torch.device("meta"):
        one_bytes = checkpoint_bytes(build(model).module, OptimizerConfig())
    try:
        check_quota(one_bytes, TrainConfig.keep, most_bytes)
    except QuotaError as error:
        return str(error)
    return ""


QUESTIONS: Mapping[str, Callable[..., Any]] = {
    "steps_per_s": _steps_per_s,
    "skew": _skew,
    "plan_problem": _plan_problem,
    "name_problem": _name_problem,
    "checkpoint_problem": _checkpoint_problem,
}
"""What level 1 is asked, see `trainyard.fleet.workload.level1`: every answer needs PyTorch, and so seconds."""


def cluster_text(nodes: Sequence[tuple[str, int]]) -> str:
    """The devices of a job as ``parse_cluster`` reads them.

    Parameters
    ----------
    nodes : device type and number of devices of each.

    Raises
    ------
    FleetError
        If level 1 does not know a type.
    """
    from trainyard.hardware import HardwareError, device_named

    if all(kind == THIS_MACHINE for kind, _ in nodes):
        return f"{THIS_MACHINE}:{sum(count for _, count in nodes)}"
    for kind, _ in nodes:
        try:
            device_named(kind)
        except HardwareError as error:
            raise FleetError(
                f"a training runs on devices of a known type, or of type {THIS_MACHINE!r} (processes of this machine), "
                f"as in 2x2x{THIS_MACHINE}: {error}"
            ) from error
    return "+".join(f"1x{count}x{kind}" for kind, count in nodes)


def training_job(
    name: str,
    arrival_s: float,
    num_devices: int,
    training: Training,
    profile: Predicted | None = None,
    **rest: Any,
) -> Job:
    """A job whose work is the steps of a training.

    Raises
    ------
    FleetError
        If the batch does not divide over the devices.
    """
    if training.rows % num_devices:
        raise FleetError(
            f"job {name!r}: a batch of {training.rows} rows does not divide over {num_devices} devices; ask for one of "
            f"{training.sizes_text}"
        )
    return Job(
        name,
        arrival_s,
        num_devices,
        float(training.steps),
        profile or Predicted(training),
        model=training.model,
        batch_size=training.rows,
        **rest,
    )


def training_of(job: Job) -> Training:
    """What a job trains.

    Raises
    ------
    FleetError
        If it is a job of a trace, of which only its length is known.
    """
    if not isinstance(job.profile, Predicted):
        raise FleetError(
            f"job {job.name!r} has a length and no training, so it can only be simulated; to run it, give it a model, "
            "a batch_size and steps"
        )
    return job.profile.training


def on_places(job: Job, core_part: float) -> Job:
    """A training as fast as it is where each of its processes takes a part of a core of its own; 1 changes nothing."""
    training_of(job)
    assert isinstance(job.profile, Predicted)
    return job if core_part == 1.0 else replace(job, profile=replace(job.profile, core_part=core_part))
