"""Sia: one configuration of devices for every job, by an integer program over goodputs on every type of device.

A configuration is a number of devices of one type: a power of two within a node, or whole nodes. Of every job the goodput
in every configuration that it may have is predicted and divided by its least one. The program chooses at most one
configuration for every job so that the sum of powers of those is best.

References
----------
S. Jayaram Subramanya, D. Arfeen, S. Lin, A. Qiao, Z. Jia, G. R. Ganger, "Sia: Heterogeneity-aware, goodput-optimized
ML-cluster scheduling", SOSP 2023. Section 3.2: what is known of a job's throughput; 3.3: configurations and placement;
3.4: the program.

Notes
-----
A job that is no power of two of devices and cannot be resized is a configuration of its own; it may come to lie on more
nodes than it need. Of a job that says nothing of itself, devices of all types are taken to speed it up evenly.

Fidelity: simplified. Left out: jobs that are parallel in other ways than over data (section 3.5), reservations, and the
time that a job's trial on one device of every type takes. The cost of a restart is one number for all jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from trainyard.fleet.allocation import Allocation, Placed, Reasons
from trainyard.fleet.errors import FleetError
from trainyard.fleet.place.blocks import blocks
from trainyard.fleet.policies.sia.assignment import Options, assigned
from trainyard.fleet.snapshot import Bools, Floats, Ints, Need, Snapshot
from trainyard.fleet.traits import Traits
from trainyard.fleet.workload.goodput import Limits, Models, Noise, Report
from trainyard.fleet.workload.throughput import Theta
from trainyard.hardware.cluster import Cluster

_QUIET = Noise(1.0, 0.0)
"""Before the first step: larger batches gain nothing."""


@dataclass(frozen=True, eq=False)
class Configurations:
    """Arrays are by configuration, ascending by type, then by devices.

    Attributes
    ----------
    device_type, num_devices : of each.
    node_size : devices of the largest node, by type.
    """

    device_type: Ints
    num_devices: Ints
    node_size: Ints

    @classmethod
    def of(cls, cluster: Cluster) -> Configurations:
        """Section 3.3: powers of two up to a node, then whole nodes."""
        kinds, counts, sizes = [], [], []
        for kind in range(len(cluster.device_types)):
            nodes = cluster.devices_per_node[cluster.type_of_node == kind]
            size = int(nodes.max())
            within = [1 << k for k in range(size.bit_length())]
            across = [size * num for num in range(1, int(nodes.sum()) // size + 1)]
            own = sorted({*within, *across})
            kinds += [kind] * len(own)
            counts += own
            sizes.append(size)
        return cls(np.array(kinds), np.array(counts), np.array(sizes))

    def with_sizes(self, kinds: Ints, counts: Ints) -> Configurations:
        """And some more."""
        both = np.concatenate(
            (np.stack((self.device_type, self.num_devices), 1), np.stack((kinds, counts), 1))
        )
        device_type, num_devices = np.unique(both, axis=0).T
        return Configurations(device_type, num_devices, self.node_size)


@dataclass(frozen=True)
class Sia:
    """The scheduler of Sia; for rounds of ``interval_s``.

    Attributes
    ----------
    power : p of the powers that are added up; the smaller, the fairer. Not 0.
    incentive : lambda, what it is worth that a job has any devices.
    restart_s : the delay that a job is expected to have whenever its devices change.
    interval_s : time between two decisions, the length of the rounds.
    """

    power: float = -0.5
    incentive: float = 1.1
    restart_s: float = 30.0
    interval_s: float = 60.0
    needs: frozenset[Need] = field(default=frozenset({"reports"}), init=False)
    preempts: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if self.power == 0:
            raise FleetError("the power of goodputs must not be 0; -0.5 is the paper's")

    @property
    def traits(self) -> Traits:
        """A round is the time between two decisions."""
        return Traits(round_s=self.interval_s, places=True)

    def start(self, cluster: Cluster) -> Configurations:
        """All that follows from the cluster."""
        return Configurations.of(cluster)

    def decide(self, snapshot: Snapshot, state: Configurations) -> tuple[Allocation, Configurations]:
        """Configurations (section 3.3), the goodputs in them, and of those the best (3.4), which are placed."""
        reports = [report if isinstance(report, Report) else None for report in snapshot.reports]
        configs, valid, least = _valid(snapshot, state, reports)
        goodput = self.goodputs(snapshot, reports, configs, valid)
        options = self._options(snapshot, configs, self.normalized(snapshot, configs, least, goodput))
        chosen = options.only(assigned(options, snapshot.cluster.devices_of_type))
        order, grants = chosen.job, [snapshot.grants[i] for i in chosen.job.tolist()]
        devices = blocks(snapshot.cluster, chosen.device_type, chosen.devices, grants)
        waiting = np.setdiff1d(np.arange(snapshot.num_jobs), order)
        again_s = snapshot.now_s + self.interval_s
        return Allocation(Placed(order, devices), again_s, reasons=Reasons(waiting, _why)), state

    def goodputs(
        self, snapshot: Snapshot, reports: Sequence[Report | None], configs: Configurations, valid: Bools
    ) -> Floats:
        """[job, configuration]: as the function of this name."""
        return goodputs(snapshot.cluster, reports, configs, valid)

    def normalized(self, snapshot: Snapshot, configs: Configurations, least: Ints, goodput: Floats) -> Floats:
        """[job, configuration]: goodputs by each job's least one, times its least devices and its restart factor."""
        known = goodput > 0
        lowest = np.where(known, goodput, np.inf).min(1)
        found: Floats = np.zeros_like(goodput)
        np.divide(goodput * least[:, None], lowest[:, None], out=found, where=known)
        return np.where(changes(snapshot, configs), found * self.restart_factor(snapshot)[:, None], found)

    def restart_factor(self, snapshot: Snapshot) -> Floats:
        """Return the share of its age that each job would have run had it restarted once more."""
        age_s = snapshot.now_s - snapshot.arrival_s
        factor: Floats = np.maximum(age_s - snapshot.num_restarts * self.restart_s, 0.0)
        factor /= age_s + self.restart_s
        return factor

    def powers(self, goodput: Floats) -> Floats:
        """Raise goodputs to the power that the objective sums."""
        found: Floats = goodput**self.power
        return found

    def value(self, goodput: Floats) -> Floats:
        """Return the terms of normalized goodputs in the objective; 0 where the goodput is 0."""
        usable = goodput > 0
        powers = np.zeros_like(goodput)
        powers[usable] = self.powers(goodput[usable])
        gain = self.incentive + (powers if self.power > 0 else -powers)
        return np.where(usable, np.maximum(gain, 0.0), 0.0)

    def keeps(self, snapshot: Snapshot) -> Bools:
        """Tell for each job whether it has to keep its configuration."""
        return np.zeros(snapshot.num_jobs, np.bool_)

    def _options(self, snapshot: Snapshot, configs: Configurations, goodput: Floats) -> Options:
        """Return the options of the program of section 3.4, and their values in its objective.

        Parameters
        ----------
        goodput : [job, configuration], normalized; 0 where it cannot be.
        """
        value = self.value(goodput)
        job, config = np.nonzero(_undominated(value, configs.device_type))
        must = self.keeps(snapshot)[job]
        return Options(
            job, configs.device_type[config], configs.num_devices[config], value[job, config], must
        )


