"""SGLang: those first of whose prompt the cache has most.

Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", NeurIPS 2024, arXiv 2312.07104.
Requests that share a prefix are served one after the other, while it is in the cache (section 3, cache-aware
scheduling: "longest shared prefix first", which is depth first search of the tree of prefixes, and hits as much as can
be where all are known: theorem 3.1). Its radix tree gives back what was used longest ago, leaves first. So does our
cache of blocks, as a request gives back its last block first. The authors' program matches token by token, we by whole
blocks.
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
