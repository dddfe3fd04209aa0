"""Jobs that tune themselves, from tables measured of their application.

The tables are those of AdaptDL: the time of a step by placement and local batch size, and the noise of the gradients by
batch size and epoch. Between what was measured, they are interpolated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.between import Tetrahedra
from trainyard.fleet.workload.goodput import Limits, Noise, Report, Timing, divided, gain
from trainyard.fleet.workload.job import Adaptive, Grant, Job, Rate, Spot

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Application:
    """Measurements of one application.

    Attributes
    ----------
    limits : batch sizes.
    epoch_ends : work done at the end of every epoch, in steps at the smallest batch.
    batch_sizes, square, variance : of the gradients, [batch size] and [batch size, epoch].
    loss : after every epoch, [batch size, epoch]: what lacks in quality.
    by_placement : devices on each node, and [measurement, (local batch, step_s, sync_s)].
    elsewhere : step_s and sync_s by (nodes, devices, local batch); None if all that fits on the one node of the
        measurements is in ``by_placement``.
    most_nodes, most_devices : that were measured.
    device_type : on which it was measured; empty for any.
    """

    name: str
    limits: Limits
    epoch_ends: Floats
    batch_sizes: Floats
    square: Floats
    variance: Floats
    loss: Floats
    by_placement: Mapping[tuple[int, ...], Floats]
    elsewhere: Tetrahedra | None
    most_nodes: int
    most_devices: int
    device_type: str = ""

    def step_s(self, per_node: tuple[int, ...], local_batch: int) -> tuple[float, float]:
        """Seconds of a pass without and with synchronisation.

        Raises
        ------
        FleetError
            If it is too far from all that was measured.
        """
        return _step_s(self, per_node, local_batch)

    def noise(self, batch_size: int, epoch: int) -> Noise:
        """Return the noise of the gradients of an epoch at a batch size."""
        sizes = self.batch_sizes
        return Noise(
            *(float(np.interp(batch_size, sizes, x[:, epoch])) for x in (self.square, self.variance))
        )

    def losses(self, batch_size: int, epoch: int) -> tuple[tuple[float, float], ...]:
        """Work done and loss after every epoch so far."""
        nearest = int(np.abs(np.log(self.batch_sizes / batch_size)).argmin())
        return tuple(zip(self.epoch_ends[:epoch].tolist(), self.loss[nearest, :epoch].tolist(), strict=True))

    @property
    def work(self) -> float:
        """To the end of the last epoch."""
        return float(self.epoch_ends[-1])

    def epoch(self, done: float) -> int:
        """The epoch after some work."""
        reached = int(np.searchsorted(self.epoch_ends, done * (1 + 1e-12), "right"))
        return min(reached, len(self.epoch_ends) - 1)


@dataclass(frozen=True)
class SelfTuned(Adaptive):
    """A training job that fits its own speed and, unless it is fixed, adapts its batch size.

    Attributes
    ----------
    batch_size : fixed; 0 to adapt it.
    elsewhere : the same application, measured on other device types. Then the job tries one device of each before it
        first runs.
    """

    application: Application
    batch_size: int = 0
    elsewhere: tuple[Application, ...] = ()

    @property
    def known(self) -> Report | None:
        return self._first if self.elsewhere else None

    @cached_property
    def _first(self) -> Report:
        """Return the report before the first run, with trials at each local batch size in the tables."""
        apps = (self.application, *self.elsewhere) if self.elsewhere else ()
        trials = tuple(
            Timing(app.device_type, 1, 1, int(local), step_s - sync_s, step_s)
            for app in apps
            for local, step_s, sync_s in app.by_placement[(1,)].tolist()
            if local <= app.limits.largest_local
        )
        limits = tuple((app.device_type, app.limits) for app in apps)
        return Report(self.application.limits, trials, fixed_batch=self.batch_size, limits_by_type=limits)

    def _on(self, device_type: str) -> Application:
        """The application on a device type; raises FleetError where it was not measured."""
        for app in (self.application, *self.elsewhere):
            if not self.elsewhere or app.device_type == device_type:
                return app
        raise FleetError(
            f"application {self.application.name!r} was not measured on {device_type!r}; read it"
        )

    def rate(self, spot: Spot, grant: Grant, done: float, report: Any) -> Rate:
        app = self._on(spot.device_type)
        known = report if isinstance(report, Report) else self._first
        if grant.batch_size:
            local, passes = divided(grant.batch_size, spot.num_devices, app.limits)
        else:
            local, passes = known.batch(spot.num_nodes, spot.num_devices, spot.device_type)
        compute_s, step_s = app.step_s(spot.per_node, local)
        epoch, size = app.epoch(done), local * passes * spot.num_devices
        noise = app.noise(size, epoch)
        speed = gain(noise, size / app.limits.smallest) / (step_s + (passes - 1) * compute_s)
        timing = Timing(spot.device_type, spot.num_nodes, spot.num_devices, local, compute_s, step_s)
        learnt = known.with_timing(timing, noise)
        if len(learnt.losses) < epoch:
            learnt = replace(learnt, losses=app.losses(size, epoch))
        return Rate(grant.share * speed, float(app.epoch_ends[epoch]), learnt, size)

    def rest_s(self, spot: Spot, grant: Grant, done: float, work: float) -> float:
        if not self.batch_size:
            return super().rest_s(spot, grant, done, work)
        # At one batch size, a step takes the same time in every epoch.
        first = self.rate(spot, grant, 0.0, None)
        ends, steps = _steps(self._on(spot.device_type), first.batch_size)
        step_s = ends[1] / steps[1] / first.work_per_s
        return float(np.interp(work, ends, steps) - np.interp(done, ends, steps)) * float(step_s)


def adaptive(
    jobs: Iterable[Job],
    applications: Mapping[str, Application],
    fixed: Mapping[str, int] = MappingProxyType({}),
    elsewhere: Mapping[str, tuple[Application, ...]] = MappingProxyType({}),
) -> Iterator[Job]:
    """Jobs that choose their batch sizes and can run on any number of devices, whatever was asked for.

    Parameters
    ----------
    jobs : with the name of an application as ``model``.
    fixed : applications that keep a batch size, by name, and run on one device.
    elsewhere : the same applications on other device types, by name.
    """
    for job in jobs:
        app = _application(job, applications)
        size, others = fixed.get(app.name, 0), elsewhere.get(app.name, ())
        most = 1 if size else max(min(a.limits.most_devices, a.most_devices) for a in (app, *others))
        tuned = SelfTuned(app, size, others)
        yield replace(
            job, profile=tuned, work=app.work, num_devices=1, min_devices=1, max_devices=most, batch_size=size
        )


def tuned(jobs: Iterable[Job], applications: Mapping[str, Application]) -> Iterator[Job]:
    """Jobs with the devices and the batch sizes that their owners chose."""
    for job in jobs:
        app = _application(job, applications)
        yield replace(job, profile=SelfTuned(app, job.batch_size), work=app.work)


def elastic(jobs: Iterable[Job], applications: Mapping[str, Application]) -> Iterator[Job]:
    """Jobs with the batch sizes that their owners chose, on any number of devices."""
    for job in jobs:
        app = _application(job, applications)
        most = max(1, min(job.batch_size // app.limits.smallest_local, app.most_devices))
        own = SelfTuned(app, job.batch_size)
        yield replace(job, profile=own, work=app.work, num_devices=1, min_devices=1, max_devices=most)


def _application(job: Job, applications: Mapping[str, Application]) -> Application:
    if job.model not in applications:
        known = ", ".join(applications) or "none"
        raise FleetError(
            f"job {job.name!r} is of application {job.model!r}, which was not measured; those are {known}"
        )
    return applications[job.model]


@lru_cache(maxsize=1 << 10)
def _steps(app: Application, batch_size: int) -> tuple[Floats, Floats]:
    """Work, and steps at a batch size in which it is done, at the beginning and after every epoch."""
    scale = batch_size / app.limits.smallest
    gains = [gain(app.noise(batch_size, epoch), scale) for epoch in range(len(app.epoch_ends))]
    steps = np.cumsum(np.diff(app.epoch_ends, prepend=0.0) / gains)
    return np.append(0.0, app.epoch_ends), np.append(0.0, steps)


@lru_cache(maxsize=1 << 14)
def _step_s(app: Application, per_node: tuple[int, ...], local_batch: int) -> tuple[float, float]:
    # Only which nodes are next to each other in the ring matters, not where it begins.
    ring = min(per_node[i:] + per_node[:i] for i in range(len(per_node)))
    table = app.by_placement.get(ring)
    if table is not None:
        step_s, sync_s = (float(np.interp(local_batch, table[:, 0], table[:, c])) for c in (1, 2))
        return step_s - sync_s, step_s
    # On nodes larger than those measured, a job is taken to be as fast as on the fewest of those that hold it.
    fewest = min(len(per_node), app.most_nodes)
    for num_nodes in range(fewest, app.most_nodes + 1):
        found = None if app.elsewhere is None else app.elsewhere.at((num_nodes, sum(per_node), local_batch))
        if found is not None:
            return float(found[0] - found[1]), float(found[0])
    raise FleetError(
        f"application {app.name!r} was measured on up to {app.most_devices} devices of {app.most_nodes} nodes, not "
        f"near {sum(per_node)} devices of {len(per_node)} nodes at {local_batch} samples each; limit its devices"
    )
