"""What a server is told of a model on a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.hardware.parse import parse_cluster
from trainyard.serve.batch import CacheOp, WorkItem
from trainyard.serve.catalog import parse_policies
from trainyard.serve.deploy import deploy, served_model
from trainyard.serve.deployment import cache_blocks_of
from trainyard.serve.errors import ServeError
from trainyard.serve.policies.orca import Orca
from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import Request
from trainyard.serve.step_memory import StepSize, largest_step

_A100 = parse_cluster("1x4xA100-80G")


def test_as_many_replicas_as_there_are_devices_for_and_the_cache_that_is_left():
    found = deploy("llama3-8b", _A100, tensor_parallel=2)
    assert (found.num_replicas, found.num_devices, found.max_model_len) == (2, 4, 8192)
    model = found.model
    assert model.weight_bytes == pytest.approx(8.03e9, rel=1e-3)
    assert model.cache_bytes_per_token == 32 * 2 * 4 * 128 * 2
    used = model.weight_bytes + model.activation_bytes + found.num_blocks * 16 * model.cache_bytes_per_token
    assert model.usable_bytes - 16 * model.cache_bytes_per_token < used <= model.usable_bytes
    assert str(found) == "2 replicas of llama3-8b with tp 2"


def test_a_cache_that_is_asked_for():
    assert deploy("llama3-8b", _A100, cache_blocks=100).num_blocks == 100
    assert deploy("llama3-8b", _A100, cache_blocks=100).max_model_len == 1600
    usual = deploy("llama3-8b", _A100)
    left = usual.model.usable_bytes - usual.model.weight_bytes
    most = left // (16 * usual.model.cache_bytes_per_token)
    assert most > usual.num_blocks  # what a server reports may be more than we expect activations to leave
    assert deploy("llama3-8b", _A100, cache_blocks=most).num_blocks == most
    assert deploy("llama3-8b", _A100, cache_bytes=left).num_blocks == most
    with pytest.raises(ServeError, match=r"a KV cache of \d+(\.\d+)? GB per device; allowed is one block"):
        deploy("llama3-8b", _A100, cache_bytes=left + 1)
    with pytest.raises(
        ServeError, match=rf"a KV cache of {most + 1:,} blocks .*; allowed are 1 to {most:,}, which"
    ):
        deploy("llama3-8b", _A100, cache_blocks=most + 1)
    assert deploy("llama3-8b", _A100, cache_bytes=10**9).num_blocks == 10**9 // (16 * 131072)


def test_what_cannot_be_is_told():
    with pytest.raises(ServeError, match="3 replicas of 2 devices; allowed is 1 to 2 on the 4 devices"):
        deploy("llama3-8b", _A100, tensor_parallel=2, num_replicas=3)
    with pytest.raises(ServeError, match="max_model_len 9000; llama3-8b supports at most 8192 tokens"):
        deploy("llama3-8b", _A100, max_model_len=9000)
    with pytest.raises(ServeError, match=r"needs 8 devices; .* has 4"):
        served_model("llama3-8b", _A100, tensor_parallel=4, pipeline_stages=2)
    with pytest.raises(ServeError, match="dtype 'int3'; allowed are float32"):
        served_model("llama3-8b", _A100, dtype="int3")
    with pytest.raises(ServeError, match=r"with tp 1 does not fit: a device has .* GB for weights of 16"):
        deploy("llama3-8b", parse_cluster("1x1xT4"))
    with pytest.raises(ServeError, match="/nowhere is no folder"):
        served_model("llama3-8b", _A100, kernels=Path("/nowhere"))
    with pytest.raises(ServeError, match="max_model_len 1; allowed is 2 or more"):
        deploy("llama3-8b", _A100, max_model_len=1)
    with pytest.raises(ServeError, match="33 stages of llama3-8b, which has 32 layers"):
        served_model("llama3-8b", parse_cluster("5x8xA100-80G"), pipeline_stages=33)
    with pytest.raises(ServeError, match="llama3-8b has no experts"):
        served_model("llama3-8b", _A100, expert_parallel=True)
    with pytest.raises(
        ServeError, match=r"1e\+06 GB of a host are 476,837,158 blocks; allowed are 10,000,000"
    ):
        deploy("llama3-8b", _A100, host_cache_bytes=10**15)
    with pytest.raises(ServeError, match="2 replicas on devices that are not alike: A100-80G, T4"):
        deploy("gpt2", parse_cluster("1x1xA100-80G+1x1xT4"))
    assert deploy("gpt2", parse_cluster("1x1xA100-80G+1x1xT4"), num_replicas=1).num_replicas == 1
    with pytest.raises(ServeError, match=r"dlrm-tiny is no language model"):
        deploy("dlrm-tiny", _A100)
    with pytest.raises(ServeError, match=r"bert-tiny: .* sees tokens after it"):
        deploy("bert-tiny", _A100)
    with pytest.raises(ServeError, match=r"a KV cache of 1000 GB per device; allowed is one block"):
        cache_blocks_of(served_model("llama3-8b", _A100), 16, 10**12)


def test_half_the_bytes_for_weights_leave_more_for_the_cache():
    wide, narrow = (served_model("llama3-8b", _A100, dtype=each) for each in ("bfloat16", "float8"))
    assert 2 * narrow.weight_bytes == wide.weight_bytes
    assert narrow.cache_bytes > wide.cache_bytes
    assert narrow.cache_bytes_per_token == wide.cache_bytes_per_token


def test_requests_may_be_swapped_out_to_the_host():
    """A block crosses the host's link once, and is read and written on the device."""
    found = deploy("llama3-8b", _A100, host_cache_bytes=10**9)
    assert found.num_host_blocks == 10**9 // (16 * 131072)
    copy, swap = (CacheOp(kind, 0, (1, 2), to=(3, 4), to_tier=tier) for kind, tier in _COPIES)
    device, seconds = _A100.devices[0], found.model.step_time.cache_seconds
    assert seconds([swap]) == pytest.approx(2 * 16 * 131072 / device.host_bandwidth_bytes_per_s)
    assert 0 < seconds([copy]) < seconds([swap])


