"""Measurements of servers on real devices, beside predictions of them by us and by others.

Run `python benchmarks/serve_truth.py DATA [AICONFIGURATOR] [EVERY]`. DATA is a folder with the measured runs and the
predictions of other programs (its README says which). AICONFIGURATOR is the folder of an installed aiconfigurator_core,
whose kernel times are then used, too. EVERY=N takes only every N-th of the measured configurations (8 by default).

Three sources of step times are compared: "device", the description of the device alone; "layers", profiles of a model's
layers on the device; "kernels", times of single kernels on the device. Nothing is fitted to what is compared here.

The measured configurations (`published/configurations.py`) are of three servers, each simulated with its own scheduler;
their errors are printed by server, and there for dense models and mixtures.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from published.compared import Compared, compare, rows_of, summary
from published.configurations import BLOCK_TOKENS, configurations
from record import finish, not_here, parser

from trainyard.hardware.parse import parse_cluster
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.deploy import deploy, served_model
from trainyard.serve.deployment import ServedModel
from trainyard.serve.errors import ServeError
from trainyard.serve.instance import Instance
from trainyard.serve.policies.vllm import vllm
from trainyard.serve.requests.request import MAX_TOKENS, PrefixBlocks, Request, TracedRequest
from trainyard.serve.results import Served
from trainyard.serve.simulate_requests import simulate_requests


@lru_cache(maxsize=64)
def split(model: str, device: str, shards: int, dtype: str, kernels: Path | None) -> ServedModel:
    """A model on a node of eight devices."""
    return served_model(
        model, parse_cluster(f"1x8x{device}"), tensor_parallel=shards, dtype=dtype, kernels=kernels
    )


def served(
    requests: Sequence[TracedRequest],
    model: ServedModel,
    max_tokens: int,
    max_requests: int,
    num_blocks: int = 10**6,
) -> list[Served]:
    """Requests under vLLM's policy."""
    instance = Instance(vllm(max_tokens, max_requests), BlockCache(num_blocks, BLOCK_TOKENS))
    return simulate_requests(requests, [instance], model.step_time).served


SHAREGPT_RUNS = (
    ("RTX4090/Llama-3.1-8B", "llama3-8b", "1x1xRTX4090", 1, 256, 2588),
    ("RTXPRO6000/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b", "1x2xRTXPRO6000", 2, 128, None),
)
"""Run, model, cluster, ranks of attention, requests at once, blocks of the cache (None: as many as fit)."""


def sharegpt_runs(data: Path, kernels: Path | None, most: int | None) -> Iterator[Compared]:
    """Requests of ShareGPT on vLLM 0.19, with profiles of the layers on the same device; beside LLMServingSim 2."""
    for run, name, cluster, ranks, max_requests, blocks in SHAREGPT_RUNS[:most]:
        rows = rows_of(data / "lss_vllm_requests.csv", run=run)
        rows.sort(key=lambda row: float(row["arrival_s"]))
        requests = [
            TracedRequest(
                Request(row["request"], float(row["arrival_s"]), int(row["input_toks"]), 4096),
                int(row["output_toks"]),
            )
            for row in rows[:most]
        ]
        measured = _means(rows, ttft="ttft_s", tpot="tpot_ms")
        sources = [("ours, layers", data), ("ours, device", None)]
        if kernels is not None and ranks > 1:
            sources.append(("ours, layers and collectives", Path(f"{data},{kernels}:vllm/0.19.0")))
        for by, source in sources:
            place = deploy(
                name,
                parse_cluster(cluster),
                data_parallel=ranks,
                num_replicas=1,
                kernels=source,
            )
            if blocks is not None:  # as the server had, even if ours would have a few less
                place = replace(place, num_blocks=blocks)
            instances = place.instances(vllm(2048, max_requests))
            found = simulate_requests(requests, instances, place.model.step_time).served
            yield from compare(run, by, found, measured)
        for what, value in _means(rows, ttft="sim_ttft_s", tpot="sim_tpot_ms").items():
            yield Compared(run, what, "LLMServingSim 2", measured[what], value)


def _means(rows: Sequence[dict[str, str]], ttft: str, tpot: str) -> dict[str, float]:
    return {
        "TTFT ms": 1e3 * float(np.mean([float(row[ttft]) for row in rows])),
        "TPOT ms": float(np.mean([float(row[tpot]) for row in rows])),
    }


def codellama_runs(data: Path, kernels: Path | None, most: int | None) -> Iterator[Compared]:
    """CodeLlama 34B on vLLM 0.11 and an H100; prompts begin with the same 1,024 tokens. Beside BLIS."""
    for theirs in rows_of(data / "blis_vs_measured.csv", gpu="H100", tp="1"):
        run = theirs["setting"]
        rows = sorted(
            rows_of(data / "blis_vllm_requests.csv", run=run), key=lambda row: float(row["arrival_s"])
        )
        measured = {what: float(theirs[f"measured_{name}"]) for what, name in _BLIS.items()}
        limits = [int(rows[0][key]) for key in ("max_num_batched_tokens", "max_num_seqs", "kv_cache_tokens")]
        if theirs["blis_latency_model"] == "roofline":
            for by, source in _sources(kernels):
                model = split("codellama-34b", "H100", 1, "bfloat16", source)
                found = served(
                    list(_codellama(rows[:most])), model, limits[0], limits[1], limits[2] // BLOCK_TOKENS
                )
                yield from compare(run, by, found, measured)
        by = f"BLIS, {theirs['blis_latency_model']}"
        for what, name in _BLIS.items():
            yield Compared(run, what, by, measured[what], float(theirs[f"blis_{name}"]))


