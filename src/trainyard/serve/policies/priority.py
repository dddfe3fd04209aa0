"""Priority: the most urgent request is admitted first, and equally urgent ones in order of arrival.

References
----------
A. Cobham, "Priority Assignment in Waiting Line Problems", Journal of the Operations Research Society of America 2(1),
1954: one queue with several priorities, in which a request that is being served is served to its end. Servers call this
priority scheduling; in them the least urgent running requests also lose their blocks first. Here the batch policy says
which request loses its blocks; preempted requests are admitted before all others, since part of their work is done.

Fidelity: exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.serve.policies.sorted_admission import SortedAdmission
from trainyard.serve.request_state import RequestState

__all__ = ["Priority"]


@dataclass(frozen=True)
class Priority(SortedAdmission):
    """An order of admission by `Request.priority`; a smaller number is more urgent."""

    @property
    def reads_priority(self) -> bool:
        return True

    def key(self, state: RequestState) -> int:
        return state.request.priority
