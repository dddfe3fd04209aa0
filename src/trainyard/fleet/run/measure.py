"""Measure trainings on a backend, each alone for a moment: their speeds, and the time of starts and stops."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from operator import itemgetter
from statistics import mean, median
from typing import Any

from trainyard.fleet.errors import FleetError
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.run.directory_backend import DirectoryBackend
from trainyard.fleet.workload.job import Grant, Job
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import Predicted, training_job, training_of
from trainyard.job.run.processes.heartbeat import Silence, beating
from trainyard.processes import IDLE_S
from trainyard.progress import Progress, no_progress

_POLL_S, _LOOK_S = 0.01, 1.0
_ENDLESS = 10**9
# What starting takes differs by half from one time to the next, and how fast a machine is by a tenth within a minute.
_STARTS = 3
# Steps, of which the first are slower.
_WARM = 3
# As many as keep the cores busy; more would only take long to start.
_AT_ONCE = 8


@dataclass(frozen=True)
class Trial:
    """A training, alone on some devices of a node.

    Attributes
    ----------
    steps_per_s : once it runs; the mean of several times.
    start_s, stop_s : from the order to start until its first steps are done, without what these take later on, and from
        that to stop until its devices are free; the median of several times.
    """

    steps_per_s: float
    start_s: float
    stop_s: float


def measured_alone(
    jobs: Sequence[Job],
    backend: DirectoryBackend,
    *,
    seconds: float = 20.0,
    tell: Callable[[str], None] = lambda _: None,
    progress: Progress = no_progress,
) -> tuple[tuple[Job, ...], Costs]:
    """Jobs with speeds as they are on a backend, and what starting costs there.

    Of those that differ in steps, seed or learning rate, one runs on every number of devices that any of them may get,
    on the first ones of the cluster. Where all devices are of one machine, the others run it meanwhile: beside idle
    cores, with all of the caches, memory and clock for its own, a process is faster than it will be, and sooner started.

    Parameters
    ----------
    jobs : trainings; the ones returned are equal but for their speeds.
    seconds : of every training on every number of devices, in all, without starting and stopping.
    tell : gets a line for each result.
    progress : gets what is measured, how many of how many that is, and what comes next.

    Raises
    ------
    FleetError
        If one fails.
    """
    counts: dict[Training, set[int]] = {}
    for job in jobs:
        most = min(job.most_devices, backend.cluster.num_devices)
        fitting = (n for n in training_of(job).sizes(most) if n >= job.least_devices)
        counts.setdefault(endless(job), set()).update(fitting)
    parts = _Parts([(model, size) for model, sizes in counts.items() for size in sorted(sizes)], progress)
    trials: dict[Training, dict[int, Trial]] = {}
    for number, (training, sizes) in enumerate(counts.items()):
        for size in sorted(sizes):
            parts.begin_next()
            trial = _alone(f"measured-{number}-on-{size}", training, size, backend, seconds)
            trials.setdefault(training, {})[size] = trial
            tell(f"{training.model} on {devices_text(size)}: {trial.steps_per_s:.3g} steps/s")
    every = [trial for by_size in trials.values() for trial in by_size.values()]
    # A job that starts must in the end be stopped, or stop by itself, which takes as long.
    both_s = median(trial.start_s + trial.stop_s for trial in every)
    parts.begin_next()
    together_s = _together(trials, backend)
    tell(f"a start takes {both_s:.1f} s, and {together_s:.1f} s more for each other at the same moment")
    return tuple(_with_speeds(job, trials[endless(job)]) for job in jobs), Costs(both_s, both_s, together_s)


class _Parts:
    """Parts of a measurement, one for each training on each number of devices and one for starts at the same moment."""

    def __init__(self, shapes: Sequence[tuple[Training, int]], progress: Progress) -> None:
        alone = [f"{training.model} on {devices_text(size)}" for training, size in shapes]
        self._names, self._number, self._progress = [*alone, "starts at the same moment", ""], 0, progress

    def begin_next(self) -> None:
        """Report the part that begins, and the next one."""
        part, then = self._names[self._number : self._number + 2]
        self._number += 1
        place = f"{self._number} of {len(self._names) - 1}"
        self._progress("measuring", f"{place}, {part}; then {then or 'the prediction'}")


def devices_text(count: int) -> str:
    """Return a number of devices in words."""
    return f"{count} device" if count == 1 else f"{count} devices"


def measured_document(jobs: Sequence[Job], costs: Costs) -> dict[str, Any]:
    """Return a result of `measured_alone` as data: steps per second of each job by number of devices, and the costs."""
    speeds = {job.name: job.profile.steps_per_s for job in jobs if isinstance(job.profile, Predicted)}
    return {"steps_per_s": speeds, "start_s": costs.start_s, "together_s": costs.together_s}


def endless(job: Job) -> Training:
    """Return the training of a job, with more steps than any measurement lasts."""
    return replace(training_of(job).as_fast, steps=_ENDLESS)


def _with_speeds(job: Job, trials: dict[int, Trial]) -> Job:
    speeds = {size: trial.steps_per_s for size, trial in trials.items()}
    return replace(job, profile=Predicted(training_of(job), speeds))


def _alone(name: str, training: Training, size: int, backend: DirectoryBackend, seconds: float) -> Trial:
    job = training_job(name, 0.0, size, training)
    with _busy_elsewhere(job, backend):
        every = [one_start(job, backend, seconds / _STARTS) for _ in range(_STARTS)]
    return Trial(
        mean(t.steps_per_s for t in every),
        median(t.start_s for t in every),
        median(t.stop_s for t in every),
    )


def _busy_elsewhere(job: Job, backend: DirectoryBackend) -> AbstractContextManager[object]:
    """Within it, copies of a job run on the places that it leaves free, where all are of one machine."""
    size, first_device = job.num_devices, backend.cluster.first_device
    # Second ones on devices that may be shared come last.
    places = sorted(
        (turn, int(first_device[node]) + taken)
        for node, host in enumerate(backend.cluster.nodes)
        for turn in range(backend.jobs_per_device(node))
        for taken in range(0, host.num_devices - size + 1, size)
    )
    free = (
        [(turn, first) for turn, first in places if turn or first >= size] if backend.is_one_machine else []
    )
    names = {f"{job.name}-beside-{first}-{turn}": first for turn, first in free[: _AT_ONCE - 1]}
    return _running(job, names, backend)


@contextmanager
def _running(
    job: Job, places: Mapping[str, int], backend: DirectoryBackend
) -> Iterator[list[tuple[int, float]]]:
    """Within it, copies of a job run, by name on its devices from the one given on.

    Yields how many steps each of them had done, and after how long, when it was warm; all started at once.
    """
    try:
        for name in places:
            shutil.rmtree(backend.directory(name).path, ignore_errors=True)
        began_s = time.monotonic()
        for name, first in places.items():
            backend.start(replace(job, name=name), grant_from(job, first, backend))
        with _watching(backend, places):
            yield [(steps, seen_s - began_s) for steps, seen_s in _reach(backend, list(places), _WARM)]
    finally:
        backend.stop(list(places))
        for name in places:
            shutil.rmtree(backend.directory(name).path, ignore_errors=True)


def _watching(backend: DirectoryBackend, names: Iterable[str]) -> AbstractContextManager[None]:
    """Within it, jobs run; if this process dies, they end, too."""
    directories = [backend.directory(name) for name in names]

    def watch() -> None:
        for directory in directories:
            directory.watch()

    return beating(watch, backend.limits.heartbeat_s)


def first_device(job: Job, backend: DirectoryBackend) -> int:
    """Return the first device of the cluster of a type on which a job can run."""
    cluster = backend.cluster
    nodes = [
        number
        for number, node in enumerate(cluster.nodes)
        if node.device_type in (job.device_types or (node.device_type,))
    ]
    return int(cluster.first_device[nodes[0]]) if nodes else 0


def grant_from(job: Job, first: int, backend: DirectoryBackend) -> Grant:
    """A job's devices from one on, with room for as many others as may have them, too."""
    node = int(backend.cluster.node_of[first])
    return Grant(tuple(range(first, first + job.num_devices)), 1.0 / backend.jobs_per_device(node))


