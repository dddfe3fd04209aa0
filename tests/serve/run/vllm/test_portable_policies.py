"""Which policies drive an engine that keeps the blocks itself, and what they need of it."""

from __future__ import annotations

import pytest

from trainyard.serve.errors import ServeError
from trainyard.serve.run.vllm.portable_policy import portable_policy


@pytest.mark.parametrize(
    ("policy", "max_requests", "max_batch_tokens"),
    [
        ("vllm", 256, 2048),
        ("vllm(max_batch_tokens=64) + vtc", 256, 64),
        ("sarathi(chunk_tokens=96, max_requests=5)", 5, 96),
        ("orca(max_requests=3)", 3, 3000),
        ("vllm_v0(max_batch_tokens=100, preempt='recompute')", 256, 1000),
    ],
)
def test_a_policy_says_what_it_needs(policy, max_requests, max_batch_tokens):
    _, needs = portable_policy(policy, max_model_len=1000)
    assert needs == ("recompute", max_requests, max_batch_tokens)


@pytest.mark.parametrize("policy", ["vllm_v0", "vllm(preempt='swap')", "vllm_v0(preempt='swap samples')"])
def test_a_policy_that_swaps_is_refused_by_its_name(policy):
    with pytest.raises(ServeError) as refused:
        portable_policy(policy, 1000)
    assert f"policy {policy} does not drive vLLM: it swaps requests out" in str(refused.value)


def test_a_policy_that_has_to_know_lengths_is_refused():
    assert portable_policy("vllm + vtc(predict='moving average')", 1000)
    with pytest.raises(ServeError, match="has to know how long outputs will be"):
        portable_policy("vllm + vtc(predict='oracle')", 1000)


def test_a_policy_that_does_not_say_what_it_needs_is_refused_by_its_name(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "class Own:\n    repeats = 'never'\n    def start(self): ...\n    def decide(self, draft, state): ...\n"
    )
    with pytest.raises(ServeError, match=r"own\.py:Own does not drive vLLM.*define engine_needs"):
        portable_policy(f"{file}:Own", 1000)
