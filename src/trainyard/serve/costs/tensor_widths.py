"""Find the widest tensors of a step in the kernels of a device."""

from __future__ import annotations

from trainyard.serve.costs.kernels import Experts, StepGraph
from trainyard.serve.step_memory import StepMemory

__all__ = ["step_memory"]

_ACTIVATION_BYTES = 2
# Of a score: as computed, in float32, sorted, and its place (vLLM, vllm/v1/sample/ops/topk_topp_sampler.py,
# apply_top_k_top_p before pull request 33538); the sort has the places it begins with, and a second buffer of keys and
# places (PyTorch 2.11, aten/src/ATen/native/cuda/SortStable.cu, segmented_sort_pairs, from 128 sequences; CUB's radix
# sort). vLLM's pull request 32558 measures 40 bytes: 1.25 GiB for 256 sequences of 131,072 scores.
_SCORE_BYTES = 2 + 4 + 4 + 8 + 8 + (4 + 8)


def step_memory(graph: StepGraph) -> StepMemory:
    """The bytes of a token and of a sequence at the peaks of a step on one device."""
    widest = max(num for num, _ in graph.pointwise)
    widest = max([widest, *(_expert_elements(each) for each, _ in graph.experts)])
    words = max((each.columns for each, _ in graph.products if each.is_of_last_tokens), default=0)
    words = max([words, *(num for num, _ in graph.all_gathers)])
    return StepMemory(widest * _ACTIVATION_BYTES, graph.hidden * _ACTIVATION_BYTES, words * _SCORE_BYTES)


def _expert_elements(experts: Experts) -> int:
    """Elements of a token between the products of its experts, whose first and last results share memory."""
    first = experts.width * (2 if experts.is_gated else 1)
    return experts.num_used * (max(first, experts.hidden) + experts.width)