def _why(job: int) -> str:
    return "the sum over all jobs is better if others have the devices"


def _valid(
    snapshot: Snapshot, configs: Configurations, reports: Sequence[Report | None]
) -> tuple[Configurations, Bools, Ints]:
    """Section 3.3: which configurations every job may have now: a job grows to at most twice what it ran on.

    Returns
    -------
    The configurations, [job, configuration] whether it may have it, and the devices of each job's smallest one.
    """
    sizes = np.array([(job.least_devices, job.most_devices) for job in snapshot.jobs], np.int64)
    least, most = sizes.T
    configs, valid = _possible(snapshot, configs, least, most)
    smallest = np.where(valid, configs.num_devices, most.max() + 1).min(1)
    most = np.maximum(smallest, np.minimum(most, 2 * _most_run_on(snapshot, reports)))
    return configs, valid & (configs.num_devices <= most[:, None]), smallest


def _most_run_on(snapshot: Snapshot, reports: Sequence[Report | None]) -> Ints:
    """The most devices on which every job ever ran, but for trials."""
    measured = [
        report.most_devices if report is not None and report.noise is not None else 0 for report in reports
    ]
    silent = np.array([report is None for report in reports])
    return np.where(silent, snapshot.held, np.array(measured, np.int64))


def _possible(
    snapshot: Snapshot, configs: Configurations, least: Ints, most: Ints
) -> tuple[Configurations, Bools]:
    """[job, configuration]: which configurations a job can ever have, some made for jobs that none would suit."""
    size_of_type = snapshot.cluster.devices_of_type
    allowed = (snapshot.allowed[:, None] >> np.arange(len(size_of_type))) & 1 > 0
    odd = allowed & (least[:, None] <= size_of_type)
    for kind in range(len(size_of_type)):
        own = np.append(configs.num_devices[configs.device_type == kind], np.iinfo(np.int64).max)
        odd[:, kind] &= own[np.searchsorted(own, least)] > most
    job, odd_kind = np.nonzero(odd)
    if len(job):
        configs = configs.with_sizes(odd_kind, least[job])
    kinds, count = configs.device_type, configs.num_devices
    suits = (count >= least[:, None]) & (count <= most[:, None])
    return configs, allowed[:, kinds] & suits & (~odd[:, kinds] | (count == least[:, None]))


