"""Goodput: how fast a training job gets on, as the product of its throughput and its statistical efficiency.

A job is described by numbers that it can measure of itself while it runs: how long its steps take (``Timing``) and how
noisy its gradients are (``Noise``). From these follow its speed on devices where it never was, and the batch size that is
best there. Work is counted in steps at the smallest batch size.

References
----------
A. Qiao, S. K. Choe, S. J. Subramanya, W. Neiswanger, Q. Ho, H. Zhang, G. R. Ganger, E. P. Xing, "Pollux: Co-adaptive
Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021, sections 3.1 to 3.3 and 4.1. The gain of a step is
that of AdaScale: T. B. Johnson, P. Agrawal, H. Gu, C. Guestrin, "AdaScale SGD", ICML 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.compiling import only_compiled
from trainyard.fleet.workload.throughput import TINY, Theta, fit, sync_s

Floats = NDArray[np.float64]

_NUM_BATCH_SIZES = 50


class Timing(NamedTuple):
    """One measurement of a step.

    Attributes
    ----------
    device_type : of the devices.
    num_nodes, num_devices : that the job had.
    local_batch : samples of one forward and backward pass on one device.
    compute_s : one pass without synchronisation.
    step_s : one pass with it.
    """

    device_type: str
    num_nodes: int
    num_devices: int
    local_batch: int
    compute_s: float
    step_s: float


class Noise(NamedTuple):
    """Gradients at the smallest batch size: squared length of the mean, and variance."""

    square: float
    variance: float


class Limits(NamedTuple):
    """Batch sizes that a job may have: of all devices together, and of one pass on one device."""

    smallest: int
    largest: int
    smallest_local: int
    largest_local: int

    @property
    def most_devices(self) -> int:
        """Devices on which a pass of the smallest size makes no more than the largest batch."""
        return max(1, self.largest // self.smallest_local)


class Batch(NamedTuple):
    """Passes of a batch: samples of a pass on a device, and passes of a step (accumulated, but for the last)."""

    local: int
    num_passes: int


@dataclass(frozen=True)
class Report:
    """Report of a job to the scheduler.

    Attributes
    ----------
    limits : its batch sizes.
    timings : measured times, one for each kind of devices and local batch.
    noise : as it is now; None before the first step.
    fixed_batch : the batch size if it may not be changed, else 0.
    limits_by_type : batch sizes on device types where they are others.
    losses : work done and the loss there, ascending by work.
    """

    limits: Limits
    timings: tuple[Timing, ...] = ()
    noise: Noise | None = None
    fixed_batch: int = 0
    limits_by_type: tuple[tuple[str, Limits], ...] = ()
    losses: tuple[tuple[float, float], ...] = ()

    def limits_on(self, device_type: str) -> Limits:
        """Batch sizes on a device type."""
        return dict(self.limits_by_type).get(device_type, self.limits)

    def theta(self, device_type: str = "") -> Theta | None:
        """The model fitted to all timings, or to those of one type; None where there are none."""
        chosen = tuple(t[1:] for t in self.timings if device_type in ("", t.device_type))
        return _fitted(chosen) if chosen else None

    @cached_property
    def most_devices(self) -> int:
        """The most devices that the job ever ran on."""
        return max((t.num_devices for t in self.timings), default=0)

    def with_timing(self, timing: Timing, noise: Noise) -> Report:
        """After one more measurement; of one that it has made before, only the noise is new."""
        known = any(timing[:4] == t[:4] for t in self.timings)
        return replace(self, timings=self.timings if known else (*self.timings, timing), noise=noise)

    def batch(self, num_nodes: int, num_devices: int, device_type: str = "") -> Batch:
        """The batch that the job takes on such devices: the one of greatest goodput, as far as it can tell.

        It starts with the smallest.
        """
        theta, limits = self.theta(device_type), self.limits_on(device_type)
        if self.fixed_batch or theta is None or self.noise is None:
            least = limits.smallest_local * num_devices
            return divided(self.fixed_batch or max(limits.smallest, least), num_devices, limits)
        _, local, num_passes = _best(
            np.array(theta), *self.noise, np.array(limits), num_nodes > 1, num_devices
        )
        return Batch(int(local), int(num_passes))


def gain(noise: Noise, scale: float) -> float:
    """Steps at the smallest batch that one step at ``scale`` times its size is worth; AdaScale's learning rate factor."""
    return float(_gain(noise.square, noise.variance, scale))


