"""Predicted and measured latencies of an engine on this machine: the same requests, simulated and served.

Run `python benchmarks/serve_predict.py [--rate 8]`. The simulator gets step times that are measured just before, with
other requests. The machine must have nothing else to do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from record import finish, parser
from serve import made

from trainyard.serve.requests.generate import IndependentLengths, LogNormal, Poisson, generate_requests
from trainyard.serve.requests.prompts import with_prompt_ids
from trainyard.serve.results import Results
from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.engine import EngineOptions
from trainyard.serve.run.simulated_and_served import simulated_and_served

_NUM, _SMALLEST_NUM = 600, 3
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
    options = parser(__doc__)
    options.add_argument("--rate", type=float, default=8.0, help="requests per second")
    given = options.parse_args()
    torch.set_num_threads(1)
    model = CausalModel(made(given.smallest))
    num = _SMALLEST_NUM if given.smallest else _NUM
    requests = list(with_prompt_ids(generate_requests(num, Poisson(given.rate), _LENGTHS), model.vocabulary))
    rows = []
    for each in simulated_and_served(",".join(_POLICIES), requests, model, _OPTIONS):
        row = {"simulated": latencies(each.simulated.results), "measured": latencies(each.served.results)}
        row["error"] = {name: row["simulated"][name] / value - 1 for name, value in row["measured"].items()}
        rows.append(row)
        print(each.name)
        for name, error in row["error"].items():
            both = (
                f"{row['simulated'][name] * 1e3:8.2f} simulated, {row['measured'][name] * 1e3:8.2f} measured"
            )
            print(f"  {name.removesuffix('_s'):10} {both}, ms: {error:+.1%}")
    print(f"order of policies: {order(rows, 'simulated')} simulated, {order(rows, 'measured')} measured")
    results = {"rate_per_s": given.rate, "policies": dict(zip(_POLICIES, rows, strict=True))}
    finish("serve_predict", results, given.smallest)


if __name__ == "__main__":
    main()
