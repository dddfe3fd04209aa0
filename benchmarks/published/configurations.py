"""Measured configurations of three servers, each with the scheduler of its server.

A row of `aic_silicon.csv` is a closed loop: so many clients, each of which asks again when it has its answer. Two clients
were used, which the origin of a row tells apart. Both send 10 requests for each client after warm-up requests have ended,
let no answer end early, and give means over all 10, of which the first ones come at once.

- SemiAnalysis InferenceX (origins that are dates, dumps of its database, or analyses of it): lengths are drawn evenly
  from 0.8 of the given ones up to these (`utils/bench_serving/benchmark_serving.py` at commit 086eabbe, and
  `--random-range-ratio 0.8` in the README of InferenceMAX). Its scripts, `benchmarks/*.sh`, say how servers are started
  (`scheduler`).
- genai-perf, started by aiconfigurator (`src/aiconfigurator/eval/benchmarks/genai_perf_runner.py` at commit 5e161875):
  all lengths are the given ones, and servers have their defaults.

Clients of equal lengths stay in step in a simulation: SGLang computes all prompts before it decodes, so all answers end
in one step, and the next prompts come together again. Every prompt then waits for half of all of them. On SGLang and one
H200, the real clients drift apart. Examples are Llama-3.1-8B with prompts of 2,000, 4,000 and 8,000 tokens and answers of
100 (rows 1628, 1642, 1650): TTFT of 361, 398 and 594 ms and TPOT of 36, 32 and 31 ms were measured. Predicted are TTFT of
1,078, 1,152 and 1,281 ms and TPOT of 19 ms. If the first requests are spread over the time of one, predicted are TTFT of
61, 92 and 116 ms and TPOT of 27 to 29 ms. Row 1612 (prompts of 1,000 tokens) was measured in step: TTFT of 1,612 ms. All
prompts are different, so a cache of prefixes is not the cause. What lets clients drift is not known. So none drifts here,
and the TTFT predicted for such rows is too long.

That both publish means is what aiconfigurator's names of columns say (`silicon_ttft_avg`), not the table itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from published.compared import Compared, compare, rows_of
from trainyard.hardware.parse import parse_cluster
from trainyard.serve.deploy import served_model
from trainyard.serve.deployment import Deployment, ServedModel, cache_blocks_of
from trainyard.serve.errors import ServeError
from trainyard.serve.policies.sglang import SGLang
from trainyard.serve.policies.trtllm import TensorRTLLM
from trainyard.serve.policies.vllm import vllm
from trainyard.serve.policy import BatchPolicy
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.results import Served
from trainyard.serve.simulate_requests import simulate_requests

REQUESTS_OF_A_CLIENT, LEAST_LENGTH, BLOCK_TOKENS, NODE_SIZE = 10, 0.8, 16, 8
SYSTEMS = {"h100_sxm": "H100", "h200_sxm": "H200", "b200_sxm": "B200", "b300_sxm": "B300", "gb200": "GB200"}
MODELS = {
    "meta-llama/Llama-3.1-70B": "llama3-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama3-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama3-8b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-v3",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-v3",
    "MiniMaxAI/MiniMax-M2.5": "MiniMaxAI--MiniMax-M2.5",
    "moonshotai/Kimi-K2.5": "moonshotai--Kimi-K2.5",
}
"""Models of the zoo, or configurations that come with aiconfigurator."""
FORMATS = {"": "bfloat16", "bf16": "bfloat16", "fp8": "float8", "fp4": "float4", "int4": "float4"}


@dataclass(frozen=True)
class Row:
    """A measured configuration.

    Attributes
    ----------
    row : number in the table.
    server : vllm, sglang or trtllm.
    model, device, dtype : names of ours.
    tensor_parallel, data_parallel, expert_parallel : the split, as `deploy` takes it.
    clients, prompt_tokens, output_tokens : what is asked.
    is_inferencex : whether the client is that of InferenceX.
    measured : TTFT and TPOT, in ms.
    """

    row: str
    server: str
    model: str
    device: str
    dtype: str
    tensor_parallel: int
    data_parallel: int
    expert_parallel: bool
    clients: int
    prompt_tokens: int
    output_tokens: int
    is_inferencex: bool
    measured: tuple[float, float]


def read_row(row: dict[str, str]) -> Row | str:
    """A row of the table; or why it is left out."""
    shards, stages, ranks = (
        int(float(row[key] or 1)) or 1 for key in ("tp_size", "pp_size", "attention_dp_size")
    )
    experts = tuple(int(float(row[key] or 1)) or 1 for key in ("moe_tp_size", "moe_ep_size"))
    if row["model_path"] not in MODELS:
        return f"no graph of {row['model_path']}"
    if row["system"] not in SYSTEMS or row["precision"] not in FORMATS:
        return f"unknown system {row['system']} or precision {row['precision']}"
    if not row["concurrency"]:
        return "the number of clients is not given"
    if shards * ranks * stages > NODE_SIZE:
        return f"more than the {NODE_SIZE} devices of a node"
    if stages > 1 or (experts[0] > 1 and experts[1] > 1) or (ranks > 1 and experts != (1, shards * ranks)):
        return "experts are both cut and dealt out, or cut where attention is data parallel"
    return Row(
        row["row"],
        row["backend"],
        MODELS[row["model_path"]],
        SYSTEMS[row["system"]],
        FORMATS[row["precision"]],
        shards,
        ranks,
        experts[1] > 1,
        int(row["concurrency"]),
        int(row["isl"]),
        int(row["osl"]),
        row["origin"].count("/") < 2,
        (float(row["silicon_ttft_ms"]), float(row["silicon_tpot_ms"])),
    )


def scheduler(row: Row) -> BatchPolicy:
    """The server's scheduler, with its defaults on large GPUs or with what the scripts of InferenceX say.

    vLLM, 0.11 to 0.19: 8,192 tokens and 1,024 requests for the API server on GPUs with 70 GiB or more but the A100, else
    2,048 and 256 (`vllm/engine/arg_utils.py`: `_set_default_args`, in later versions `EngineArgs.get_batch_defaults`).
    SGLang: chunks of 8,192 tokens, and of 16,384 from 160 GB on (`server_args.py`). TensorRT-LLM: 8,192 tokens.
    """
    if row.server == "vllm":
        return vllm(8192, 1024)
    if row.server == "sglang":
        chunk, prompts = _sglang_tokens(row)
        most = _B200_FP8[row.tensor_parallel][0] if _is_b200_fp8(row) else SGLang.max_requests
        return SGLang(chunk, prompts, most, receive_interval=_receive_interval(row))
    return TensorRTLLM(_trtllm_tokens(row))


def _sglang_tokens(row: Row) -> tuple[int, int]:
    """Tokens of a chunk, and of the prompts of a step."""
    if row.is_inferencex and row.model == "deepseek-v3" and row.dtype == "float8":
        if row.device == "H200" or row.tensor_parallel == NODE_SIZE:  # dsr1_fp8_h200.sh, dsr1_fp8_b200.sh
            return 32768, 32768
        return 8192, 8192
    return (8192 if row.device in ("H100", "H200") else 16384), 16384  # also dsr1_fp4_b200.sh


_B200_FP8 = {4: (32, 0.95), 8: (128, 0.82)}
"""Of `dsr1_fp8_b200.sh`, by devices: `--max-running-requests` and `--mem-fraction-static` (SemiAnalysisAI/InferenceX,
`benchmarks/dsr1_fp8_b200.sh`, commit 1fc5d73c)."""


def _is_b200_fp8(row: Row) -> bool:
    """Whether a row is of SGLang as `dsr1_fp8_b200.sh` starts it."""
    what = (row.server, row.model, row.device, row.dtype)
    is_started_so = what == ("sglang", "deepseek-v3", "B200", "float8") and row.tensor_parallel in _B200_FP8
    return is_started_so and row.is_inferencex


def _cache_blocks(row: Row, model: ServedModel) -> int:
    """Blocks of the server's cache, each as large as one of ours.

    SGLang's share of the memory is of weights and cache together, with activations in the rest
    (`_profile_available_bytes` of `python/sglang/srt/model_executor/model_runner_kv_cache_mixin.py`, commit 4fa3482).
    """
    if not _is_b200_fp8(row):
        return cache_blocks_of(model, BLOCK_TOKENS) * _cache_formats(row)
    device, share = parse_cluster(f"1x1x{row.device}").devices[0], _B200_FP8[row.tensor_parallel][1]
    model = replace(model, usable_bytes=int(share * device.usable_bytes))
    cache_bytes = model.usable_bytes - model.weight_bytes
    return cache_blocks_of(model, BLOCK_TOKENS, cache_bytes) * _cache_formats(row)


def _receive_interval(row: Row) -> int:
    """Steps of decodes after which the server receives requests: dsr1_fp8_b200.sh, dsr1_fp4_b200.sh."""
    if not (row.is_inferencex and row.model == "deepseek-v3" and row.device == "B200"):
        return 1
    return 30 if row.clients >= 16 and (row.tensor_parallel == NODE_SIZE or row.dtype == "float4") else 10


def _waits_for_prompts(row: Row) -> bool:
    """Whether the server lets prompts wait for others: 70b_fp8_h200_trt_slurm.sh, dsr1_fp8_b200_trt.sh."""
    if not (row.server == "trtllm" and row.is_inferencex and row.prompt_tokens == row.output_tokens == 1024):
        return False
    return (row.model == "llama3-70b" and row.tensor_parallel < NODE_SIZE) or (
        row.model == "deepseek-v3" and row.dtype == "float8" and 64 <= row.clients < 256
    )


def _cache_formats(row: Row) -> int:
    """Tokens of the server's cache for each of one with 16 bits: 2 where its script has a cache of 8 bits."""
    if not row.is_inferencex or row.dtype == "bfloat16":
        return 1
    has_8_bits = (
        (row.model == "llama3-70b")
        or (row.model == "gpt-oss-120b" and row.device == "B200")
        or (row.model == "deepseek-v3" and (row.server == "trtllm" or row.device == "B200"))
    )
    return 2 if has_8_bits else 1