_BLIS = {"TTFT ms": "ttft_ms", "TPOT ms": "tpot_ms"}


def _codellama(rows: Sequence[dict[str, str]]) -> Iterator[TracedRequest]:
    for number, row in enumerate(rows):
        tokens = int(row["prompt_tokens"])
        num_blocks = -(-tokens // BLOCK_TOKENS)
        alike = min(1024 // BLOCK_TOKENS, num_blocks)
        keys = (*range(alike), *((number + 1) * 10**6 + block for block in range(alike, num_blocks)))
        request = Request(
            row["index"], float(row["arrival_s"]), tokens, MAX_TOKENS, prefix=PrefixBlocks(keys, BLOCK_TOKENS)
        )
        yield TracedRequest(request, int(row["completion_tokens"]))


def _sources(kernels: Path | None) -> list[tuple[str, Path | None]]:
    return [("ours, device", None), *([("ours, kernels", kernels)] if kernels else [])]


def llama_70b_run(data: Path, kernels: Path | None, most: int | None) -> Iterator[Compared]:
    """Llama 3.1 70B on four H100, 300 requests of ShareGPT; beside five other programs."""
    run = "H100x4/Llama-3.1-70B"
    published = rows_of(data / "lss_paper_latency.csv", gpu="H100", setting="SD")
    truth = next(row for row in published if row["kind"] == "measured")
    measured = {what: float(truth[name]) for what, name in _PAPER.items()}
    trace = rows_of(data / "lss_traces.csv", trace=truth["trace"])
    requests = [
        TracedRequest(
            Request(row["request"], int(row["arrival_ns"]) * 1e-9, int(row["input_toks"]), MAX_TOKENS),
            int(row["output_toks"]),
        )
        for row in sorted(trace, key=lambda row: int(row["arrival_ns"]))[:most]
    ]
    for by, source in _sources(kernels):
        model = split("llama3-70b", "H100", 4, "bfloat16", source)
        yield from compare(run, by, served(requests, model, 2048, 256), measured)
    others = [(row["framework"], row, _PAPER) for row in published if row["kind"] != "measured"]
    blis = rows_of(data / "blis_vs_measured.csv", setting="SD")
    others += [(f"BLIS, {row['blis_latency_model']}", row, _BLIS_PAPER) for row in blis]
    for by, row, names in others:
        for what, name in names.items():
            if row[name]:
                yield Compared(run, what, by, measured[what], float(row[name]))


_PAPER = {"TTFT ms": "mean_ttft_ms", "TPOT ms": "mean_tpot_ms", "tokens/s": "throughput_tok_s"}
_BLIS_PAPER = {"TTFT ms": "blis_ttft_ms", "TPOT ms": "blis_tpot_ms", "tokens/s": "blis_tok_s"}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("data", type=Path, metavar="DATA")
    options.add_argument("kernels", type=Path, nargs="?", metavar="AICONFIGURATOR")
    options.add_argument("every", type=int, nargs="?", default=8, metavar="EVERY")
    given = options.parse_args()
    data, kernels = given.data, given.kernels
    if not data.is_dir():
        not_here(f"{data} is no folder; give the one of the measured runs")
    most = 1 if given.smallest else None  # runs, requests of a run, and configurations
    begin_s = time.process_time()
    left_out = Counter[str]()
    found: list[Compared] = []
    parts: list[Callable[[], Iterator[Compared]]] = [
        lambda: sharegpt_runs(data, kernels, most),
        lambda: codellama_runs(data, kernels, most),
        lambda: llama_70b_run(data, kernels, most),
        lambda: configurations(data, kernels, given.every, most, left_out),
    ]
    for part in parts:
        for each in _told(part):
            found.append(each)
    errors = summary(found)
    for key, error in errors.items():
        print(
            f"{key:95} {error['num']:4} mean {error['mean_error']:+7.1%}  median {error['median_error']:+7.1%}  "
            f"|median| {error['median_absolute_error']:6.1%}"
        )
    for reason, num in sorted(left_out.items()):
        print(f"left out of {reason}: {num} rows")
    results: dict[str, Any] = {
        "errors": errors,
        "rows_left_out": dict(sorted(left_out.items())),
        "every": given.every,
        "seconds": time.process_time() - begin_s,
    }
    finish("serve_truth", results, given.smallest)


def _told(part: Callable[[], Iterator[Compared]]) -> Iterator[Compared]:
    """What a part finds; why it stops, if it does."""
    try:
        yield from part()
    except (ServeError, ValueError) as error:
        print(f"left out: {error}")


if __name__ == "__main__":
    main()
