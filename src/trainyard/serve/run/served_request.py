"""What an engine keeps of a request while it serves it."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from trainyard.serve.request_state import RequestState
from trainyard.serve.run.sampling import SamplingParams
from trainyard.serve.run.structured_outputs import TokenConstraint

__all__ = ["ServedRequest"]


@dataclass
class ServedRequest:
    """A request that waits or runs, with all its samples.

    Attributes
    ----------
    state : of its first sample.
    stop_token_ids : tokens that end an answer.
    seed : of its first sample; the others have the next ones.
    checked : numbers of its samples that the check of batches knows.
    constraints : of its samples whose tokens are constrained, by number.
    """

    state: RequestState
    sampling: SamplingParams
    stop_token_ids: Set[int]
    seed: int
    checked: set[int]
    constraints: dict[int, TokenConstraint] = field(default_factory=dict)