def _trtllm_tokens(row: Row) -> int:
    """Most tokens of a step."""
    if not row.is_inferencex:
        return 8192
    if row.model == "gpt-oss-120b":  # gptoss_fp4_h200_trt.sh
        return 20000
    if row.model == "llama3-70b":  # 70b_fp8_h200_trt_slurm.sh: the longest sequence
        return row.prompt_tokens + row.output_tokens + 200
    return max(8192, -(-(row.clients + row.prompt_tokens + 64) // 64) * 64)  # dsr1_fp8_b200_trt.sh


def requests_of(row: Row) -> Iterator[TracedRequest]:
    """Requests of all clients, each of which asks again when it has its answer."""
    rng = np.random.default_rng(int(row.row))
    for client in range(row.clients):
        parent = ""
        for wave in range(REQUESTS_OF_A_CLIENT):
            prompt, output = row.prompt_tokens, row.output_tokens
            if row.is_inferencex:
                prompt, output = (
                    int(rng.integers(int(LEAST_LENGTH * each), each + 1)) for each in (prompt, output)
                )
            name = f"{client}.{wave}"
            yield TracedRequest(Request(name, 0.0, prompt, output, parent=parent), output)
            parent = name


@lru_cache(maxsize=16)
def _model(
    name: str, device: str, shards: int, ranks: int, is_dealt: bool, dtype: str, source: Path | None
) -> ServedModel:
    return served_model(
        name,
        parse_cluster(f"1x{NODE_SIZE}x{device}"),
        tensor_parallel=shards,
        data_parallel=ranks,
        expert_parallel=is_dealt and ranks == 1,
        dtype=dtype,
        kernels=source,
    )


@lru_cache(maxsize=16)
def _config(name: str, kernels: Path) -> str:
    """A folder with a configuration that comes with aiconfigurator."""
    folder = Path(mkdtemp(prefix="trainyard-"))
    (folder / "config.json").write_text((kernels / "model_configs" / f"{name}_config.json").read_text())
    return str(folder)


def _served(row: Row, model: ServedModel) -> list[Served]:
    blocks = _cache_blocks(row, model)
    longest = min(model.context, blocks * BLOCK_TOKENS)
    place = Deployment(model, 1, blocks, longest, BLOCK_TOKENS)
    results = simulate_requests(requests_of(row), place.instances(scheduler(row)), model.step_time)
    if results.refused:
        raise ServeError(f"the server refuses {results.refused[0].why}")
    return results.served


def configurations(
    data: Path, kernels: Path | None, every: int, most: int | None, left_out: Counter[str]
) -> Iterator[Compared]:
    """Every so many of the rows that can be described, by the device and by kernels; beside aiconfigurator.

    Parameters
    ----------
    kernels : folder of aiconfigurator_core; None to leave out its kernels, and its models that the zoo lacks.
    most : rows, those of the least work; None for all.
    left_out : gets the number of rows by server and reason.
    """
    theirs = {row["silicon_row"]: row for row in rows_of(data / "aic_vs_silicon.csv")}
    rows = []
    for given in rows_of(data / "aic_silicon.csv", mode="agg"):
        row = read_row(given)
        if not isinstance(row, str) and "--" in row.model and kernels is None:
            row = "the configuration of its model comes with aiconfigurator"
        elif not isinstance(row, str) and _waits_for_prompts(row):
            row = "the server lets prompts wait for others, which is not simulated"
        if isinstance(row, str):
            left_out[f"{given['backend']}: {row}"] += 1
        else:
            rows.append(row)
    if most is not None:
        rows = sorted(rows, key=lambda row: row.clients * (row.prompt_tokens + row.output_tokens))[:most]
    for row in sorted(rows[::every], key=lambda row: (row.model, row.tensor_parallel, row.device, row.dtype)):
        for by, source in (("ours, device", None), ("ours, kernels", kernels)):
            if by == "ours, device" or source is not None:
                yield from _compared(row, by, source, kernels, left_out)
        other = theirs.get(row.row)
        if other and other["aic_tpot_ms"]:
            for what, name, value in zip(_WHAT, ("aic_ttft_ms", "aic_tpot_ms"), row.measured, strict=True):
                groups = (f"all of {row.server}",)
                yield Compared(_run(row), what, "aiconfigurator", value, float(other[name]), groups)


_WHAT = ("TTFT ms", "TPOT ms")


def _run(row: Row) -> str:
    return f"{row.server}, {row.model} on {row.device}"


def _compared(
    row: Row, by: str, source: Path | None, kernels: Path | None, left_out: Counter[str]
) -> Iterator[Compared]:
    """One source of step times; nothing where it does not cover the row."""
    name = _config(row.model, kernels) if "--" in row.model and kernels else row.model
    tables = None if source is None else Path(f"{source}:{row.server}")
    try:
        model = _model(
            name, row.device, row.tensor_parallel, row.data_parallel, row.expert_parallel, row.dtype, tables
        )
        results = _served(row, model)
    except ServeError as error:
        left_out[f"{row.server}, {by}: {_reason(error)}"] += 1
        return
    kind = "mixtures" if model.has_experts else "dense models"
    groups = (f"all of {row.server}", f"{kind} of {row.server}")
    yield from compare(_run(row), by, results, dict(zip(_WHAT, row.measured, strict=True)), groups)


def _reason(error: ServeError) -> str:
    """An error without numbers, which would tell rows apart that are left out for the same reason."""
    return re.sub(r"/\S+", "PATH", re.sub(r"\d[\d,.]*", "N", str(error)))[:110]
