"""Adapters of requests: few are on the device at once, and others are loaded when a request with them is admitted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served import STEP, Checked, request

from trainyard.hardware.parse import parse_cluster
from trainyard.serve.batch import Batch, Launch, WeightOp, WorkItem
from trainyard.serve.cache.adapter_slots import AdapterSlots
from trainyard.serve.catalog import parse_policies
from trainyard.serve.check import BatchChecker
from trainyard.serve.deploy import deploy
from trainyard.serve.errors import ServeError
from trainyard.serve.policies.vllm import vllm
from trainyard.serve.requests.request import TracedRequest
from trainyard.serve.simulate_requests import simulate_requests

_LOADING = replace(STEP, adapter_s=0.5)


def with_adapter(number: int, arrival_s: float, adapter: str, output: int = 3) -> TracedRequest:
    return request(number, arrival_s, 40, output, adapter=adapter)


def test_an_adapter_is_loaded_once_and_stays() -> None:
    replica = Checked(vllm(), 100, max_loras=1)
    requests = [
        with_adapter(0, 0.0, "a"),
        with_adapter(1, 5.0, "a"),
        with_adapter(2, 10.0, "b"),
        request(3, 15.0, 40, 1),
    ]
    done = simulate_requests(requests, [replica.instance], _LOADING).served
    assert [op for batch in replica.batches for op in batch.weight_ops] == [
        WeightOp("load", "a"),
        WeightOp("unload", "a"),
        WeightOp("load", "b"),
    ]
    assert [each.ttft_s > 0.5 for each in done] == [True, False, True, False]
    assert "load adapter a from host" in str(replica.batches[0])


def test_a_request_waits_while_others_hold_all_slots() -> None:
    replica = Checked(vllm(), 100, max_loras=2)
    replica.run([with_adapter(n, 0.0, adapter, 5) for n, adapter in enumerate("abc")])
    first = replica.batches[0]
    assert [item.request for item in first.items] == [0, 1]
    assert str(first.wait_reason).startswith("the next request needs another adapter; each of the 2")
    last = next(batch for batch in replica.batches if any(item.request == 2 for item in batch.items))
    assert last.weight_ops == (WeightOp("unload", "a"), WeightOp("load", "c"))


def test_a_slot_is_free_when_the_last_request_of_its_adapter_ends() -> None:
    replica = Checked(vllm(), 100, max_loras=1)
    asked = enumerate([("a", 2), ("a", 9), ("b", 1)])
    done = replica.run([with_adapter(number, 0.0, adapter, output) for number, (adapter, output) in asked])
    short, long, other = sorted(done.served, key=lambda each: each.request.name)
    assert short.finished_s < long.finished_s < other.first_token_s


@pytest.mark.parametrize(
    "policy",
    [
        each
        for _, each in parse_policies("vllm, vllm_v0(preempt='swap'), sarathi(chunk_tokens=64) + vtc, orca")
    ],
)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_request_has_its_adapter(policy: object, data: st.DataObject) -> None:
    requests = [
        request(
            n,
            0.01 * n,
            data.draw(st.integers(1, 150)),
            data.draw(st.integers(1, 40)),
            adapter=data.draw(st.sampled_from(["", *"abcd"])),
        )
        for n in range(data.draw(st.integers(1, 15)))
    ]
    requests = [each._replace(request=replace(each.request, max_tokens=40)) for each in requests]
    replica = Checked(policy, 24, num_host_blocks=20, max_loras=data.draw(st.integers(1, 3)))
    assert len(replica.run(requests).served) == len(requests)


def test_adapters_take_memory_and_time() -> None:
    cluster = parse_cluster("1x1xA100-80G")
    plain, some = deploy("llama3-8b", cluster), deploy("llama3-8b", cluster, max_loras=8, lora_rank=64)
    # Llama 3 8B: in each of 32 layers, q, k and v as one product, o, gate and up as one, and down.
    width = 32 * ((4096 + 6144) + (4096 + 4096) + (4096 + 28672) + (14336 + 4096))
    assert some.model.lora_bytes == 64 * width * 2
    assert plain.model.cache_bytes - some.model.cache_bytes == 8 * some.model.lora_bytes
    host_bytes_per_s, seconds_of = (
        cluster.devices[0].host_bandwidth_bytes_per_s,
        some.model.step_time.weight_seconds,
    )
    loads_s = seconds_of([WeightOp("load", "a"), WeightOp("unload", "b")], None)
    assert loads_s == pytest.approx(some.model.lora_bytes / host_bytes_per_s)
    parts_s = seconds_of([WeightOp("load", "", layers=(8, 24)), WeightOp("load", "a", layers=(0, 8))], 32)
    assert parts_s == pytest.approx(
        (some.model.weight_bytes / 2 + some.model.lora_bytes / 4) / host_bytes_per_s
    )
    assert plain.model.max_loras is None


@pytest.mark.parametrize(
    ("ops", "said"),
    [
        ((), "without its adapter 'a'"),
        ((WeightOp("unload", "a"),), "not there"),
        ((WeightOp("load", "a"), WeightOp("load", "a")), "which is there"),
        ((WeightOp("load", "b"), WeightOp("load", "a")), "no room"),
    ],
)
def test_bad_operations_are_found(ops: tuple[WeightOp, ...], said: str) -> None:
    checker = BatchChecker(3, 16, max_loras=1)
    checker.arrive(0, 10, adapter="a")
    with pytest.raises(ServeError, match=said):
        checker.check(Batch((Launch((WorkItem(0, 0, 10),)),), weight_ops=ops))


def test_there_is_a_slot() -> None:
    with pytest.raises(ServeError, match="0 slots"):
        AdapterSlots(0)
