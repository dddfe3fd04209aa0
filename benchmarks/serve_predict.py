"""Predicted and measured latencies of an engine on this machine: the same requests, simulated and served.

Run `python benchmarks/serve_predict.py [--rate 8]`. The simulator gets step times that were measured here before, by
`measured_step_time`, with other requests. The machine must have nothing else to do.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import torch
from record import write_record
from serve import made

from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.catalog import parse_policies
from trainyard.serve.instance import Instance
from trainyard.serve.requests.generate import IndependentLengths, LogNormal, Poisson, generate_requests
from trainyard.serve.requests.prompts import with_prompt_ids
from trainyard.serve.results import Results
from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.engine import EngineOptions
from trainyard.serve.run.measure import measured_step_time
from trainyard.serve.run.serve_trace import serve_trace
from trainyard.serve.simulate import simulate_requests

_NUM = 600
_POLICIES = ("vllm", "sarathi(chunk_tokens=64)", "orca(max_requests=8)")
_OPTIONS = EngineOptions(num_blocks=400, block_tokens=16)
_LENGTHS = IndependentLengths(LogNormal(100, 0.8, 600), LogNormal(30, 0.8, 200))


def latencies(results: Results) -> dict[str, float]:
    """Means and 95th percentiles of a run."""
    ttft = results.of_served(lambda each: each.ttft_s)
    tpot = results.of_served(lambda each: each.tpot_s)
    return {
        "mean_ttft_s": float(ttft.mean()),
        "p95_ttft_s": float(np.percentile(ttft, 95)),
        "mean_tpot_s": float(tpot.mean()),
        "p95_tpot_s": float(np.percentile(tpot, 95)),
    }


def order(rows: Sequence[dict[str, dict[str, float]]], of: str) -> list[int]:
    """Numbers of the policies, the one with the shortest mean time to the first token first."""
    return sorted(range(len(rows)), key=lambda i: rows[i][of]["mean_ttft_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=8.0, help="requests per second")
    rate = parser.parse_args().rate
    torch.set_num_threads(1)
    model = CausalModel(made())
    step_time = measured_step_time(model)
    print(step_time)
    requests = list(with_prompt_ids(generate_requests(_NUM, Poisson(rate), _LENGTHS), model.vocabulary))
    rows = []
    for text in _POLICIES:
        ((_, policy),) = parse_policies(text)
        instance = Instance(policy, BlockCache(_OPTIONS.num_blocks, _OPTIONS.block_tokens), model.context)
        row = {
            "simulated": latencies(simulate_requests(requests, [instance], step_time)),
            "measured": latencies(serve_trace(requests, model, policy, _OPTIONS)),
        }
        row["error"] = {name: row["simulated"][name] / value - 1 for name, value in row["measured"].items()}
        rows.append(row)
        print(text)
        for name, error in row["error"].items():
            both = (
                f"{row['simulated'][name] * 1e3:8.2f} simulated, {row['measured'][name] * 1e3:8.2f} measured"
            )
            print(f"  {name.removesuffix('_s'):10} {both}, ms: {error:+.1%}")
    print(f"order of policies: {order(rows, 'simulated')} simulated, {order(rows, 'measured')} measured")
    write_record(
        "serve_predict",
        {
            "rate_per_s": rate,
            "step_time": asdict(step_time),
            "policies": dict(zip(_POLICIES, rows, strict=True)),
        },
    )


if __name__ == "__main__":
    main()
