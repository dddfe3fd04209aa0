"""SGLang: those first of whose prompt the cache has most.

References
----------
L. Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", NeurIPS 2024, arXiv:2312.07104.
Section 3: requests that share a prefix are served one after the other, while it is in the cache. Theorem 3.1: longest
shared prefix first is depth first search of the tree of prefixes, and finds as much as can be where all are known.

Fidelity: simplified. Prefixes are matched by whole blocks, not by tokens. The tree gives back leaves that were used
longest ago first; so does a cache of blocks, as a request gives back its last block first. Where many wait, the authors'
program goes back to first come; here the first of them are compared. The language is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

from trainyard.serve.admission import AdmissionHooks
from trainyard.serve.draft import BatchDraft
from trainyard.serve.errors import require_at_least
from trainyard.serve.request_state import RequestState

__all__ = ["LongestPrefix"]


@dataclass(frozen=True)
class LongestPrefix(AdmissionHooks):
    """An order of admission; it goes with any batch policy. Of equal ones, the first in the queue comes first.

    Attributes
    ----------
    max_looked_at : so many of those that wait, the first ones, are compared; with more, a decision would take long.
    """

    max_looked_at: int = 128

    def __post_init__(self) -> None:
        require_at_least(self, 1, "max_looked_at")

    def next(self, draft: BatchDraft, state: Any) -> RequestState | None:
        first = draft.first_waiting
        if first is None or first.num_preemptions:
            return first
        return max(islice(draft.waiting, self.max_looked_at), key=draft.num_cached)
