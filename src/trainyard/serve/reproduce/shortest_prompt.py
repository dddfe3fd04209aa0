"""Our own order where there is no paper: the least mean of requests that come at once, and a run of Vidur's Sarathi."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import numpy as np

from trainyard.published import PaperTable, Row
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.instance import Instance
from trainyard.serve.policies.sarathi import sarathi
from trainyard.serve.policies.shortest_prompt import ShortestPrompt
from trainyard.serve.policies.token_budget import TokenBudget
from trainyard.serve.reproduce.programs.vidur import FILES, SARATHI_S, run, times
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.simulate_requests import simulate_requests
from trainyard.serve.step_time import LinearStepTime

_TOKEN_S = 1e-4


def _least_rows() -> Iterator[Row]:
    for most in (1000, 4000):
        lengths = np.random.default_rng(0).integers(1, most, 100).tolist()
        requests = [TracedRequest(Request(str(n), 0.0, tokens, 1), 1) for n, tokens in enumerate(lengths)]
        policy = TokenBudget(most, 1, admission=ShortestPrompt(max_wait_s=1e6))
        instance = Instance(policy, BlockCache(1000, 16), prefix_caching=False)
        results = simulate_requests(requests, [instance], LinearStepTime(0.0, _TOKEN_S, 0.0))
        least_s = _TOKEN_S * sum(accumulate(sorted(lengths))) / len(lengths)
        yield Row(
            f"prompts of up to {most} tokens", least_s, float(results.of_served(lambda e: e.e2e_s).mean())
        )


def _sarathi_rows(folder: Path) -> Iterator[Row]:
    ours_s = times(run(folder, sarathi(2048, admission=ShortestPrompt()), 0.25))
    for label in ("time to last token, mean", "time to last token, 99 %"):
        yield Row(label, SARATHI_S[label], ours_s[label])


TABLES = (
    PaperTable(
        'W. E. Smith, "Various Optimizers for Single-Stage Production", 1956: shortest first has the least mean',
        "mean time to the only token, s",
        f"simulated: 100 prompts that come at once, one after the other, {1e3 * _TOKEN_S:g} ms for a token",
        _least_rows,
        tolerance=1e-9,
    ),
    PaperTable(
        "The authors' program of Vidur, MLSys 2024, scheduler sarathi, 512 requests of the Azure trace of conversations",
        "s",
        "simulated: sarathi(chunk_tokens=2048) + shortest_prompt, the same requests, step time and blocks",
        _sarathi_rows,
        tolerance=0.25,
        caveat="no paper has this order; the program admits requests first come, first served, in chunks of 512 tokens",
        files=FILES,
    ),
)
