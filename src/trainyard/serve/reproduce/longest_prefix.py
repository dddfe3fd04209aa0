"""SGLang: hits in a cache that is small beside the tree of prefixes, and the most that there can be."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trainyard.published import PaperTable, Row
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.instance import Instance
from trainyard.serve.policies.longest_prefix import LongestPrefix
from trainyard.serve.policies.vllm import vllm
from trainyard.serve.reproduce.programs.vidur import STEP_TIME
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.simulate import simulate_requests

_ROOT, _BRANCH, _LEAF = 64, 64, 16
"""Tokens that all prompts begin with, that those of a branch go on with, and at last of each."""
_NUM_BLOCKS = 12  # of 16 tokens, where a prompt has 9
_TREES = ((3, 40), (6, 5), (20, 5))


def _prompts(num_branches: int, num_leaves: int) -> list[tuple[int, ...]]:
    """In any order."""
    prompts = [
        (
            *range(_ROOT),
            *range(1000 * (branch + 1), 1000 * (branch + 1) + _BRANCH),
            *(100_000 + 100 * branch + leaf,) * _LEAF,
        )
        for branch in range(num_branches)
        for leaf in range(num_leaves)
    ]
    return [prompts[place] for place in np.random.default_rng(0).permutation(len(prompts)).tolist()]


def _hits(prompts: list[tuple[int, ...]]) -> int:
    """Tokens that were found, one request after the other."""
    instance = Instance(vllm(max_requests=1, admission=LongestPrefix()), BlockCache(_NUM_BLOCKS, 16))
    requests = [
        TracedRequest(Request(str(number), 0.0, len(prompt), 1, prompt_ids=prompt), 1)
        for number, prompt in enumerate(prompts)
    ]
    results = simulate_requests(requests, [instance], STEP_TIME, next_token=lambda _: 0)
    return sum(each.cached_tokens for each in results.served)


def _rows() -> Iterator[Row]:
    for num_branches, num_leaves in _TREES:
        prompts = _prompts(num_branches, num_leaves)
        tokens = sum(map(len, prompts))
        once = _ROOT + num_branches * (_BRANCH + num_leaves * _LEAF)
        label = f"{num_branches} branches of {num_leaves}"
        yield Row(label, 100 * (1 - once / tokens), 100 * _hits(prompts) / tokens)


TABLES = (
    PaperTable(
        "Zheng et al., NeurIPS 2024, theorem 3.1: depth first, each edge of the tree of prefixes is computed once",
        "% of the tokens of prompts that hit",
        f"simulated, one request at a time, in a cache of {_NUM_BLOCKS} blocks of 16 tokens; prompts share {_ROOT} "
        f"tokens, those of a branch {_BRANCH} more, and each has {_LEAF} of its own",
        _rows,
        tolerance=1e-9,
    ),
)
