"""SGLang: the request with the longest prefix in the cache is admitted first.

References
----------
L. Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", NeurIPS 2024, arXiv:2312.07104.
Section 3: requests that share a prefix are served one after the other, while it is in the cache. Theorem 3.1: longest
shared prefix first is a depth-first search of the tree of prefixes, and has the highest hit rate possible if all requests
are known.

Fidelity: simplified. Prefixes are matched by whole blocks, not by tokens. The paper's tree evicts the least recently used
leaves first. So does a cache of blocks, since a request frees its last block first. When many requests wait, the authors'
program falls back to first come, first served; here the first of them are compared. The language is left out.
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
    """An order of admission for any batch policy. Of equal requests, the first in the queue is admitted.

    Attributes
    ----------
    max_looked_at : how many waiting requests, from the first on, are compared; the limit bounds the time of a decision.
    """

    max_looked_at: int = 128

    def __post_init__(self) -> None:
        require_at_least(self, 1, "max_looked_at")

    def next(self, draft: BatchDraft, state: Any) -> RequestState | None:
        first = draft.first_waiting
        if first is None or first.num_preemptions:
            return first
        return max(islice(draft.waiting, self.max_looked_at), key=draft.num_cached)
