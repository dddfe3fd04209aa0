"""Which of the requests that wait is admitted next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from trainyard.serve.draft import BatchDraft
from trainyard.serve.request_state import RequestState

__all__ = ["FIRST_COME", "Admission", "AdmissionHooks", "FirstCome"]


class Admission(Protocol):
    """The order in which a batch policy admits requests; it goes with any of them."""

    @property
    def in_order(self) -> bool:
        """Whether the next request stays the next one, whoever comes and whatever others get."""
        ...

    def start(self) -> Any:
        """What it keeps from decision to decision, of one instance; it may change it."""
        ...

    def begin(self, draft: BatchDraft, state: Any) -> None:
        """A batch is begun."""
        ...

    def next(self, draft: BatchDraft, state: Any) -> RequestState | None:
        """The request that is to be admitted next; None if none waits. If there is no room for it, nobody is admitted."""
        ...

    def admitted(self, request: RequestState, state: Any) -> None:
        """It was."""
        ...

    def end(self, draft: BatchDraft, state: Any) -> None:
        """The batch is made."""
        ...


class AdmissionHooks:
    """What an admission does where nothing is to be done; its order may change."""

    @property
    def in_order(self) -> bool:
        return False

    def start(self) -> Any:
        return None

    def begin(self, draft: BatchDraft, state: Any) -> None:
        pass

    def admitted(self, request: RequestState, state: Any) -> None:
        pass

    def end(self, draft: BatchDraft, state: Any) -> None:
        pass


@dataclass(frozen=True)
class FirstCome(AdmissionHooks):
    """First come, first served; requests that were preempted come before all others."""

    @property
    def in_order(self) -> bool:
        return True

    def next(self, draft: BatchDraft, state: Any) -> RequestState | None:
        return draft.first_waiting


FIRST_COME = FirstCome()
"""The order where no other is given."""
