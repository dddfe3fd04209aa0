"""Priorities: mean waits of a queue beside the closed form of Cobham's paper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from trainyard.published import PaperTable, Row
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.instance import Instance
from trainyard.serve.policies.priority import Priority
from trainyard.serve.policies.token_budget import TokenBudget
from trainyard.serve.requests.generate import Constant, IndependentLengths, Poisson, generate_requests
from trainyard.serve.simulate_requests import simulate_requests
from trainyard.serve.step_time import LinearStepTime

_SERVICE_S, _NUM, _NUM_PRIORITIES = 0.01, 60_000, 3
_PROMPT_TOKENS = 100


def _rows() -> Iterator[Row]:
    for load in (0.5, 0.7):
        waits_s = _mean_waits_s(load)
        for priority in range(_NUM_PRIORITIES):
            before, with_it = (load * num / _NUM_PRIORITIES for num in (priority, priority + 1))
            theirs_s = load * _SERVICE_S / 2 / ((1 - before) * (1 - with_it))
            yield Row(f"load {load:g}, priority {priority}", 1e3 * theirs_s, 1e3 * waits_s[priority])


def _mean_waits_s(load: float) -> list[float]:
    """Return the mean wait of each priority where requests are served one after the other, each in the same time."""
    lengths = IndependentLengths(Constant(_PROMPT_TOKENS), Constant(1))
    drawn = generate_requests(_NUM, Poisson(load / _SERVICE_S), lengths, seed=0)
    priorities = np.random.default_rng(1).integers(0, _NUM_PRIORITIES, _NUM).tolist()
    requests = (
        each._replace(request=replace(each.request, priority=priority))
        for each, priority in zip(drawn, priorities, strict=True)
    )
    instance = Instance(TokenBudget(1000, 1, admission=Priority()), BlockCache(100, 16), prefix_caching=False)
    step_time = LinearStepTime(0.0, _SERVICE_S / _PROMPT_TOKENS, 0.0)
    served = simulate_requests(requests, [instance], step_time).served
    return [
        float(
            np.mean(
                [each.scheduled_s - each.arrival_s for each in served if each.request.priority == priority]
            )
        )
        for priority in range(_NUM_PRIORITIES)
    ]


TABLES = (
    PaperTable(
        "Cobham, 1954: the mean wait of priority p is W / ((1 - s(p-1)) (1 - s(p))), where W is that of what is left of "
        "the present service, and s(p) the load of priorities up to p",
        "mean wait, ms",
        f"simulated: {_NUM:,} requests of Poisson arrivals, one after the other, each {1e3 * _SERVICE_S:g} ms",
        _rows,
        tolerance=0.04,
        caveat="with so many requests, a mean is exact to a few per cent",
        is_slow=True,
    ),
)
