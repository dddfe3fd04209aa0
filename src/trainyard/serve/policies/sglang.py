"""SGLang: those first of whose prompt the cache has most.

References
----------
L. Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", NeurIPS 2024, arXiv:2312.07104.
Section 3: requests that share a prefix are served one after the other, while it is in the cache. Theorem 3.1: longest
shared prefix first is depth first search of the tree of prefixes, and finds as much as can be where all are known.

Fidelity: simplified. Prefixes are matched by whole blocks, not by tokens. The tree gives back leaves that were used
longest ago first; so does a cache of blocks, as a request gives back its last block first. The language is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainyard.serve.admission import AdmissionHooks
from trainyard.serve.draft import BatchDraft
from trainyard.serve.request_state import RequestState

__all__ = ["LongestPrefix"]


@dataclass(frozen=True)
class LongestPrefix(AdmissionHooks):
    """An order of admission; it goes with any batch policy. Of equal ones, the first in the queue comes first."""

    def next(self, draft: BatchDraft, state: Any) -> RequestState | None:
        first = draft.first_waiting
        if first is None or first.num_preemptions:
            return first
        return max(draft.waiting, key=draft.num_cached)
