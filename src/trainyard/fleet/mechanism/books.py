"""The books of a run: one row of numbers for every job that is there, in arrays that are used again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.compiling import compiled
from trainyard.fleet.place.grants import Grants, Laid
from trainyard.fleet.workload.job import Job, Pace, rate_anywhere

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_INF = float("inf")

_REAL = (
    "arrival_s", "weight", "left", "rate", "turn", "since_s", "began_s", "finish_s", "attained_s", "attained_device_s",
    "attained_until_s", "placed_s", "waiting_since_s", "first_start_s", "job_s", "gang_rate", "best_rate",
)  # fmt: skip
_WHOLE = (
    "serial", "allowed", "num_devices", "held", "held_type", "num_preempted", "num_starts", "taken_over", "first_device",
)  # fmt: skip
# Where compiled functions find them in the block of their kind.
_LEFT = _REAL.index("left")
_RATE = _REAL.index("rate")
_TURN = _REAL.index("turn")
_SINCE_S = _REAL.index("since_s")
_BEGAN_S = _REAL.index("began_s")
_FINISH_S = _REAL.index("finish_s")
_ATTAINED_S = _REAL.index("attained_s")
_ATTAINED_DEVICE_S = _REAL.index("attained_device_s")
_ATTAINED_UNTIL_S = _REAL.index("attained_until_s")
_WAITING_SINCE_S = _REAL.index("waiting_since_s")
_FIRST_START_S = _REAL.index("first_start_s")
_ARRIVAL_S = _REAL.index("arrival_s")
_WEIGHT = _REAL.index("weight")
_PLACED_S = _REAL.index("placed_s")
_GANG_RATE = _REAL.index("gang_rate")
_BEST_RATE = _REAL.index("best_rate")
_SERIAL = _WHOLE.index("serial")
ALLOWED = _WHOLE.index("allowed")
NUM_DEVICES = _WHOLE.index("num_devices")
HELD = _WHOLE.index("held")
HELD_TYPE = _WHOLE.index("held_type")
_NUM_PREEMPTED = _WHOLE.index("num_preempted")
_NUM_STARTS = _WHOLE.index("num_starts")
FIRST_DEVICE = _WHOLE.index("first_device")


class Books:
    """Jobs that were submitted and have not ended. A job keeps its row until it ends; then another takes it.

    Columns are by row; ``active`` lists the rows in the order of arrival. What a running job has done is written
    down when its grant changes: between, it follows from ``since_s`` and ``rate``.

    Attributes
    ----------
    num_active : jobs that are there.
    jobs, grants : of every row; a job without grant waits.
    paces : how running jobs run that adapt themselves.
    reports : what any such job last reported, by row.
    courses : of such jobs that were asked, by row: how they would go on by device type; see `Snapshot.left_s`.
    serial : how many jobs were entered before it.
    arrival_s, num_devices, weight : of the job.
    allowed : device types that it can run on, as bits by their index.
    left : work to be done at ``since_s``; ``rate`` per second from then on. Until then a running job restarts, and does
        no work.
    began_s : when that began to be work, after the job got its devices or was set back; settling leaves it.
    turn : work left at which the job changes its pace; 0 for one that keeps it.
    finish_s : when the job ends, or changes its pace, if nothing else changes; infinite while it waits.
    attained_s, attained_device_s : time for which it had devices, and that times their number, at ``attained_until_s``.
    held, held_type : devices that it has, and index of their type.
    placed_s : when it got the devices that it has; settling and new shares leave it.
    waiting_since_s : when it last began to wait.
    job_s : jobs times time, over all jobs, when it was submitted.
    first_start_s : NaN before it.
    gang_rate : work per second on as many whole devices as it asks for; NaN where it matters where they lie.
    best_rate : the same on the type of device where that is most; NaN where nobody asked yet, or the job adapts itself.
    num_preempted, num_starts : how often it lost its devices, and got some or others.
    taken_over : 1 for a job that a scheduler before this one had admitted.
    first_device : where in the array of ``grants`` its devices begin.
    """

    def __init__(self) -> None:
        self.jobs: list[Job | None] = []
        self.paces: dict[int, Pace] = {}
        self.courses: dict[int, tuple[tuple[Floats, Floats], ...]] = {}
        self.reports: list[Any] = []
        self._rows = np.zeros(16, np.int64)
        self.num_active = 0
        self._entered = self._decided = 0
        self._unused: list[int] = []
        self._grow(16)
        self.grants = Grants(self.held, self.first_device)

    def _grow(self, size: int) -> None:
        # One block for all columns of a kind, so that a row is cleared at once.
        for names, block, kind in ((_REAL, "_real", np.float64), (_WHOLE, "_whole", np.int64)):
            before = getattr(self, block, np.zeros((len(names), 0), kind))
            grown = np.concatenate((before, np.zeros((len(names), size), kind)), axis=1)
            setattr(self, block, grown)
            for name, column in zip(names, grown, strict=True):
                setattr(self, name, column)
        self._unused += range(len(self.jobs) + size - 1, len(self.jobs) - 1, -1)
        self.jobs += [None] * size
        self.reports += [None] * size

    _real: Floats
    _whole: Ints
    arrival_s: Floats
    weight: Floats
    left: Floats
    rate: Floats
    turn: Floats
    since_s: Floats
    began_s: Floats
    finish_s: Floats
    attained_s: Floats
    attained_device_s: Floats
    attained_until_s: Floats
    placed_s: Floats
    waiting_since_s: Floats
    first_start_s: Floats
    job_s: Floats
    serial: Ints
    num_devices: Ints
    held: Ints
    held_type: Ints
    allowed: Ints
    num_preempted: Ints
    num_starts: Ints
    taken_over: Ints
    gang_rate: Floats
    best_rate: Floats
    first_device: Ints

    def job(self, row: int) -> Job:
        """The job of a row."""
        job = self.jobs[row]
        assert job is not None
        return job

    @property
    def blocks(self) -> tuple[Floats, Ints]:
        """All columns, of real and of whole numbers, as compiled functions take them."""
        return self._real, self._whole

    @property
    def active(self) -> Ints:
        """Rows of all jobs, in the order of arrival; a view that later changes write to."""
        return self._rows[: self.num_active]

    def decided(self) -> None:
        """A policy has decided on all jobs that are there."""
        self._decided = self._entered

    def was_admitted(self, rows: Ints) -> Bools:
        """Whether jobs were in a decision before, which did not refuse them."""
        return (self.serial[rows] < self._decided) | (self.taken_over[rows] > 0)

    def waiting(self) -> Ints:
        """Rows of the jobs that have no devices, in the order of arrival."""
        found = np.empty(self.num_active, np.int64)
        return found[: _waiting(self._rows, self.num_active, self.held, found)]

    def add(self, job: Job, now_s: float, allowed: int) -> int:
        """Enter a job that may run on the device types ``allowed``, as bits; return its row."""
        if not self._unused:
            self._grow(len(self.jobs))
            self.grants.held, self.grants.first = self.held, self.first_device
        row = self._unused.pop()
        self.jobs[row] = job
        whole = (self._entered, allowed, job.num_devices)
        reals = (job.arrival_s, job.weight, job.work, rate_anywhere(job))
        _enter(self._real, self._whole, row, now_s, reals, whole)
        self._entered += 1
        if self.num_active == len(self._rows):
            self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)))
        self._rows[self.num_active] = row
        self.num_active += 1
        return row

    def remove(self, row: int) -> None:
        """A job ended or was refused."""
        _remove(self._rows, self.num_active, row)
        self.num_active -= 1
        self.jobs[row] = self.reports[row] = None
        self.courses.pop(row, None)
        self._unused.append(row)

    def attained(self, rows: Ints, now_s: float) -> tuple[Floats, Floats]:
        """Time for which jobs had devices until now, and that times their number."""
        found = np.empty((2, len(rows)))
        _attained(self._real, self._whole, rows, now_s, found)
        return found[0], found[1]

    def facts(self, rows: Ints, now_s: float) -> Floats:
        """Devices held, asked for and allowed, time and device time attained, and when jobs first started: a row each."""
        found = np.empty((6, len(rows)))
        _facts(self._real, self._whole, rows, now_s, found)
        return found

    def left_at(self, rows: Ints, now_s: float) -> Floats:
        """Work that is left now."""
        found = np.empty(len(rows))
        _left_at(self._real, rows, now_s, found)
        return found

    def left_s_at(self, rows: Ints, now_s: float) -> tuple[Floats, bool]:
        """Time that jobs would still take on their gangs, NaN where that is to be asked; and whether it is of any."""
        found = np.empty(len(rows))
        return found, _left_s_at(self._real, rows, now_s, found)

    def settle(self, row: int, now_s: float) -> None:
        """Write down what a running job has done until now."""
        _settle(self._real, self._whole, row, now_s)

    def start(
        self, rows: Ints, given: Laid, kind_of: Ints, now_s: float, pauses_s: tuple[float, float]
    ) -> tuple[int, bool]:
        """Give jobs devices, or others than they have.

        Parameters
        ----------
        given : the devices of each.
        kind_of : index of the type of every device.
        pauses_s : time without work for a job that starts for the first time, and for one that starts again.

        Returns
        -------
        How many of them waited, and whether it is known how fast all of them run: each on its gang, wherever that is.
        """
        self.grants.forget(rows)
        room = self.grants.room(len(given.devices), self.active)
        waited, known = start_jobs(*self.blocks, rows, *given, kind_of, *room, now_s, pauses_s)
        self.grants.fill(len(given.devices))
        return waited, known

    def run(self, row: int, rate: float) -> None:
        """A job, settled until now, works at this rate from here on."""
        _run(self._real, row, rate)

    def adapt(self, row: int, pace: Pace) -> None:
        """A running job changes its pace by itself."""
        self.paces[row] = pace
        self.rate[row], self.turn[row] = pace.work_per_s, max(0.0, self.job(row).work - pace.until)
        self._expect(row)

    def stretch(self, row: int, now_s: float, times: float) -> None:
        """What is left of a job's restart takes so many times as long."""
        if self.since_s[row] > now_s:
            self.since_s[row] = self.began_s[row] = now_s + (self.since_s[row] - now_s) * times

    def part_of_start_left(self, row: int, now_s: float) -> float:
        """Of the time that a job does no work after it got its devices; 0 if it has none, or works."""
        if not self.held[row] or self.since_s[row] <= now_s:
            return 0.0
        return float((self.since_s[row] - now_s) / (self.since_s[row] - self.placed_s[row]))

    def delay(self, row: int, more_s: float) -> None:
        """A job that does no work yet begins to later."""
        self.since_s[row] += more_s
        self.began_s[row] = self.since_s[row]
        self._expect(row)

    def set_back(self, row: int, unsaved_s: float, now_s: float, restart_s: float) -> None:
        """A running job loses the work of the last ``unsaved_s`` seconds, and time to restart."""
        self.settle(row, now_s)
        self.left[row] = min(self.job(row).work, self.left[row] + unsaved_s * self.rate[row])
        self.since_s[row] = self.began_s[row] = max(self.since_s[row], now_s) + restart_s
        self._expect(row)

    def _expect(self, row: int) -> None:
        left, rate = self.left[row] - self.turn[row], self.rate[row]
        self.finish_s[row] = self.since_s[row] + left / rate if rate > 0 else _INF

    def release(self, rows: Ints, now_s: float, preempted: bool = False) -> None:
        """Take jobs' devices away; of those that are ``preempted`` that is counted."""
        self.forget(rows)
        release_jobs(*self.blocks, rows, now_s, preempted)

    def forget(self, rows: Ints) -> None:
        """Forget how jobs ran that wait now, and values of what they had."""
        self.grants.forget(rows)
        if self.paces:
            for row in rows.tolist():
                self.paces.pop(row, None)


