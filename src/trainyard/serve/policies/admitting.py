"""Base of batch policies that take the order of admission as an option."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from trainyard.serve.admission import FIRST_COME, Admission, OracleAdmission
from trainyard.serve.draft import BatchDraft
from trainyard.serve.policy import EngineNeeds, Repeats

__all__ = ["MAX_REQUESTS", "NO_BLOCKS", "PREEMPTED", "SWAPPED", "TOKEN_BUDGET", "AdmittingPolicy"]

MAX_REQUESTS = "the limit of running requests is reached: {}"
TOKEN_BUDGET = "the step's budget of {} tokens is spent"
NO_BLOCKS = "the next request needs more blocks of the KV cache than are free: {} and {}"
PREEMPTED = "blocks ran out, and a running request was preempted"
SWAPPED = "swapped-out requests go first: {}"
"""Why requests wait; see `BatchDraft.explain_wait`."""


@dataclass(frozen=True)
class AdmittingPolicy(ABC):
    """A batch policy that works with any order of admission.

    Attributes
    ----------
    splits_samples : whether each sample of a request computes its prompt itself, as a request of its own.
    admission : order in which waiting requests are admitted.
    """

    splits_samples: ClassVar[bool] = False
    admission: Admission = field(default=FIRST_COME, kw_only=True)

    @property
    def repeats(self) -> Repeats:
        """While others only decode, blocks become fewer: the next request finds no room later if it finds none now."""
        return "always" if self.admission.in_order else "while none waits"

    @property
    def reads_output_tokens(self) -> bool:
        """Whether its order of admission has to know how long outputs will be."""
        return isinstance(self.admission, OracleAdmission) and self.admission.reads_output_tokens

    def start(self) -> Any:
        return self.admission.start()

    def decide(self, draft: BatchDraft, state: Any) -> None:
        if self.splits_samples:
            draft.split_samples()
        self.admission.begin(draft, state)
        self.make(draft, state)
        self.admission.end(draft, state)

    @abstractmethod
    def engine_needs(self, max_model_len: int) -> EngineNeeds:
        """Return what the policy needs of an engine whose longest sequence has so many tokens."""

    @abstractmethod
    def make(self, draft: BatchDraft, state: Any) -> None:
        """Make the batch; ``state`` is that of the admission."""
