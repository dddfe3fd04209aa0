"""How long a job may take, and until when it may come: simulations of what lies beyond do not come to their end."""

from __future__ import annotations

from trainyard.fleet.errors import FleetError, UnfitJobError
from trainyard.fleet.workload.job import Declared, Job, Profile
from trainyard.fleet.workload.speeds import Speeds
from trainyard.reading import shown
from trainyard.reading.limits import LATEST_S, LONGEST_S, MOST_ROUNDS
from trainyard.reading.rows import Row

_LONGEST = f"{LONGEST_S:g} s (30 years)"


def check_length(row: Row, arrival_s: float, work: float, profile: Profile) -> None:
    """Refuse a job of Trainyard's own form that takes too long, or comes too late.

    Raises
    ------
    FleetError
        Names the line and the field.
    """
    if arrival_s > LATEST_S:
        raise row.error("arrival_s", f"a number of at least 0 and at most {LATEST_S:g}")
    if isinstance(profile, Declared) and work > LONGEST_S:
        raise row.error("length_s", f"a length of at most {_LONGEST}")
    if isinstance(profile, Speeds) and any(work > rate * LONGEST_S for rate in profile.rates if rate):
        raise row.error("speeds", f"speeds at which the work of {work:g} is done in at most {_LONGEST}, or 0")


def check_times(job: Job) -> None:
    """The same for a job of any trace, as far as it says how long it takes.

    Raises
    ------
    UnfitJobError
        Names the job.
    """
    if job.arrival_s > LATEST_S:
        raise UnfitJobError(
            "it comes too late",
            f"job {shown(job.name)} arrives at {job.arrival_s:g} s; allowed is at most {LATEST_S:g} s. Correct the "
            "trace, or leave the job out",
        )
    if isinstance(job.profile, Declared):
        check_duration(job, job.work)


def check_duration(job: Job, seconds: float, round_s: float | None = None) -> None:
    """The same for a job of which it is known how long it takes where it is fastest; infinite where it does not run.

    Parameters
    ----------
    round_s : length of the rounds in which it is decided who runs, if there are any.

    Raises
    ------
    UnfitJobError
        If it takes too long; names the job.
    FleetError
        If it takes too many rounds.
    """
    is_too_long = LONGEST_S < seconds < float("inf")
    if not is_too_long and (round_s is None or not MOST_ROUNDS < seconds / round_s < float("inf")):
        return
    said = f"job {shown(job.name)} takes {seconds:g} s on its devices"
    if is_too_long:
        raise UnfitJobError("it takes too long", f"{said}; allowed is at most {_LONGEST}: give it less work")
    assert round_s is not None
    raise FleetError(
        f"{said}, {seconds / round_s:,.0f} rounds of {round_s:g} s; allowed are {MOST_ROUNDS:,}, so take longer rounds "
        "(round_s, or the policy's own time), or give it less work"
    )