def changes(snapshot: Snapshot, configs: Configurations) -> Bools:
    """[job, configuration]: of a job that runs, whether it would have to change for it."""
    found: Bools = snapshot.is_running[:, None] & ~_current(snapshot, configs)
    return found


def _current(snapshot: Snapshot, configs: Configurations) -> Bools:
    """[job, configuration]: which one every job has."""
    cluster, grants = snapshot.cluster, snapshot.grants
    kinds = [-1 if g is None else int(cluster.type_of_node[cluster.node_of[g.devices[0]]]) for g in grants]
    same = configs.device_type == np.array(kinds)[:, None]
    found: Bools = same & (configs.num_devices == snapshot.held[:, None])
    return found


def goodputs(
    cluster: Cluster, reports: Sequence[Report | None], configs: Configurations, valid: Bools
) -> Floats:
    """[job, configuration]: steps at the smallest batch per second, at the best batch size; 0 where that is not valid.

    Section 3.2: on a type on which a job was on one device only, it is taken to scale as on one on which it was on more.
    """
    found = np.where(valid, configs.num_devices, 0).astype(np.float64)
    models, model, most = _models(cluster.device_types, reports)
    if models is None:
        return found
    alone = models.goodputs_at(np.zeros(len(models.theta), np.bool_), np.ones(len(models.theta), np.int64))
    jobs = np.arange(len(reports))[:, None]
    # Where nothing was measured, or one device only: the type on which the job was on most.
    known_best = np.broadcast_to(most.argmax(1)[:, None], model.shape)
    own = np.arange(model.shape[1])
    source = np.where((most > 1) | (most[jobs, known_best] <= 1) & (model >= 0), own, known_best)
    there = model[jobs, source]
    ratio = np.where((model >= 0) & (there >= 0), alone[model] / alone[there], 1.0)
    number, config = np.nonzero(valid & (there >= 0)[:, configs.device_type])
    kinds, count = configs.device_type[config], configs.num_devices[config]
    across = count > configs.node_size[source[number, kinds]]
    predicted = models.rows(there[number, kinds]).goodputs_at(across, count)
    found[number, config] = predicted * ratio[number, kinds]
    return found


def _models(
    device_types: Sequence[str], reports: Sequence[Report | None]
) -> tuple[Models | None, Ints, Ints]:
    """Return the measured models, and by [job, type] the model and the most devices; -1 and 0 without measurements."""
    model = np.full((len(reports), len(device_types)), -1)
    most = np.zeros(model.shape, np.int64)
    theta: list[Theta] = []
    noise: list[Noise] = []
    limits: list[Limits] = []
    for number, report in enumerate(reports):
        if report is None:
            continue
        fixed = report.fixed_batch
        for kind, name in enumerate(device_types):
            fitted = report.theta(name)
            if fitted is None:
                continue
            model[number, kind] = len(theta)
            most[number, kind] = max(t.num_devices for t in report.timings if t.device_type == name)
            own = report.limits_on(name)
            theta.append(fitted)
            noise.append(report.noise or _QUIET)
            limits.append(own._replace(smallest=fixed, largest=fixed) if fixed else own)
    if not theta:
        return None, model, most
    models = Models(*(np.array(part, np.float64) for part in (theta, noise, limits)))
    return models, model, most


def _undominated(value: Floats, device_type: Ints) -> Bools:
    """Options that are worth more than all of the same job and type with fewer devices."""
    found = np.zeros(value.shape, np.bool_)
    for kind in np.unique(device_type):
        own = value[:, device_type == kind]
        before = np.maximum.accumulate(np.pad(own, ((0, 0), (1, 0))), 1)[:, :-1]
        found[:, device_type == kind] = own > before
    return found
