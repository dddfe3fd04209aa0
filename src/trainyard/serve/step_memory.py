"""Memory of the largest step of a server, which its weights and KV cache leave free.

vLLM computes one step of as many tokens and sequences as it allows before it sizes its KV cache, and reserves what that
step has at its peak. There are two peaks. In a layer, what its widest kernel reads and writes is alive beside the
residual stream. At the end, the scores of all words of each sequence are sorted to draw a token; then the tensors of
layers are gone, except the hidden states.

Fidelity: the sampler of vLLM before pull request 33538 (2026), which sorts scores with PyTorch. Later versions draw from
8 or more sequences with a Triton kernel that sorts nothing and takes less. What libraries allocate beside PyTorch while
the step runs is left out, and so are CUDA graphs.

References
----------
vLLM, ``vllm/v1/worker/gpu_worker.py``, ``determine_available_memory``: since pull request 19312 (2025), memory that was
in use before the worker's ``MemorySnapshot`` counts not, such as the CUDA context; ``memory_profiling`` adds the growth
since. Before, all memory in use that is not PyTorch's counted, with the context.
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
    num_tokens, num_sequences : most of them in a step; the defaults are those of vLLM.
    """

    num_tokens: int = 2048
    num_sequences: int = 256


DEFAULT_STEP = StepSize()
"""Of policies without a budget."""


@runtime_checkable
class BudgetedPolicy(Protocol):
    """A batch policy with a budget for each step."""

    @property
    def max_batch_tokens(self) -> int:
        """Most tokens of a step."""
        ...

    @property
    def max_requests(self) -> int:
        """Most requests that run at once."""
        ...


class StepMemory(NamedTuple):
    """Bytes on one device of a step's tensors.

    Attributes
    ----------
    token_bytes : of a token in the widest place of a layer.
    hidden_bytes : of a token between layers.
    sequence_bytes : of a sequence while its next token is drawn.
    """

    token_bytes: int
    hidden_bytes: int
    sequence_bytes: int

    def peak_bytes(self, step: StepSize) -> int:
        """Bytes at the peak of a step."""
        num_sequences = min(step.num_sequences, step.num_tokens)
        drawing = step.num_tokens * self.hidden_bytes + num_sequences * self.sequence_bytes
        return max(step.num_tokens * (self.token_bytes + self.hidden_bytes), drawing)


def largest_step(policies: Iterable[object]) -> StepSize:
    """The largest step that any of some batch policies may make; `DEFAULT_STEP` stands for those without a budget."""
    steps = [
        StepSize(each.max_batch_tokens, each.max_requests)
        if isinstance(each, BudgetedPolicy)
        else DEFAULT_STEP
        for each in policies
    ]
    if not steps:
        return DEFAULT_STEP
    return StepSize(max(each.num_tokens for each in steps), max(each.num_sequences for each in steps))
