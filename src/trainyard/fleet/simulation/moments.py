"""What happens at a moment and in which order, and when a decision matters: the same in Python and in compiled code.

These are plain functions, which the loop compiles: to call a compiled one from Python takes longer than what they do.
"""

from __future__ import annotations

# What may happen before the policy is asked next.
NOTHING, NODES, END, ARRIVAL, FAILURE = range(5)


def next_event(until_s: float, nodes_s: float, end_s: float, arrival_s: float, failure_s: float) -> int:
    """What happens next until a moment; of one time nodes come and go first, then jobs end, then they come.

    A job that fails does so after all of these: who ends at that time has ended.

    Parameters
    ----------
    until_s : when the policy is asked next.
    nodes_s, end_s, arrival_s, failure_s : when nodes come or go next, a job ends, comes, or fails; infinite for never.
    """
    first_s, event = until_s, NOTHING
    if end_s <= until_s and end_s <= arrival_s:
        first_s, event = end_s, END
    elif arrival_s <= until_s:
        first_s, event = arrival_s, ARRIVAL
    if nodes_s <= first_s:
        return FAILURE if failure_s < nodes_s else NODES
    return FAILURE if failure_s < first_s else event


def may_change(
    preempts: bool, num_active: int, num_waiting: int, num_free: int, stands: bool, free_when_blocked: int
) -> bool:
    """Whether a decision could have an effect: of a policy that takes nothing away, only if something is free.

    Parameters
    ----------
    stands : whether the last decision holds for as long as nobody waits.
    free_when_blocked : what `free_while_blocked` said of the last decision.
    """
    if preempts:
        return num_active > 0 and (num_waiting > 0 or not stands)
    return num_waiting > 0 and num_free > 0 and num_free != free_when_blocked


def free_while_blocked(blocks: bool, num_waiting: int, is_one_pool: bool, num_free: int) -> int:
    """Devices that are free and that nobody is to have until there are others, or -1.

    That is so of one pool in which a job found no place and blocks all later ones; of several, jobs that come may have
    room in another.
    """
    return num_free if blocks and num_waiting > 0 and is_one_pool else -1
