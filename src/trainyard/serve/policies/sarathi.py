"""Sarathi-Serve: prompts in chunks, so that they stall nobody who decodes.

Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024. A step has a budget
of tokens (Algorithm 3): first all that decode, then prompts that were begun, then new ones, cut where the budget ends.
So a step takes about the same time whatever comes, and each one that decodes gets a token in it.
"""

from __future__ import annotations

from trainyard.serve.admission import FIRST_COME, Admission
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
    """
    return TokenBudget(chunk_tokens, max_requests, decodes_first=True, watermark=0.01, admission=admission)