@compiled
def _enter(real, whole, row, now_s, reals, wholes):  # type: ignore[no-untyped-def]
    real[:, row], whole[:, row] = 0.0, 0
    real[_ARRIVAL_S, row], real[_WEIGHT, row], real[_LEFT, row], real[_GANG_RATE, row] = reals
    real[_BEST_RATE, row] = real[_GANG_RATE, row]
    whole[_SERIAL, row], whole[ALLOWED, row], whole[NUM_DEVICES, row] = wholes
    real[_WAITING_SINCE_S, row], real[_FIRST_START_S, row], real[_FINISH_S, row] = now_s, np.nan, np.inf


@compiled
def _waiting(rows, count, held, found):  # type: ignore[no-untyped-def]
    num = 0
    for i in range(count):
        if held[rows[i]] == 0:
            found[num] = rows[i]
            num += 1
    return num


@compiled
def _remove(rows, count, row):  # type: ignore[no-untyped-def]
    place = 0
    while rows[place] != row:
        place += 1
    rows[place : count - 1] = rows[place + 1 : count]


@compiled
def _settle(real, whole, row, now_s):  # type: ignore[no-untyped-def]
    had_s = now_s - real[_ATTAINED_UNTIL_S, row]
    real[_ATTAINED_S, row] += had_s
    real[_ATTAINED_DEVICE_S, row] += had_s * whole[HELD, row]
    if now_s > real[_SINCE_S, row]:
        done = (now_s - real[_SINCE_S, row]) * real[_RATE, row]
        real[_LEFT, row] = max(0.0, real[_LEFT, row] - done)
        real[_SINCE_S, row] = now_s
    real[_ATTAINED_UNTIL_S, row] = now_s


