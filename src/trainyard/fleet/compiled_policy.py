"""Decisions in compiled code, for simulations of very many jobs: what a policy sees there, and what it says.

A policy may offer its `decide` once more as a compiled function, from the same state to the same decision. The simulator
then runs through long stretches of events without coming back to Python (`fleet/simulation/compiled_run.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from trainyard.compiling import compiled, lean
from trainyard.fleet.jobs.job_facts import NUM_FACTS, left_s_of, stint_of
from trainyard.fleet.jobs.job_facts import facts as write_facts
from trainyard.fleet.jobs.job_table import Table
from trainyard.fleet.known import KnownJob
from trainyard.fleet.snapshot import Ints


class Seen(NamedTuple):
    """Snapshot for a compiled policy: jobs, numbered from 0 in the order of their arrival, and the cluster at one moment.

    Functions of this module return the attributes that a policy may know; the table is the simulator's own.

    Attributes
    ----------
    table : of all jobs; `JobTable.data`.
    rows : of every job in it.
    room : devices of every type.
    """

    table: Table
    rows: Ints
    now_s: float
    room: Ints


class CompiledPolicy(NamedTuple):
    """A policy in compiled code.

    Attributes
    ----------
    decide : from ``options``, the policy's state and a `Seen` to the numbers of the jobs that may run, most urgent first;
        ``Queue.consolidate``, empty where the placement of the run decides; when the policy wants to decide next; and
        the state then.
    options : what is fixed in it.
    backfill, one_queue, stands, blocks : as in `Queue` and `Allocation`, of all its decisions.
    mark : a number that the policy makes of every job when it comes, which compiled code cannot; see `mark_of`.
    """

    decide: Callable[..., Any]
    options: tuple[Any, ...]
    backfill: bool = True
    one_queue: bool = False
    stands: bool = True
    blocks: bool = False
    mark: Callable[[KnownJob], float] | None = None


@lean
def arrival_s(seen, number):  # type: ignore[no-untyped-def]
    """When a job came."""
    return seen.table[seen.rows[number]].arrival_s


@lean
def num_held(seen, number):  # type: ignore[no-untyped-def]
    """Devices that a job has."""
    return seen.table[seen.rows[number]].held


@compiled
def all_held(seen):  # type: ignore[no-untyped-def]
    """Devices that every job has."""
    return seen.table.held[seen.rows]


@lean
def attained_s(seen, number):  # type: ignore[no-untyped-def]
    """Time for which a job had devices."""
    row = seen.rows[number]
    return seen.table[row].attained_s + stint_of(seen.table, row, seen.now_s)


@lean
def attained_device_s(seen, number):  # type: ignore[no-untyped-def]
    """That, times their number."""
    row = seen.rows[number]
    stint_s = stint_of(seen.table, row, seen.now_s)
    return seen.table[row].attained_device_s + stint_s * seen.table[row].held


@lean
def left_s(seen, number):  # type: ignore[no-untyped-def]
    """Time that a job would still take on its gang, where it is fastest; for policies that need "length" and "speed"."""
    return left_s_of(seen.table, seen.rows[number], seen.now_s)


@lean
def left_device_s(seen, number):  # type: ignore[no-untyped-def]
    """That, times the devices that it asks for."""
    return left_s(seen, number) * seen.table[seen.rows[number]].num_devices


@compiled
def serials(seen):  # type: ignore[no-untyped-def]
    """Count the jobs that came before each job."""
    return seen.table.serial[seen.rows]


@lean
def mark_of(seen, number):  # type: ignore[no-untyped-def]
    """Return the value that the policy gave a job when the job came."""
    return seen.table[seen.rows[number]].mark


@compiled
def facts(seen, numbers):  # type: ignore[no-untyped-def]
    """Return `Snapshot.facts` of some jobs."""
    found = np.empty((NUM_FACTS, len(numbers)))
    write_facts(seen.table, seen.rows[numbers], seen.now_s, found)
    return found


BY_ARRIVAL, BY_TIME_LEFT, BY_DEVICE_TIME_LEFT, BY_TIME_ATTAINED, BY_DEVICE_TIME_ATTAINED = range(5)
"""Numbers of a job that `in_known_order` sorts by: for all of them the simulator's loop is compiled once."""


@compiled
def in_known_order(options, state, seen):  # type: ignore[no-untyped-def]
    """All jobs by one of the numbers above, smallest first, of equal ones the first to arrive.

    Parameters
    ----------
    options : the time after which to ask again while jobs wait, and which number.
    """
    quantum_s, which = options
    if which == BY_ARRIVAL:  # as they are numbered
        return np.arange(len(seen.rows)), np.zeros(0), _ask_again_s(quantum_s, seen), state
    keys = np.empty(len(seen.rows))
    for number in range(len(keys)):
        if which == BY_TIME_LEFT:
            keys[number] = left_s(seen, number)
        elif which == BY_DEVICE_TIME_LEFT:
            keys[number] = left_device_s(seen, number)
        elif which == BY_TIME_ATTAINED:
            keys[number] = attained_s(seen, number)
        else:
            keys[number] = attained_device_s(seen, number)
    return _smallest_first(keys), np.zeros(0), _ask_again_s(quantum_s, seen), state


@compiled
def in_order(options, state, seen):  # type: ignore[no-untyped-def]
    """The same by a number that the policy finds.

    Parameters
    ----------
    options : the time after which to ask again while jobs wait, and the function that finds the number.
    """
    quantum_s, key = options
    keys = np.empty(len(seen.rows))
    for number in range(len(keys)):
        keys[number] = key(seen, number)
    return _smallest_first(keys), np.zeros(0), _ask_again_s(quantum_s, seen), state


@compiled
def _smallest_first(keys):  # type: ignore[no-untyped-def]
    for number in range(1, len(keys)):
        if not keys[number - 1] <= keys[number]:
            return np.argsort(keys, kind="mergesort")
    return np.arange(len(keys))


@lean
def _ask_again_s(quantum_s, seen):  # type: ignore[no-untyped-def]
    """Return when to ask again; never if no job waits, as another order changes nothing."""
    if quantum_s < np.inf:
        for number in range(len(seen.rows)):
            if num_held(seen, number) == 0:
                return seen.now_s + quantum_s
    return np.inf
