"""The order in which waiting requests are admitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from trainyard.serve.draft import BatchDraft
from trainyard.serve.request_state import RequestState

__all__ = ["FIRST_COME", "Admission", "AdmissionHooks", "FirstCome", "OracleAdmission"]


class Admission(Protocol):
    """The order in which a batch policy admits waiting requests; it combines with any batch policy of the catalog."""

    @property
    def in_order(self) -> bool:
        """Whether the next request stays the next one when others arrive or are served."""
        ...

    @property
    def reads_priority(self) -> bool:
        """Whether the order depends on the priorities of requests."""
        ...

    def start(self) -> Any:
        """Return its own state for one replica, or None. The methods below get it, and may change it."""
        ...

    def begin(self, draft: BatchDraft, state: Any) -> None:
        """Called before each batch is made."""
        ...

    def next(self, draft: BatchDraft, state: Any) -> RequestState | None:
        """The request to admit next; None if none waits. If it does not fit, no request is admitted."""
        ...

    def admitted(self, request: RequestState, state: Any) -> None:
        """Called when the request has been admitted."""
        ...

    def end(self, draft: BatchDraft, state: Any) -> None:
        """Called when the batch is complete."""
        ...


@runtime_checkable
class OracleAdmission(Admission, Protocol):
    """An order of admission that may have to know how long outputs will be, which only a simulation does."""

    @property
    def reads_output_tokens(self) -> bool:
        """Whether it reads ``output_tokens`` of `RequestState`."""
        ...


class AdmissionHooks:
    """Default methods of an admission: they do nothing, the order may change, and priorities do not count."""

    @property
    def reads_priority(self) -> bool:
        return False

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
"""The default order."""
