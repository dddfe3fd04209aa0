"""Priority: the most urgent request is admitted first, and equally urgent ones in order of arrival.

References
----------
A. Cobham, "Priority Assignment in Waiting Line Problems", Journal of the Operations Research Society of America 2(1),
1954: one queue of several priorities, in which whoever is served is served to the end. It is what servers call priority
scheduling; there, running requests of less urgency lose their blocks first, too. Here the batch policy says who loses
them, and requests that did come before all others, as they have computed something already.

Fidelity: exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.serve.policies.sorted_admission import SortedAdmission
from trainyard.serve.request_state import RequestState

__all__ = ["Priority"]


@dataclass(frozen=True)
class Priority(SortedAdmission):
    """An order of admission by `Request.priority`, of which a smaller one is more urgent."""

    @property
    def reads_priority(self) -> bool:
        return True

    def key(self, state: RequestState) -> int:
        return state.request.priority
