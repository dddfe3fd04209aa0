"""SGLang: hits in the order of the longest prefix, beside first come and beside the most that there can be."""

from __future__ import annotations

import numpy as np
import pytest
from served import Checked, request

from trainyard.serve.admission import FIRST_COME
from trainyard.serve.policies.longest_prefix import LongestPrefix
from trainyard.serve.policies.vllm import vllm


def _prompts(num_branches: int, num_leaves: int, seed: int) -> list[tuple[int, ...]]:
    """A tree: 64 tokens that all share, 64 of each branch, 16 of each leaf; in any order."""
    prompts = [
        (
            *range(64),
            *(1000 * (branch + 1) + token for token in range(64)),
            *(100_000 + branch * 100 + leaf,) * 16,
        )
        for branch in range(num_branches)
        for leaf in range(num_leaves)
    ]
    return [prompts[place] for place in np.random.default_rng(seed).permutation(len(prompts))]


def _hits(admission, prompts) -> int:
    """Tokens that were found, one request after the other, in a cache of little more than one branch."""
    instance = Checked(vllm(max_requests=1, admission=admission), num_blocks=12)
    given = [request(number, 0.0, len(prompt), 1, prompt_ids=prompt) for number, prompt in enumerate(prompts)]
    results = instance.run(given, next_token=lambda each: 0)
    return sum(each.cached_tokens for each in results.served)


@pytest.mark.parametrize("seed", range(3))
def test_depth_first_hits_as_much_as_can_be(seed):
    """Theorem 3.1: each edge of the tree is computed once, where the cache has room for the longest request."""
    num_branches, num_leaves = 6, 5
    prompts = _prompts(num_branches, num_leaves, seed)
    once = 64 + num_branches * (64 + num_leaves * 16)
    assert _hits(LongestPrefix(), prompts) == sum(map(len, prompts)) - once
    assert _hits(FIRST_COME, prompts) < 0.75 * _hits(LongestPrefix(), prompts)
