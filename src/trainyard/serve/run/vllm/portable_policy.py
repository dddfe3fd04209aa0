"""Which batch policies can drive vLLM."""

from __future__ import annotations

from trainyard.serve.catalog import parse_policies
from trainyard.serve.errors import ServeError
from trainyard.serve.policy import EngineNeeds, PortablePolicy, StoppingPolicy, check_no_oracle

__all__ = ["portable_policy"]


def portable_policy(text: str, max_model_len: int) -> tuple[PortablePolicy, EngineNeeds]:
    """Read the name of a policy that drives an engine which keeps the blocks of the KV cache itself.

    Parameters
    ----------
    text : as `parse_policies` reads it, with one policy.
    max_model_len : the longest sequence, in tokens.

    Returns
    -------
    The policy, and what it needs of the engine.

    Raises
    ------
    ServeError
        If it does not say what it needs, moves blocks to the host, or has to know how long outputs will be.
    """
    ((name, policy),) = parse_policies(text)
    if not isinstance(policy, PortablePolicy):
        raise ServeError(
            f"policy {name} does not drive vLLM: it does not say what it needs of an engine; define engine_needs, as "
            "trainyard.serve.policy says"
        )
    check_no_oracle(policy)
    needs = policy.engine_needs(max_model_len)
    if isinstance(policy, StoppingPolicy):
        raise ServeError(
            f"policy {name} does not drive vLLM: it stops steps, which vLLM computes to their ends"
        )
    if needs.preempts_by != "recompute":
        raise ServeError(
            f"policy {name} does not drive vLLM: it swaps requests out; allowed is preemption by recompute, such as "
            "vllm, or vllm_v0(preempt='recompute')"
        )
    return policy, needs
