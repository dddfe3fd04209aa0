"""Steps and work items per second of the simulator of serving, by policy.

Run `python benchmarks/serve_simulate.py [TRACE]`. TRACE is one of Azure's traces (`AzureLLMInferenceTrace_conv.csv`),
served by four replicas; without it, requests are drawn with such lengths. A second part has 2,000 requests that come
faster than one replica serves them, so some always wait. Each policy runs twice: once equal decodes are one repeated
batch, and once every step is decided by itself. Both give the same times. A work item is a request in a step. Seconds are
processor seconds of one thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from record import finish, parser

from trainyard.serve.batch import Batch
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.catalog import parse_policies
from trainyard.serve.instance import Instance
from trainyard.serve.policy import BatchPolicy
from trainyard.serve.requests.generate import IndependentLengths, LogNormal, Poisson, generate_requests
from trainyard.serve.requests.read import read_requests
from trainyard.serve.requests.request import TracedRequest
from trainyard.serve.simulate_requests import simulate_requests
from trainyard.serve.step_time import LinearStepTime

POLICIES = "vllm, vllm_v0, sarathi, orca, vtc, shortest_prompt"
STEP_TIME = LinearStepTime(6e-3, 3e-5, 5e-5, 2e-8, 1.5e-9)
"""About that of a model of 7 B parameters on one device."""


def drawn(num: int, rate_per_s: float) -> Iterator[TracedRequest]:
    """Prompts and outputs of about the lengths of Azure's conversations."""
    return generate_requests(
        num,
        Poisson(rate_per_s),
        IndependentLengths(LogNormal(1155, 1.0, 4096), LogNormal(211, 0.9, 1000)),
        seed=0,
    )


def timed(
    policy: BatchPolicy, requests: Iterator[TracedRequest], num_replicas: int, one_by_one: bool
) -> dict[str, Any]:
    """One run."""
    num_items = 0

    def seen(number: int, start_s: float, batch: Batch) -> None:
        nonlocal num_items
        num_items += len(batch.items) * batch.repeat

    given = list(requests)
    instances = [Instance(policy, BlockCache(4000, 16)) for _ in range(num_replicas)]
    begin_s = time.process_time()
    results = simulate_requests(given, instances, STEP_TIME, seen=seen, one_by_one=one_by_one)
    seconds = time.process_time() - begin_s
    return {
        "num_requests": len(given),
        "num_steps": results.num_steps,
        "seconds": seconds,
        "steps_per_s": results.num_steps / seconds,
        "items_per_s": num_items / seconds,
        "mean_e2e_s": float(results.of_served(lambda each: each.e2e_s).mean()),
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("trace", type=Path, nargs="?", metavar="TRACE")
    given = options.parse_args()
    num_azure, num_busy = (30, 20) if given.smallest else (19_366, 2000)
    found: dict[str, Any] = {}
    for name, policy in parse_policies(POLICIES):
        for one_by_one in (False, True):
            how = "every step by itself" if one_by_one else "repeated"
            azure = read_requests(given.trace) if given.trace is not None else drawn(num_azure, 5.5)
            for load, requests, num in (("azure", azure, 4), ("busy", drawn(num_busy, 15.0), 1)):
                key = f"{load}, {name}, {how}"
                found[key] = timed(policy, requests, num, one_by_one)
                print(
                    f"{key}: " + ", ".join(f"{what} {value:.4g}" for what, value in found[key].items()),
                    flush=True,
                )
    finish("serve_simulate", found, given.smallest)


if __name__ == "__main__":
    main()
