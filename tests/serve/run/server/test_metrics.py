"""Metrics by vLLM's names: what requests to a real engine count."""

from __future__ import annotations

from collections import defaultdict
from math import inf

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.serve.run.server.served_api import COMPLETION, FakeEngine, call_api

from trainyard.serve.run.outputs import STEP_TOKENS
from trainyard.serve.run.server.api_server import ServerLimits
from trainyard.serve.run.step_counts import StepCounts

_COUNTERS = {
    "prompt_tokens", "prompt_tokens_cached", "prompt_tokens_by_source", "generation_tokens", "prefix_cache_queries",
    "prefix_cache_hits", "request_success", "num_preemptions", "admission_rejections",
}  # fmt: skip
_GAUGES = {
    "num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc",
    "cache_config_info", "lora_requests_info",
}  # fmt: skip
_OF_ANSWERS = {
    "e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
    "request_decode_time_seconds", "request_inference_time_seconds", "request_time_per_output_token_seconds",
    "request_prompt_tokens", "request_generation_tokens", "request_params_max_tokens",
}  # fmt: skip
_HISTOGRAMS = _OF_ANSWERS | {
    "time_to_first_token_seconds", "inter_token_latency_seconds", "request_params_n", "iteration_tokens_total",
}  # fmt: skip


def values(text: str) -> dict[str, float]:
    """Values of samples by their names, summed over labels."""
    found: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                found[sample.name.removeprefix("vllm:")] += sample.value
    return found


def scraped(url: str) -> str:
    return httpx2.get(f"{url}/metrics").text


def test_names_types_and_labels_are_those_of_vllm(url):
    httpx2.post(f"{url}/v1/completions", json=COMPLETION | {"max_tokens": 2}, timeout=600)
    families = {family.name: family for family in text_string_to_metric_families(scraped(url))}
    for kind, names in (("counter", _COUNTERS), ("gauge", _GAUGES), ("histogram", _HISTOGRAMS)):
        for name in names:
            assert families[f"vllm:{name}"].type == kind, name
            assert families[f"vllm:{name}"].samples, name
    for family in families.values():
        if family.name.startswith("vllm:"):
            assert all({"engine", "model_name"} <= sample.labels.keys() for sample in family.samples), (
                family.name
            )
    (cache,) = families["vllm:cache_config_info"].samples
    assert (cache.labels["num_gpu_blocks"], cache.labels["block_size"], cache.value) == ("600", "8", 1)


def test_requests_are_counted(url):
    body = COMPLETION | {
        "max_tokens": 7,
        "n": 2,
        "ignore_eos": True,
        "prompt": [9, 8, 7, 6, 5, 4, 3, 2, 1, 9, 9],
    }
    before = values(scraped(url))
    for _ in range(2):  # the second one finds a block of the prompt
        answer = httpx2.post(f"{url}/v1/completions", json=body, timeout=600)
        assert answer.status_code == 200
    after = values(scraped(url))
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    assert {name: grown[f"{name}_count"] for name in _OF_ANSWERS} == dict.fromkeys(_OF_ANSWERS, 4)
    assert (grown["request_prompt_tokens_sum"], grown["request_generation_tokens_sum"]) == (44, 28)
    assert (grown["request_params_max_tokens_sum"], grown["request_params_n_sum"]) == (28, 4)
    assert grown["request_success_total"] == 4
    assert (grown["prompt_tokens_total"], grown["prompt_tokens_cached_total"]) == (22, 8)
    assert grown["prompt_tokens_by_source_total"] == 22
    # A step computes the prompt, and each later one a token of each answer; the last token is not computed.
    assert grown["iteration_tokens_total_sum"] == 22 - 8 + 2 * 2 * 6
    assert grown["iteration_tokens_total_count"] == 2 * 7
    times = [grown[f"request_{part}_time_seconds_sum"] for part in ("prefill", "decode")]
    assert min(*times, grown["request_queue_time_seconds_sum"]) >= 0
    assert grown["request_inference_time_seconds_sum"] == pytest.approx(sum(times))
    assert sum(times) <= grown["e2e_request_latency_seconds_sum"]
    assert grown["request_time_per_output_token_seconds_sum"] == pytest.approx(times[1] / 6)


def test_refusals_of_the_queue_are_counted_by_the_limit(tokenizer):
    engine = FakeEngine([5])
    limits = ServerLimits(max_queued_requests=1)

    async def work(client, api):
        api._queues["tiny"].enter(1, 3)
        found = await client.post("/v1/completions", json=COMPLETION)
        return found.status_code, (await client.get("/metrics")).text

    status, text = call_api(tokenizer, engine, work, limits=limits)
    assert status == 429
    labels = 'engine="0",model_name="tiny"'
    assert f'vllm:admission_rejections_total{{{labels},reason="max_num_queued_reqs"}} 1.0' in text
    assert f'vllm:admission_rejections_total{{{labels},reason="max_num_queued_tokens"}} 0.0' in text


def test_steps_are_counted_up_to_and_with_each_bound():
    counts = StepCounts()
    for num in (1, 8, 9, 20_000):
        counts.add(num)
    found = dict(zip((*STEP_TOKENS, inf), counts.cumulative, strict=True))
    assert [found[most] for most in (1, 8, 16, 16_384, inf)] == [1, 2, 3, 3, 4]
    assert counts.num_tokens == 20_018