def _together(trials: Mapping[Training, Mapping[int, Trial]], backend: DirectoryBackend) -> float:
    """Measure how much longer a start takes for each other start at the same moment, with as many as devices allow."""
    size, training = min(
        ((min(by_size), training) for training, by_size in trials.items()), key=itemgetter(0)
    )
    count = min(backend.cluster.num_devices // size, _AT_ONCE)
    if count < 2:
        return 0.0
    places = {f"measured-at-once-{number}": number * size for number in range(count)}
    alone = trials[training][size]
    with _running(training_job("measured-at-once", 0.0, size, training), places, backend) as warm:
        longer_s = mean(after_s - steps / alone.steps_per_s for steps, after_s in warm) - alone.start_s
    return max(0.0, longer_s / (count - 1))


def one_start(job: Job, backend: DirectoryBackend, seconds: float) -> Trial:
    """Measure one start, some seconds of running, and one stop; nothing is left of the job."""
    name, directory = job.name, backend.directory(job.name).path
    shutil.rmtree(directory, ignore_errors=True)
    began_s = time.monotonic()
    backend.start(job, grant_from(job, first_device(job, backend), backend))
    with _watching(backend, [name]):
        trial = _tried(name, backend, seconds, began_s)
    shutil.rmtree(directory)
    return trial


def _tried(name: str, backend: DirectoryBackend, seconds: float, began_s: float) -> Trial:
    """Measure the step, the start and the stop of a job that was started."""
    try:
        ((warm, warm_s),) = _reach(backend, [name], _WARM)
        time.sleep(seconds)
        # Until a step ends: of slow steps, part of one would be much of the time.
        ((before, _),) = _reach(backend, [name], warm)
        ((done, done_s),) = _reach(backend, [name], before + 1)
        step_s = (done_s - warm_s) / (done - warm)
    finally:
        asked_s = time.monotonic()
        backend.stop([name])
        over_s = time.monotonic()
    return Trial(1.0 / step_s, max(0.0, warm_s - began_s - warm * step_s), over_s - asked_s)


def _reach(backend: DirectoryBackend, names: Sequence[str], steps: int) -> list[tuple[int, float]]:
    """Wait until jobs have done so many steps; how many each has then, and when that was seen."""
    seen: dict[str, tuple[int, float]] = {}
    silence, steps_of, looked_s = Silence[str](2 * _LOOK_S), dict.fromkeys(names, 0), -math.inf
    while len(seen) < len(names):
        for name in names:
            progress = backend.progress(name)
            if progress.failure is not None:
                raise FleetError(f"{name} failed: {progress.failure}")
            steps_of[name] = progress.steps or 0
            if steps_of[name] >= steps:
                seen.setdefault(name, (steps_of[name], time.monotonic()))
        if time.monotonic() > looked_s + _LOOK_S:
            looked_s = time.monotonic()
            signs = {name: (steps_of[name], backend.directory(name).heartbeats()) for name in names}
            for name, silent_s in silence.look(signs).items():
                if silent_s > IDLE_S:
                    raise FleetError(f"{name} gave no sign of life for {silent_s:.0f} s")
        time.sleep(_POLL_S)
    return [seen[name] for name in names]