def divided(batch_size: int, num_devices: int, limits: Limits) -> Batch:
    """A batch of a given size, over devices and passes.

    One device alone takes two passes for more than the smallest batch, for it needs two gradients to measure their noise.
    """
    local = -(-batch_size // num_devices)
    passes = -(-local // limits.largest_local)
    if num_devices == 1 and batch_size > limits.smallest:
        passes = max(passes, 2)
    return Batch(min(-(-local // passes), limits.largest // (num_devices * passes)), passes)


@dataclass(frozen=True, eq=False)
class Models:
    """Reports of several jobs in columns, to predict many goodputs at once.

    Attributes
    ----------
    theta, noise, limits : [job, 7], [job, 2], [job, 4], as the fields of ``Theta``, ``Noise`` and ``Limits``.
    """

    theta: Floats
    noise: Floats
    limits: Floats

    @classmethod
    def of(cls, reports: Sequence[Report], device_type: str = "") -> Models:
        """Make the models of jobs that have measured something, on a device type or on all."""
        thetas = [report.theta(device_type) for report in reports]
        return cls(
            np.array(thetas, np.float64),
            np.array([report.noise for report in reports], np.float64),
            np.array([report.limits for report in reports], np.float64),
        )

    def rows(self, which: NDArray[np.int64]) -> Models:
        """Return some of the models, in any order and number."""
        return Models(self.theta[which], self.noise[which], self.limits[which])

    def goodputs(self, most: NDArray[np.int64]) -> Floats:
        """At the best batch sizes, in steps at the smallest batch per second.

        Parameters
        ----------
        most : devices up to which each job is asked for; beyond, the result is 0.

        Returns
        -------
        [job, 0 on one node and 1 on several, number of devices].
        """
        found: Floats = _goodputs(self.theta, self.noise, self.limits, most, int(most.max(initial=0)) + 1)
        return found

    def goodputs_at(self, across: NDArray[np.bool_], num_devices: NDArray[np.int64]) -> Floats:
        """The same, of each job on one number of devices, on one node or several."""
        found: Floats = _goodputs_at(self.theta, self.noise, self.limits, across, num_devices)
        return found


@lru_cache(maxsize=1 << 14)
def _fitted(timings: tuple[tuple[int, int, int, float, float], ...]) -> Theta:
    """Jobs of one kind measure the same at first, and ask again and again."""
    return fit(timings)


@only_compiled
def _gain(square, variance, scale):  # type: ignore[no-untyped-def]
    rest = variance / scale + square
    return (variance + square) / rest if rest > 0 else 1.0


@only_compiled
def _best(theta, square, variance, limits, across, num_devices):  # type: ignore[no-untyped-def]
    """Best of batch sizes in geometric progression: goodput, local batch, passes."""
    first, last, least_local, most_local = limits
    low = max(first, least_local * num_devices)
    ratio = (last / low) ** (1.0 / (_NUM_BATCH_SIZES - 1))
    wait_s, gamma = sync_s(theta, across, num_devices), theta[6]
    best, best_local, best_passes = 0.0, 0, 1
    size = float(low)
    for _ in range(_NUM_BATCH_SIZES):
        share = size / num_devices
        size *= ratio
        passes = np.ceil(share / most_local - TINY)
        if num_devices == 1 and share > first + TINY:
            passes = max(passes, 2.0)
        local = np.ceil(share / passes - TINY)
        if local < least_local or local > most_local:
            continue
        pass_s = theta[0] + theta[1] * local
        step_s = (pass_s**gamma + wait_s**gamma) ** (1 / gamma) + (passes - 1) * pass_s
        found = _gain(square, variance, num_devices * local * passes / first) / step_s
        if found > best:
            best, best_local, best_passes = found, int(local), int(passes)
    return best, best_local, best_passes


@only_compiled
def _goodputs(theta, noise, limits, most, num_columns):  # type: ignore[no-untyped-def]
    found = np.zeros((len(theta), 2, num_columns))
    for j in range(len(theta)):
        for n in range(1, min(most[j] + 1, num_columns)):
            for across in range(2):
                found[j, across, n] = _best(theta[j], noise[j, 0], noise[j, 1], limits[j], across == 1, n)[0]
    return found


@only_compiled
def _goodputs_at(theta, noise, limits, across, num_devices):  # type: ignore[no-untyped-def]
    found = np.zeros(len(theta))
    for j in range(len(theta)):
        found[j] = _best(theta[j], noise[j, 0], noise[j, 1], limits[j], across[j], num_devices[j])[0]
    return found