_COPIES = (("copy", "device"), ("swap out", "host"))


_LAYER, _WORDS, _NORM = 218_112_000, 128_256 * 4096, 4096  # weights of a layer of llama3-8b, and of the rest


@pytest.mark.parametrize(("stages", "largest"), [(2, 16), (4, 8), (5, 7), (3, 11), (8, 4), (32, 1)])
def test_the_stage_with_most_says_what_fits(stages: int, largest: int) -> None:
    """Of 32 layers, five stages have six or seven; the last one has seven, and the final norm and the LM head."""
    cluster = parse_cluster("4x8xA100-80G")
    whole, split = (served_model("llama3-8b", cluster, pipeline_stages=num) for num in (1, stages))
    assert whole.weight_bytes == 2 * (32 * _LAYER + 2 * _WORDS + _NORM)
    assert split.cache_bytes_per_token == whole.cache_bytes_per_token * largest // 32
    assert split.weight_bytes == 2 * (largest * _LAYER + _WORDS + _NORM)


def test_tied_embeddings_are_in_the_first_and_the_last_stage():
    """Of gpt2, the first stage has the embeddings of positions, too, which are more than the last norm."""
    whole, split = (served_model("gpt2", _A100, pipeline_stages=num) for num in (1, 2))
    words, layer = 50_257 * 768, 12 * 768**2 + 13 * 768
    assert whole.weight_bytes == 2 * (words + 1024 * 768 + 12 * layer + 2 * 768)
    assert split.weight_bytes == 2 * (words + 1024 * 768 + 6 * layer)


def test_each_stage_takes_as_long_as_its_layers_and_the_last_one_has_the_head():
    step_time = served_model("llama3-8b", _A100, pipeline_stages=4).step_time
    state = RequestState(0, Request("0", 0.0, 90, 100), 0.0)
    state.num_generated, state.num_tokens = 10, 100
    items = [WorkItem(0, 99, 100)]
    first, second, third, last = step_time.stage_seconds(items, {0: state}, 4)
    assert second == third
    head_s = 2 * _WORDS / _A100.devices[0].memory_bandwidth_bytes_per_s
    assert 0.9 * head_s < last - second < 1.3 * head_s
    assert first == pytest.approx(second, rel=0.01)
    assert step_time.seconds(items, {0: state}) == pytest.approx(first + second + third + last)
    assert step_time.decode_seconds(items, 2)[0] == pytest.approx(first + second + third + last)
    with pytest.raises(ServeError, match="the time of 3 stages; this step time is of 4"):
        step_time.stage_seconds(items, {0: state}, 3)


@pytest.mark.parametrize(
    ("model", "cluster", "step", "num_tokens"),
    [
        # vLLM 0.19.0, by the runs of LLMServingSim.
        ("llama3.1-8b", "1x1xRTX4090", StepSize(2048, 256), 41_408),
        # vLLM 0.11.0, by the runs of inference-sim.
        ("llama2-7b", "1x1xH100", StepSize(64, 32), 7438 * 16),
        ("codellama-34b", "1x1xH100", StepSize(64, 32), 2790 * 16),
    ],
)
def test_the_cache_has_as_many_tokens_as_servers_report(model, cluster, step, num_tokens):
    place = deploy(model, parse_cluster(cluster), step=step)
    assert place.cached_tokens == pytest.approx(num_tokens, rel=0.03)


def test_activations_are_those_of_the_largest_step():
    """Of Llama 3 8B: both products of gate and up beside the residual stream, or the scores of all words."""
    model = deploy("llama3-8b", _A100).model
    layer = 2 * (2 * 14336 + 14336 + 4096)
    assert model.with_step(StepSize(8192, 16)).activation_bytes == 8192 * layer
    assert model.activation_bytes == 2048 * 2 * 4096 + 256 * 128256 * 38
    assert model.with_step(StepSize(8, 256)).activation_bytes == 8 * 2 * 4096 + 8 * 128256 * 38


def test_the_largest_step_is_that_of_any_policy():
    policies = [each for _, each in parse_policies("vllm(max_batch_tokens=64), sarathi(chunk_tokens=512)")]
    assert largest_step(policies) == StepSize(512, 256)
    assert largest_step(policies[:1]) == StepSize(64, 256)
    assert largest_step([Orca(8)]) == largest_step([]) == StepSize()


@pytest.mark.slow
def test_layers_with_windows_and_shared_heads_are_served():
    """Gemma 3 1B has one head of keys and values, of which every device has a copy, and windows in 22 of 26 layers."""
    whole, split = (served_model("gemma3-1b", _A100, tensor_parallel=num) for num in (1, 4))
    assert whole.cache_bytes_per_token == split.cache_bytes_per_token == 26 * 2 * 256 * 2
    assert whole.context == 32_768
    assert split.weight_bytes < 0.35 * whole.weight_bytes
    (costs,) = {whole.step_time.costs}
    assert {shape.window: num for shape, num in costs.graph.attention} == {512: 22, 0: 4}
