"""How many requests a cache holds at once, and how much of it has tokens: what the paper of vLLM reports.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023: OPT-13B on
an A100 of 40 GB has 15,700 slots for tokens beside its weights (table 1). Prompts and answers are as long as those of
ShareGPT (figure 11). ORCA is there in three ways, by what it reserves for an answer: as much as there may be (Max), the
next power of two of its length (Pow2), and just its length (Oracle). The slots of a request lie in one piece, from a
buddy allocator, so that their number is a power of two.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from trainyard.published import PaperTable, Row
from trainyard.serve.batch import Batch
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.instance import Instance
from trainyard.serve.policies.admitting import AdmittingPolicy
from trainyard.serve.policies.orca import Orca
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.simulate_requests import simulate_requests
from trainyard.serve.step_time import LinearStepTime

__all__ = ["CacheUse", "cache_use", "num_requests_table", "used_table"]

_NUM_SLOTS = 15_700
_MOST_TOKENS = 2048
_MEANS = (161, 338)
_ORCA = Orca(max_requests=256)
_STEP_TIME = LinearStepTime(1.0, 0.0, 0.0)  # only the order of steps matters
_BY_RESERVATION = {"Max": (7.00, 20.4), "Pow2": (9.81, 26.8), "Oracle": (13.62, 38.2)}
"""Requests at once, and the used share in percent."""

CacheUse = tuple[float, float]
"""Requests that hold blocks, and the percentage of the slots of these that have tokens: means over steps."""


def _requests(reserved: str) -> Iterator[TracedRequest]:
    """All wait at once; lengths are exponential with the means of the figure, up to 1000.

    Parameters
    ----------
    reserved : for how many tokens ORCA makes room, by its name in the paper.
    """
    rng = np.random.default_rng(0)
    for number in range(300):
        prompt, output = (int(min(1 + rng.exponential(mean), 1000)) for mean in _MEANS)
        answer = {"Max": _MOST_TOKENS - prompt, "Pow2": _power_of_2(output), "Oracle": output}[reserved]
        slots = min(_power_of_2(prompt + answer), _MOST_TOKENS)
        yield TracedRequest(Request(str(number), 0.0, prompt, slots - prompt), output)


def _power_of_2(least: int) -> int:
    """The smallest one that is no less."""
    return 1 << (least - 1).bit_length()


@lru_cache(maxsize=8)
def cache_use(policy: AdmittingPolicy, reserved: str = "Max") -> CacheUse:
    """While requests wait."""
    instance = Instance(policy, BlockCache(_NUM_SLOTS // 16, 16))
    nums, shares = [], []

    def seen(_: int, now_s: float, batch: Batch) -> None:
        if instance.queues.waiting:
            running = instance.queues.running.values()
            nums.append(len(running))
            num_slots = 16 * sum(len(each.blocks) for each in running)
            shares.append(100 * sum(each.num_tokens for each in running) / num_slots)

    simulate_requests(_requests(reserved), [instance], _STEP_TIME, seen=seen, one_by_one=True)
    return float(np.mean(nums)), float(np.mean(shares))


def _rows(which: int, ours: AdmittingPolicy | None) -> Iterator[Row]:
    for reserved, theirs in _BY_RESERVATION.items():
        yield Row(f"ORCA ({reserved})", theirs[which], cache_use(_ORCA, reserved)[which])
    if ours is not None:
        yield Row("vLLM", (30.42, 96.3)[which], cache_use(ours)[which])


def num_requests_table(policy: AdmittingPolicy | None = None) -> PaperTable:
    """How many requests there are at once.

    Parameters
    ----------
    policy : that stands beside vLLM; without one there is only ORCA.
    """
    return PaperTable(
        "Kwon et al., SOSP 2023, figure 13a, OPT-13B and ShareGPT",
        "requests in a batch, mean",
        "simulated, as many slots; 300 requests that all come at once, lengths exponential with the means of ShareGPT",
        lambda: _rows(0, policy),
        tolerance=0.2,
        caveat="the paper has two requests per second, so requests do not always wait; our lengths are drawn",
    )


def used_table(policy: AdmittingPolicy | None = None) -> PaperTable:
    """How much of the cache has tokens; see `num_requests_table`."""
    return PaperTable(
        "Kwon et al., SOSP 2023, figure 2",
        "used slots in % of the allocated ones, mean",
        "simulated as the requests in a batch",
        lambda: _rows(1, policy),
        tolerance=0.1,
        caveat="our lengths are drawn, and free slots do not count",
    )
