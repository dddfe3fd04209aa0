"""Sarathi-Serve: prompts in chunks, so that they stall nobody who decodes.

References
----------
A. Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024. Algorithm 3: a
step has a budget of tokens, first for all that decode, then for prompts that were begun, then for new ones, cut where the
budget ends. So a step takes about the same time whatever comes, and each one that decodes gets a token in it.

Fidelity: simplified. The budget is given; how the paper finds it from an objective by measuring steps is left out.
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
    chunk_tokens : tau, tokens in a step.
    max_requests : that run at once.
    admission : in which order new requests are taken.

    Raises
    ------
    ServeError
        If there is room for no token.
    """
    if chunk_tokens < 1:
        raise ServeError(f"chunk_tokens is {chunk_tokens}; allowed is 1 or more")
    return TokenBudget(chunk_tokens, max_requests, decodes_first=True, watermark=0.01, admission=admission)
