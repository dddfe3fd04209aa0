"""What happens to requests when blocks run out, and when some are free again."""

from __future__ import annotations

from typing import get_args

from trainyard.serve.draft import BatchDraft
from trainyard.serve.errors import ServeError
from trainyard.serve.policy import Preempt
from trainyard.serve.request_state import RequestState

__all__ = ["check_preempt", "decode_or_preempt", "next_swapped", "preempt_all"]


def check_preempt(given: str) -> None:
    """Refuse an unknown way to preempt.

    Raises
    ------
    ServeError
        Lists them.
    """
    if given not in get_args(Preempt):
        raise ServeError(f"preempt is {given!r}; allowed is one of {', '.join(map(repr, get_args(Preempt)))}")


def preempt_all(draft: BatchDraft, states: list[RequestState], preempt: Preempt) -> None:
    """Preempt some requests, or samples of one, together."""
    swaps = preempt == "swap" or (preempt == "swap samples" and len(states) > 1)
    if not (swaps and draft.swap_out(states)):
        for each in reversed(states):  # the first of them waits before the others
            draft.preempt(each)


def decode_or_preempt(
    draft: BatchDraft,
    state: RequestState,
    num_tokens: int,
    others: list[RequestState],
    preempt: Preempt = "recompute",
    together: bool = False,
) -> bool:
    """Put the next tokens of a running request in the batch; others lose their blocks for it, or at last it does itself.

    Parameters
    ----------
    others : requests that may lose their blocks, the last one first; those that did are removed from the list.
    preempt : what happens to them.
    together : whether all samples of a request lose their blocks together, unless nothing else runs.

    Returns
    -------
    Whether it is in the batch.
    """
    while not draft.compute(state, num_tokens):
        last = others[-1] if others else state
        group = draft.group(last) if together else [last]
        if len(group) == draft.num_running:
            group = [last]
        preempt_all(draft, group, preempt)
        if len(group) > 1:
            others[:] = [each for each in others if each.blocks]
        elif others:
            others.pop()
        if not state.blocks:
            return False
    return True


def next_swapped(
    draft: BatchDraft, max_requests: int, spare_blocks: int, together: bool = False
) -> list[RequestState]:
    """Swap in the first swapped-out request, or all its samples, and return them; none if there is no room.

    Parameters
    ----------
    max_requests : most requests that run at once.
    spare_blocks : blocks that stay free, unless nothing else runs.
    together : whether all samples come back together, if an empty device has room for them.
    """
    swapped = draft.swapped
    if not swapped:
        return []
    group = draft.group(swapped[0]) if together else swapped[:1]
    if not _fits(draft, group, max_requests, spare_blocks):
        group = swapped[:1]
        if draft.num_running or not _fits(draft, group, max_requests, spare_blocks):
            return []
    return group if draft.swap_in(group) else []


def _fits(draft: BatchDraft, group: list[RequestState], max_requests: int, spare_blocks: int) -> bool:
    """Whether there is room for requests that are swapped out, each with its next token."""
    if len(group) == 1 and not draft.num_running:
        return draft.num_new_blocks(group[0], group[0].num_tokens) <= draft.num_free
    left = draft.num_free - len({block for each in group for block in each.host_blocks}) - len(group)
    if not draft.num_running:
        return left >= 0
    num = sum(1 + each.num_to_fork for each in group)
    return left >= spare_blocks and draft.num_running + num <= max_requests
