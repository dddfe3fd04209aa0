"""Steps put together from measured layers."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from finetuning import Finetuning
from shared_data import DATA, needs_data

from trainyard.hardware.parse import parse_cluster
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.catalog import parse_policies
from trainyard.serve.costs.model_step_time import ModelStepTime
from trainyard.serve.costs.tables.layer_profile import Exchange, read_layer_profile
from trainyard.serve.deploy import served_model
from trainyard.serve.errors import ServeError
from trainyard.serve.instance import Instance
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.simulate_requests import simulate_requests

_SHARED = DATA / "serving" / "predict"
_LAYERS = """gpu,model,tp,layer,per,count,time_us
G,a/M,1,embedding,tokens,1,1
G,a/M,1,embedding,tokens,101,2
G,a/M,1,layernorm,tokens,1,3
G,a/M,1,layernorm,tokens,101,5
G,a/M,1,qkv_proj,tokens,1,10
G,a/M,1,qkv_proj,tokens,101,20
G,a/M,1,lm_head,sequences,1,7
G,a/M,1,lm_head,sequences,11,8
"""
_ATTENTION = """gpu,model,tp,prefill_chunk,kv_prefill,n_decode,kv_decode,time_us
G,a/M,1,16,16,0,0,4
G,a/M,1,64,16,0,0,16
G,a/M,1,16,64,0,0,4
G,a/M,1,64,64,0,0,16
G,a/M,1,0,0,1,16,5
G,a/M,1,0,0,4,16,10
G,a/M,1,0,0,1,64,10
G,a/M,1,0,0,4,64,20
G,a/M,1,64,16,4,64,54
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "x_profile_layers.csv").write_text(_LAYERS)
    (tmp_path / "x_profile_attention.csv").write_text(_ATTENTION)
    return tmp_path


def test_layers_count_as_often_as_a_step_has_them(folder):
    profile = read_layer_profile(folder, "G", "a/M", 1, num_layers=10)
    # 51 tokens, half way: the look-up once, two norms and one product in each of ten layers.
    assert profile.tokens_s(51) == pytest.approx(1e-6 * (1.5 + 20 * 4 + 10 * 15))
    assert profile.sequences_s(6) == pytest.approx(7.5e-6)


def test_beyond_what_was_measured_layers_grow_as_between_the_last_points(folder):
    profile = read_layer_profile(folder, "G", "a/M", 1, num_layers=1)
    assert profile.tokens_s(201) == pytest.approx(1e-6 * (3 + 2 * 7 + 30))


def test_attention_of_prompts_and_decodes(folder):
    profile = read_layer_profile(folder, "G", "a/M", 1, num_layers=10)
    none = np.zeros(1)
    assert profile.attention_s([(64, 16)], 0, none) == pytest.approx(160e-6)
    # One kernel computes both prompts: what any kernel takes is counted once.
    assert profile.attention_s([(64, 16), (16, 16)], 0, none) == pytest.approx(160e-6)
    assert profile.attention_s((), 4, np.array([16.0, 64.0])) == pytest.approx([100e-6, 200e-6])
    # Together they were measured to take half as long again as one after the other.
    assert profile.attention_s([(64, 16)], 4, np.array([64.0])) == pytest.approx(540e-6)


def test_what_is_missing_is_told(folder, tmp_path):
    with pytest.raises(ServeError, match=r"no profile_layers\.csv of G, a/M, tp 2; it has G, a/M, tp 1"):
        read_layer_profile(folder, "G", "a/M", 2, 10)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ServeError, match=r"0 files that end in profile_layers\.csv"):
        read_layer_profile(empty, "G", "a/M", 1, 10)


def test_what_devices_exchange_is_added(folder):
    alone = read_layer_profile(folder, "G", "a/M", 1, 10)
    shared = read_layer_profile(folder, "G", "a/M", 1, 10, exchange=Exchange(lambda num: 1e-6 * num))
    assert shared.tokens_s(50) - alone.tokens_s(50) == pytest.approx(50e-6)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (_LAYERS.replace("time_us", "ms"), "has no column time_us; it needs gpu, model"),
        (_LAYERS.replace(",101,2", ",101,fast"), "allowed are sizes of 0 or more, and a time above 0"),
        (_LAYERS.replace(",101,2", ",101,0"), "a time above 0"),
        (_LAYERS.replace("sequences", "requests"), "per tokens or sequences"),
    ],
)
def test_a_profile_that_cannot_be_read_is_told(tmp_path, text, why):
    (tmp_path / "profile_layers.csv").write_text(text)
    (tmp_path / "profile_attention.csv").write_text(_ATTENTION)
    with pytest.raises(ServeError, match=why):
        read_layer_profile(tmp_path, "G", "a/M", 1, 10)


def test_weights_of_another_width_than_was_measured_are_refused(tmp_path):
    (tmp_path / "profile_layers.csv").write_text(_LAYERS.replace("G,a/M", "H100,gpt-tiny"))
    (tmp_path / "profile_attention.csv").write_text(_ATTENTION.replace("G,a/M", "H100,gpt-tiny"))
    cluster = parse_cluster("1x1xH100")
    for dtype in ("bfloat16", "float16"):
        assert served_model("gpt-tiny", cluster, kernels=tmp_path, dtype=dtype).source.startswith(
            "layers of gpt-tiny"
        )
    for dtype in ("float32", "float8", "float4"):
        with pytest.raises(
            ServeError, match=f"dtype {dtype} with profiles .* allowed are float16, bfloat16; leave"
        ):
            served_model("gpt-tiny", cluster, kernels=tmp_path, dtype=dtype)


@needs_data(_SHARED)
def test_a_real_server_is_predicted_from_the_kernels_of_its_device():
    """vLLM 0.19 on an RTX 4090, 300 requests of ShareGPT: within 3 % per token and 10 % to the first one."""
    run = "RTX4090/Llama-3.1-8B"
    with (_SHARED / "lss_vllm_requests.csv").open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["run"] == run]
    rows.sort(key=lambda row: float(row["arrival_s"]))
    requests = [
        TracedRequest(
            Request(row["request"], float(row["arrival_s"]), int(row["input_toks"]), 32768),
            int(row["output_toks"]),
        )
        for row in rows
    ]
    profile = read_layer_profile(_SHARED, "RTX4090", "meta-llama/Llama-3.1-8B", 1, num_layers=32)
    [(_, policy)] = parse_policies("vllm")
    results = simulate_requests(
        requests, [Instance(policy, BlockCache(2588, 16), 32768)], ModelStepTime(profile)
    )
    measured_tpot_s = np.mean([float(row["tpot_ms"]) for row in rows]) * 1e-3
    measured_ttft_s = np.mean([float(row["ttft_s"]) for row in rows])
    assert results.of_served(lambda each: each.tpot_s).mean() == pytest.approx(measured_tpot_s, rel=0.03)
    assert results.of_served(lambda each: each.ttft_s).mean() == pytest.approx(measured_ttft_s, rel=0.10)


def test_what_trains_is_refused_before_it_is_computed(folder):
    step_time = ModelStepTime(read_layer_profile(folder, "G", "a/M", 1, num_layers=10))
    request = TracedRequest(Request("r", 0.0, 40, 0, adapter="a", trains=True), 0)
    seen = []
    with pytest.raises(ServeError, match="no times of a backward pass, which requests that train need"):
        simulate_requests(
            [request],
            [Instance(Finetuning(), BlockCache(10, 16))],
            step_time,
            seen=lambda *each: seen.append(each),
        )
    assert not seen