@compiled
def _attained(real, whole, rows, now_s, found):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        row = rows[i]
        stint_s = now_s - real[_ATTAINED_UNTIL_S, row] if whole[HELD, row] else 0.0
        found[0, i] = real[_ATTAINED_S, row] + stint_s
        found[1, i] = real[_ATTAINED_DEVICE_S, row] + stint_s * whole[HELD, row]


@compiled
def _facts(real, whole, rows, now_s, found):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        row = rows[i]
        found[0, i], found[1, i], found[2, i] = whole[HELD, row], whole[NUM_DEVICES, row], whole[ALLOWED, row]
        found[5, i] = real[_FIRST_START_S, row]
    _attained(real, whole, rows, now_s, found[3:5])


@compiled
def _left_at(real, rows, now_s, found):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        row = rows[i]
        done = max(0.0, now_s - real[_SINCE_S, row]) * real[_RATE, row]
        found[i] = max(0.0, real[_LEFT, row] - done)


@compiled
def _left_s_at(real, rows, now_s, found):  # type: ignore[no-untyped-def]
    _left_at(real, rows, now_s, found)
    some = False
    for i in range(len(rows)):
        rate = real[_BEST_RATE, rows[i]]
        found[i] = found[i] / rate if rate != 0.0 else np.inf
        some |= np.isnan(rate)
    return some


