"""What Vidur's schedulers put out for requests of a public trace, beside ours.

Agrawal et al., "Vidur: A Large-Scale Simulation Framework for LLM Inference", MLSys 2024; microsoft/vidur at 7d47513,
with the first 512 requests of its ``data/processed_traces/splitwise_conv.csv``, and with a linear step time in place of
its predictor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from trainyard.published import Files, PaperTable, Row
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.instance import Instance
from trainyard.serve.policy import BatchPolicy
from trainyard.serve.requests.read import read_requests
from trainyard.serve.results import Results, Served
from trainyard.serve.simulate_requests import simulate_requests
from trainyard.serve.step_time import LinearStepTime

__all__ = ["FILES", "SARATHI_S", "STEP_TIME", "VLLM_FOUR_S", "VLLM_S", "run", "run_table", "times"]

STEP_TIME = LinearStepTime(6e-3, 3e-5, 5e-5, 2e-8, 1.5e-9)
"""Of all programs whose outputs are compared; attention counts for Vidur only."""

FILES = Files(
    ("splitwise_conv.csv",),
    "git clone https://github.com/microsoft/vidur",
    "vidur/data/processed_traces",
)
_NUM_REQUESTS = 512
_MOST_TOKENS = 4096

_TIMES: Mapping[str, Callable[[Served], float]] = {
    "time to first token": lambda each: each.ttft_s,
    "time per token": lambda each: each.tpot_s,
    "time to last token": lambda each: each.e2e_s,
}

VLLM_S = {
    "end of the last request": 66.3257859,
    "time to first token, median": 12.5717998,
    "time to first token, 99 %": 29.1855662,
    "time to first token, mean": 12.6519178,
    "time per token, median": 0.0112378646,
    "time per token, 99 %": 0.015305696,
    "time to last token, mean": 15.5944652,
    "time to last token, 99 %": 32.3125718,
}
"""Scheduler `vllm`, one replica."""

SARATHI_S = {
    "end of the last request": 64.5037924,
    "time to first token, median": 11.5792765,
    "time to first token, 99 %": 27.3762767,
    "time to first token, mean": 11.810371,
    "time per token, median": 0.0106176049,
    "time per token, 99 %": 0.0143377929,
    "time to last token, mean": 14.6017286,
    "time to last token, 99 %": 30.4383215,
}
"""Scheduler `sarathi` with chunks of 512 tokens, one replica."""

VLLM_FOUR_S = {
    "end of the last request": 20.5200172,
    "time to first token, median": 0.966928461,
    "time to first token, 99 %": 2.99628786,
    "time to first token, mean": 1.086002,
    "time per token, median": 0.0108668542,
    "time per token, 99 %": 0.0169143007,
    "time to last token, mean": 3.88174991,
    "time to last token, 99 %": 7.7558179,
}
"""Scheduler `vllm`, four replicas that take turns, requests 2.5 times as fast."""


def run(folder: Path, policy: BatchPolicy, time_scale: float, num_replicas: int = 1) -> Results:
    """The requests under a policy.

    Parameters
    ----------
    folder : with the trace.
    time_scale : by which arrivals are multiplied.
    """
    requests = read_requests(
        folder / FILES.paths[0],
        limit=_NUM_REQUESTS,
        max_tokens=_MOST_TOKENS,
        time_scale=time_scale,
        max_num_tokens=_MOST_TOKENS,
        longer="cut_prompt",
    )
    instances = [
        Instance(policy, BlockCache(2000, 16), _MOST_TOKENS, prefix_caching=False)
        for _ in range(num_replicas)
    ]
    return simulate_requests(requests, instances, STEP_TIME)


def times(results: Results) -> dict[str, float]:
    """Seconds by name, as the program sums up a run."""
    found = {"end of the last request": results.end_s}
    for name, of in _TIMES.items():
        values = results.of_served(of)
        found[f"{name}, mean"] = float(values.mean())
        found[f"{name}, median"], found[f"{name}, 99 %"] = np.percentile(values, (50, 99)).tolist()
    return found


def run_table(
    name: str,
    policy: BatchPolicy,
    theirs_s: Mapping[str, float],
    time_scale: float = 0.25,
    num_replicas: int = 1,
) -> PaperTable:
    """What a scheduler of the program puts out.

    Parameters
    ----------
    name : of the scheduler there.
    policy : that repeats it.
    """

    def rows(folder: Path) -> Iterator[Row]:
        ours_s = times(run(folder, policy, time_scale, num_replicas))
        for label, seconds in theirs_s.items():
            yield Row(label, seconds, ours_s[label])

    replicas = "one replica" if num_replicas == 1 else f"{num_replicas} replicas"
    return PaperTable(
        f"The authors' program of Vidur, MLSys 2024, scheduler {name}, 512 requests of the Azure trace of conversations, "
        f"arrivals times {time_scale:g}, {replicas}",
        "s",
        "simulated by the rules of the program, the same requests, step time and blocks",
        rows,
        tolerance=1e-6,
        files=FILES,
    )
