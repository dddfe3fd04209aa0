"""The interface of batch policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from trainyard.serve.draft import BatchDraft
from trainyard.serve.errors import ServeError
from trainyard.serve.request_state import RequestState

__all__ = [
    "BatchPolicy",
    "EngineNeeds",
    "OraclePolicy",
    "PortablePolicy",
    "Preempt",
    "Repeats",
    "StoppingPolicy",
    "TrainingPolicy",
    "check_no_oracle",
    "reads_output_tokens",
]

Repeats = Literal["always", "while none waits", "never"]
Preempt = Literal["recompute", "swap", "swap samples"]
"""Requests that lose their blocks are computed again, or are swapped out to the host; or those of which several samples
run are swapped out, and others are computed again. Where the host has no room, all are computed again.
"""


class BatchPolicy(Protocol):
    """Decides which requests a replica computes in its next step."""

    @property
    def repeats(self) -> Repeats:
        """When the policy would decide on the same batch again, if all running requests decode in it.

        "always" lasts until one of them ends or blocks run out; "while none waits" also ends when a request arrives.
        """
        ...

    def start(self) -> Any:
        """Return its own state for one replica, or None. `decide` gets it, and may change it."""
        ...

    def decide(self, draft: BatchDraft, state: Any) -> None:
        """Make the next batch on the draft, of running and waiting requests; it may stay empty.

        Called when a step ends, and when a request arrives at an idle replica.
        """
        ...


@runtime_checkable
class StoppingPolicy(BatchPolicy, Protocol):
    """A batch policy that may stop a step while it runs.

    What the step computed is lost; blocks that were allocated for it stay with their requests. Then the next batch is
    made. Only for replicas without pipeline stages and data-parallel ranks, and only in simulation: an engine on this
    machine computes each step to its end.
    """

    def stops(self, arrived: RequestState, computed: Sequence[RequestState], state: Any) -> bool:
        """Whether a request that arrives stops the step that runs, which computes tokens of the others."""
        ...


@runtime_checkable
class TrainingPolicy(BatchPolicy, Protocol):
    """A batch policy that serves requests that train, by `BatchDraft.compute_backward`, too; others get none.

    Only for replicas without pipeline stages, and only in simulation: an engine on this machine only goes forward.
    """

    @property
    def trains(self) -> bool:
        """Whether it does so."""
        ...


@runtime_checkable
class OraclePolicy(BatchPolicy, Protocol):
    """A batch policy that may have to know how long outputs will be: what could be reached, beside what is.

    Only a simulation knows it. It writes ``output_tokens`` of each `RequestState` for such a policy, and for no other.
    """

    @property
    def reads_output_tokens(self) -> bool:
        """Whether it does."""
        ...


def reads_output_tokens(policy: BatchPolicy) -> bool:
    """Whether a policy has to know how long outputs will be."""
    return isinstance(policy, OraclePolicy) and policy.reads_output_tokens


def check_no_oracle(policy: BatchPolicy) -> None:
    """Refuse a policy for requests that are served for real.

    Raises
    ------
    ServeError
        If it has to know how long outputs will be.
    """
    if reads_output_tokens(policy):
        raise ServeError(
            "the policy has to know how long outputs will be (such as predict='oracle'), which only `trainyard serve "
            "simulate` and `serve plan` do; use another one"
        )


class EngineNeeds(NamedTuple):
    """Needs of a policy from an engine that keeps the blocks of the KV cache itself.

    Attributes
    ----------
    preempts_by : what becomes of the blocks of requests that are preempted.
    max_requests : that run at once, at most.
    max_batch_tokens : in a step, at most.
    """

    preempts_by: Preempt
    max_requests: int
    max_batch_tokens: int


@runtime_checkable
class PortablePolicy(BatchPolicy, Protocol):
    """A batch policy that says what it needs, so that engines of others can be driven by it."""

    def engine_needs(self, max_model_len: int) -> EngineNeeds:
        """Return the policy's needs from an engine whose longest sequence has so many tokens."""
        ...