@compiled
def start_jobs(real, whole, rows, devices, counts, kind_of, written, used, now_s, pauses_s):  # type: ignore[no-untyped-def]
    written[used : used + len(devices)] = devices
    waited, known, first = 0, True, 0
    for i in range(len(rows)):
        row = rows[i]
        if whole[HELD, row]:
            _settle(real, whole, row, now_s)
        else:
            waited += 1
        pause_s = pauses_s[1]
        if np.isnan(real[_FIRST_START_S, row]):
            real[_FIRST_START_S, row] = now_s
            pause_s = pauses_s[0]
        whole[HELD, row], whole[HELD_TYPE, row] = counts[i], kind_of[devices[first]]
        whole[FIRST_DEVICE, row] = used + first
        first += counts[i]
        whole[_NUM_STARTS, row] += 1
        real[_PLACED_S, row] = real[_ATTAINED_UNTIL_S, row] = now_s
        real[_SINCE_S, row] = real[_BEGAN_S, row] = now_s + pause_s
        rate = real[_GANG_RATE, row]
        if np.isnan(rate) or counts[i] != whole[NUM_DEVICES, row]:
            rate, known = 0.0, False
        _run(real, row, rate)
    return waited, known


@compiled
def _run(real, row, rate):  # type: ignore[no-untyped-def]
    real[_RATE, row] = rate
    left = real[_LEFT, row] - real[_TURN, row]
    real[_FINISH_S, row] = real[_SINCE_S, row] + left / rate if rate > 0 else np.inf


@compiled
def release_jobs(real, whole, rows, now_s, preempted):  # type: ignore[no-untyped-def]
    for row in rows:
        _settle(real, whole, row, now_s)
        whole[HELD, row], real[_RATE, row] = 0, 0.0
        whole[_NUM_PREEMPTED, row] += preempted
        real[_FINISH_S, row], real[_WAITING_SINCE_S, row] = np.inf, now_s
