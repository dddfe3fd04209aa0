"""Longest prefix first: the request with the longest prefix in the cache is admitted first, as SGLang's paper does.

References
----------
L. Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", NeurIPS 2024, arXiv:2312.07104.
Section 3: requests that share a prefix are served one after the other, while it is in the cache. Theorem 3.1: longest
shared prefix first is a depth-first search of the tree of prefixes, and has the highest hit rate possible if all
requests are known.

The program has this order as `--schedule-policy lpm`. It sorts the queue before each batch of prompts, and falls back
to first come, first served while more than 128 requests wait (sgl-project/sglang at commit 00550cd1,
`python/sglang/srt/managers/schedule_policy.py`, `_determine_active_policy`). With its scheduler, that is `sglang +
longest_prefix(most_waiting=128)`.

Fidelity: simplified. Prefixes are matched by whole blocks, not by tokens. The paper's tree evicts the least recently
used leaves first. So does a cache of blocks, since a request frees its last block first. Of a longer queue than
``max_looked_at``, only the first requests are compared. The program lets requests wait that share a prefix of the
prompt of another waiting one; that is left out, as is the language.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from trainyard.serve.admission import AdmissionHooks
from trainyard.serve.draft import BatchDraft
from trainyard.serve.errors import ServeError, require_at_least
from trainyard.serve.request_state import RequestState

__all__ = ["LongestPrefix"]


@dataclass
class _Order:
    """What holds for one batch.

    Attributes
    ----------
    is_first_come : whether too many requests wait to be compared.
    """

    is_first_come: bool = False


@dataclass(frozen=True)
class LongestPrefix(AdmissionHooks):
    """An order of admission for any batch policy. Of equal requests, the first in the queue is admitted.

    Attributes
    ----------
    max_looked_at : how many waiting requests, from the first on, are compared; the limit bounds the time of a decision.
    most_waiting : if more requests wait when a batch is begun, it admits them first come, first served; 0 for no limit.
    """

    max_looked_at: int = 128
    most_waiting: int = 0

    def __post_init__(self) -> None:
        require_at_least(self, 1, "max_looked_at")
        require_at_least(self, 0, "most_waiting")
        if self.most_waiting > self.max_looked_at:
            raise ServeError(
                f"most_waiting is {self.most_waiting} and max_looked_at {self.max_looked_at}; so many requests are all "
                "compared; give a max_looked_at that is not smaller"
            )

    def start(self) -> _Order:
        return _Order()

    def begin(self, draft: BatchDraft, state: _Order) -> None:
        state.is_first_come = 0 < self.most_waiting < draft.num_waiting

    def next(self, draft: BatchDraft, state: _Order) -> RequestState | None:
        first = draft.first_waiting
        if first is None or first.num_preemptions or state.is_first_come:
            return first
        return max(islice(draft.waiting, self.max_looked_at), key=draft.num_cached)
