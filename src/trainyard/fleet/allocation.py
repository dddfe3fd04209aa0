"""What a policy decides: who gets which devices, in one of three forms, and what else it has to say.

- `Queue`: jobs in the order of urgency. Who places them finds devices, as many as each asks for or the policy says.
- `Placed`: the very devices of every job, with a share of them where several jobs have the same ones.
- `TimeFractions`: of the time, that every job is to have devices of a type; rounds give them to jobs in turn.

A queue and placed jobs may have leases: ``until_s`` says when each gives its devices back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Queue(NamedTuple):
    """Jobs in the order of urgency, to be placed. All others wait, or lose their devices.

    Every array has an element for each job of ``order``, in that order, which is what "of each" means.

    Attributes
    ----------
    order : numbers (in the snapshot) of the jobs that may run, most urgent first.
    num_devices : of each, that it is to have; by default what it asks for.
    device_type : index into ``cluster.device_types`` of each; -1, the default, is any one type.
    consolidate : 1 for each that must lie on as few nodes as it can, 0 for one that may lie anywhere, -1, the default,
        for one of which the placement of the run decides.
    on_nodes : devices that each is to have of every node, a row each, as `TrialPlacement.find` finds them; it waits where
        they are not free. A row of zeros, the default, leaves a job to the placement.
    until_s : when each gives its devices back, unless a decision lets it have them for longer: a lease. The policy is
        asked when one ends; if it takes nothing away from jobs that run, that job waits again. By default never.
    backfill : whether a job may run before one that is more urgent and does not fit, as it may by default.
    one_queue : without backfill, whether a job that finds no place holds up all that come after it; by default those that
        could have some of the same nodes.
    blocks : a promise that saves decisions: while one of these jobs finds no place, none that arrives later would start
        either, so that the policy need not be asked about it.
    """

    order: Ints
    num_devices: Ints | None = None
    device_type: Ints | None = None
    consolidate: Ints | None = None
    on_nodes: Ints | None = None
    until_s: Floats | None = None
    backfill: bool = True
    one_queue: bool = False
    blocks: bool = False


class Placed(NamedTuple):
    """The very devices of jobs. All others wait, or lose their devices. Arrays are by job of ``order``, as in `Queue`.

    Attributes
    ----------
    order : numbers (in the snapshot) of the jobs that run.
    devices : of each, ascending; none for one that waits.
    share : of its devices that each gets; others may have the rest.
    batch_size, cpus, memory_bytes : of each; 0 is the job's own.
    until_s : as in `Queue`.
    """

    order: Ints
    devices: Sequence[tuple[int, ...]]
    share: Floats | None = None
    batch_size: Ints | None = None
    cpus: Floats | None = None
    memory_bytes: Floats | None = None
    until_s: Floats | None = None


class TimeFractions(NamedTuple):
    """What part of the time jobs are to have devices, from this decision to the next. Only rounds take fractions.

    Attributes
    ----------
    order : number (in the snapshot) of the job of every entry. A job may have an entry for every type, of which at most
        one runs at a time.
    device_type : index into ``cluster.device_types`` of each.
    fraction : of the time that each should have as many of these as its job asks for.
    partner : number of the job that has the same devices at the same time as each entry; -1 is none.
    leftovers : whether devices that no fraction claims in a round go to jobs whose fraction is 0.
    """

    order: Ints
    device_type: Ints
    fraction: Floats
    partner: Ints | None = None
    leftovers: bool = True


Given: TypeAlias = Queue | Placed | TimeFractions


@dataclass(frozen=True)
class Reasons(Mapping[int, str]):
    """Reasons in words by number of the job, put together only when somebody asks.

    Attributes
    ----------
    numbers : of the jobs that there is a reason for, ascending.
    say : the reason of one of them.
    """

    numbers: Ints
    say: Callable[[int], str]

    def __getitem__(self, number: int) -> str:
        if number not in self.numbers:
            raise KeyError(number)
        return self.say(number)

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers.tolist())

    def __len__(self) -> int:
        return len(self.numbers)


_NOTHING: Mapping[int, str] = MappingProxyType({})


class Allocation(NamedTuple):
    """What a policy decides.

    Attributes
    ----------
    given : who gets what.
    ask_again_s : when the policy wants to decide next, if nothing happens before: later than now, by default never.
    stands : a promise that saves decisions: the policy has nothing to change for as long as every job has devices.
    reasons : why a job waits, by its number, where there is more to say than what it asks for, what is free, and its
        place among those that wait.
    refused : jobs that will never run, by number, and why.
    """

    # A named tuple, as there is one for every decision: frozen dataclasses take six times as long to make.
    given: Given
    ask_again_s: float = float("inf")
    stands: bool = False
    reasons: Mapping[int, str] = _NOTHING
    refused: Mapping[int, str] = _NOTHING
