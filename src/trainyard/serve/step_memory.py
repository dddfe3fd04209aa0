"""Memory of the largest step of a server, which weights and KV cache leave free for its activations.

Before vLLM sizes its KV cache, it computes one step of as many tokens and sequences as it allows, and reserves the peak
of its memory. There are two peaks. In a layer, the operands and the result of its widest kernel are alive beside the
residual stream. At the end, the scores of all words of each sequence are sorted to draw a token; then of all layers only
the last hidden states are left.

Fidelity: the sampler of vLLM before pull request 33538 (2026), which sorts scores with PyTorch. Later versions draw from
8 or more sequences with a Triton kernel that sorts nothing and takes less. Left out are CUDA graphs, and memory that
libraries allocate beside PyTorch while the step runs.

References
----------
vLLM, ``vllm/v1/worker/gpu_worker.py``, ``determine_available_memory``: since pull request 19312 (2025), memory that was
in use before the worker's ``MemorySnapshot`` does not count, such as the CUDA context; ``memory_profiling`` adds what
came since. Before, all memory outside PyTorch counted, with the context.
vLLM, ``vllm/v1/worker/gpu_model_runner.py``, ``_dummy_sampler_run``: a token is drawn for the most sequences, with top-p
of 0.9 and top-k of all words but one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol, runtime_checkable

__all__ = ["DEFAULT_STEP", "BudgetedPolicy", "StepMemory", "StepSize", "largest_step"]


class StepSize(NamedTuple):
    """The largest step of a server.

    Attributes
    ----------
    num_tokens, num_sequences : the most tokens, and the most sequences, of a step; the defaults are those of vLLM.
    """

    num_tokens: int = 2048
    num_sequences: int = 256


DEFAULT_STEP = StepSize()
"""The largest step of a policy without a budget."""


@runtime_checkable
class BudgetedPolicy(Protocol):
    """A batch policy that limits the tokens and the requests of a step."""

    @property
    def max_batch_tokens(self) -> int:
        """Most tokens of a step."""
        ...

    @property
    def max_requests(self) -> int:
        """Most requests that run at once."""
        ...


class StepMemory(NamedTuple):
    """Memory of a step's tensors on one device.

    Attributes
    ----------
    token_bytes : bytes of a token in the widest kernel of a layer.
    hidden_bytes : bytes of a token between layers.
    sequence_bytes : bytes of a sequence while its next token is drawn.
    """

    token_bytes: int
    hidden_bytes: int
    sequence_bytes: int

    def peak_bytes(self, step: StepSize) -> int:
        """Return the bytes at the larger peak of a step."""
        num_sequences = min(step.num_sequences, step.num_tokens)
        drawing = step.num_tokens * self.hidden_bytes + num_sequences * self.sequence_bytes
        return max(step.num_tokens * (self.token_bytes + self.hidden_bytes), drawing)


def largest_step(policies: Iterable[object]) -> StepSize:
    """Return the largest step of some batch policies: the most tokens of any, and the most sequences of any.

    A policy without a budget counts as `DEFAULT_STEP`, and so do no policies.
    """
    steps = [
        StepSize(policy.max_batch_tokens, policy.max_requests)
        if isinstance(policy, BudgetedPolicy)
        else DEFAULT_STEP
        for policy in policies
    ]
    steps = steps or [DEFAULT_STEP]
    return StepSize(max(step.num_tokens for step in steps), max(step.num_sequences for step in steps))
