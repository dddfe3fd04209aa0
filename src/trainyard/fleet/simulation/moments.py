"""What happens at a moment and in which order, and when a decision matters: the same in Python and in compiled code."""

from __future__ import annotations

from trainyard.compiling import lean

# What may happen before the policy is asked next.
NOTHING, NODES, END, ARRIVAL, FAILURE = range(5)


@lean
def next_event(until_s, nodes_s, end_s, arrival_s, failure_s):  # type: ignore[no-untyped-def]
    """What happens next until a moment; of one time nodes come and go first, then jobs end, then they come.

    A job that fails does so after all of these: who ends at that time has ended.

    Parameters
    ----------
    until_s : when the policy is asked next.
    nodes_s, end_s, arrival_s, failure_s : when nodes come or go next, a job ends, comes, or fails; infinite for never.
    """
    first_s = min(until_s, end_s, arrival_s)
    if failure_s < min(first_s, nodes_s):
        return FAILURE
    if nodes_s <= first_s:
        return NODES
    if end_s <= until_s and end_s <= arrival_s:
        return END
    return ARRIVAL if arrival_s <= until_s else NOTHING


@lean
def may_change(preempts, num_active, num_waiting, num_free, stands, free_when_blocked):  # type: ignore[no-untyped-def]
    """Whether a decision could have an effect: of a policy that takes nothing away, only if something is free.

    Parameters
    ----------
    stands : whether the last decision holds for as long as nobody waits.
    free_when_blocked : what `free_for_none` said of the last decision.
    """
    if preempts:
        return num_active > 0 and (num_waiting > 0 or not stands)
    return num_waiting > 0 and num_free > 0 and num_free != free_when_blocked


@lean
def free_for_none(blocks, num_waiting, num_pools, num_free):  # type: ignore[no-untyped-def]
    """Devices that are free and that nobody is to have until there are others, or -1.

    That is so of one pool in which a job found no place and blocks all later ones; of several, jobs that come may have
    room in another.
    """
    return num_free if blocks and num_waiting > 0 and num_pools == 1 else -1
