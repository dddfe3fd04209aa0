"""Sarathi-Serve: prompts are computed in chunks, so that they do not stall decodes.

References
----------
A. Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024. Algorithm 3: a
step has a budget of tokens: first for all decodes, then for prompts that were begun, then for new ones; the last prompt
is cut where the budget ends. So every step takes about the same time, and every decoding request gets a token in it.

Fidelity: simplified. The budget is given. The paper finds it from an objective by measuring steps; that is left out.
"""

from __future__ import annotations

from trainyard.serve.admission import FIRST_COME, Admission
from trainyard.serve.errors import ServeError
from trainyard.serve.policies.token_budget import TokenBudget

__all__ = ["sarathi"]


def sarathi(
    chunk_tokens: int = 512, max_requests: int = 128, admission: Admission = FIRST_COME
) -> TokenBudget:
    """Stall-free batches.

    Parameters
    ----------
    chunk_tokens : most tokens in a step, of decodes and of prompt chunks together (the paper's tau).
    max_requests : most requests that run at once.
    admission : order in which waiting requests are admitted.

    Raises
    ------
    ServeError
        If ``chunk_tokens`` is below 1.
    """
    if chunk_tokens < 1:
        raise ServeError(f"chunk_tokens is {chunk_tokens}; allowed is 1 or more")
    return TokenBudget(chunk_tokens, max_requests, decodes_first=True, watermark=0.01, admission=admission)
