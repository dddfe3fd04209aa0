"""Seconds of steps that follow from a device's description."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trainyard.hardware.parse import parse_cluster
from trainyard.job.planning import load_model
from trainyard.serve.batch import WorkItem
from trainyard.serve.costs.forward_graph import forward_program
from trainyard.serve.costs.host_time import host_time_of
from trainyard.serve.costs.kernels import Attention, Product
from trainyard.serve.costs.model_step_time import GraphCosts, ModelStepTime, PipelineStepTime
from trainyard.serve.costs.predicted import PredictedKernels
from trainyard.serve.costs.split_plan import split_plan
from trainyard.serve.costs.step_graph import step_graph
from trainyard.serve.deploy import served_model
from trainyard.serve.errors import ServeError
from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import Request

_H100 = parse_cluster("1x8xH100")


@pytest.fixture(scope="module")
def llama():
    with torch.device("meta"):
        return forward_program(load_model("llama3-8b"))


def _state(number: int, prompt: int, generated: int) -> RequestState:
    state = RequestState(number, Request(str(number), 0.0, prompt, 100), 0.0)
    state.num_generated, state.num_tokens = generated, prompt + generated
    return state


def test_a_single_decode_reads_the_weights_once(llama):
    """The least time: all weights but the table of words, at the device's bandwidth."""
    graph = step_graph(llama)
    step_time = ModelStepTime(GraphCosts(graph, PredictedKernels(_H100, 1)))
    seconds = step_time.seconds([WorkItem(0, 99, 100)], {0: _state(0, 90, 10)})
    least_s = (graph.num_weights - 128256 * 4096) * 2 / 3.35e12
    assert 1.1 * least_s < seconds < 1.5 * least_s  # each of 193 kernels has to begin


def test_a_long_prompt_is_bound_by_computing(llama):
    graph = step_graph(llama)
    step_time = ModelStepTime(GraphCosts(graph, PredictedKernels(_H100, 1)))
    seconds = step_time.seconds([WorkItem(0, 0, 8192)], {0: _state(0, 8192, 0)})
    products = sum(p.width * p.columns * n for p, n in graph.products if not p.is_of_last_tokens)
    flops = 2 * 8192 * products + 4 * 32 * 32 * 128 * 8192 * 8193 / 2
    assert 1.0 < seconds * 989e12 * 0.72 / flops < 1.2


def test_a_backward_pass_is_one_product_for_each_and_the_scores_of_all_words(llama):
    """Weights are frozen; attention has five products instead of two."""
    graph = step_graph(llama)
    step_time = ModelStepTime(GraphCosts(graph, PredictedKernels(_H100, 1)))
    seconds = step_time.backward_seconds([WorkItem(0, 0, 8192)], {0: _state(0, 8192, 0)})
    products = sum(p.width * p.columns * n * (2 if p.is_of_last_tokens else 1) for p, n in graph.products)
    flops = 2 * 8192 * products + 2.5 * 4 * 32 * 32 * 128 * 8192 * 8193 / 2
    assert 1.0 < seconds * 989e12 * 0.72 / flops < 1.2


def test_the_last_tokens_attend_to_all_others_backward_as_forward():
    kernels, attention = PredictedKernels(_H100, 1), Attention(32, 8, 128)
    whole = kernels.backward_attention_s(attention, [(16384, 0)])
    parts = sum(kernels.backward_attention_s(attention, [(8192, before)]) for before in (0, 8192))
    assert parts == pytest.approx(whole, rel=0.05)
    few = kernels.backward_attention_s(attention, [(1, 100_000)])
    moved_s = 100_001 * attention.cached_per_token * (2 + 2 * 2) / 3.35e12  # gradients of all keys and values
    assert moved_s < few < 1.3 * moved_s


def test_stages_go_backward_one_after_the_other(llama):
    costs = GraphCosts(step_graph(llama), PredictedKernels(_H100, 1))
    one, items, states = ModelStepTime(costs), [WorkItem(0, 0, 512)], {0: _state(0, 512, 0)}
    both = PipelineStepTime([one, one])
    assert both.backward_seconds(items, states) == 2 * one.backward_seconds(items, states)


def test_the_host_takes_its_time_after_each_step_and_for_each_request_in_it(llama):
    """Of vLLM 0.5.3 (issues 6854 and 6913): 4 ms, and 3.2 ms more for 32 requests than for 1."""
    costs = GraphCosts(step_graph(llama), PredictedKernels(_H100, 1))
    host = host_time_of("vllm-0.5")
    alone, waiting = ModelStepTime(costs), ModelStepTime(costs, host)
    for num, more_s in ((1, 4e-3 + 3.2e-3 / 31), (32, 4e-3 + 32 * 3.2e-3 / 31)):
        items = [WorkItem(number, 100, 101) for number in range(num)]
        difference_s = waiting.decode_seconds(items, 3) - alone.decode_seconds(items, 3)
        assert difference_s == pytest.approx([more_s] * 3)
    assert host_time_of("2ms+20us").seconds(100) == pytest.approx(4e-3)
    assert host_time_of("overlapped").seconds(100) == 0.0
    with pytest.raises(
        ServeError, match=r"host time '2'; allowed are overlapped, vllm-0\.5, vllm-0\.6, or seconds"
    ):
        host_time_of("2")


def test_the_host_waits_once_for_all_stages():
    cluster = parse_cluster("1x4xH100")
    quick, slow = (
        served_model("llama3-8b", cluster, pipeline_stages=4, host_time=host_time_of(name))
        for name in ("overlapped", "5ms")
    )
    items = [WorkItem(0, 100, 101)]
    difference_s = slow.step_time.decode_seconds(items, 1) - quick.step_time.decode_seconds(items, 1)
    assert difference_s == pytest.approx([5e-3])
    assert slow.source.endswith("; 5 ms of the host after each step, and 0 us per request")


def test_decodes_in_a_row_take_as_long_as_one_by_one(llama):
    step_time = ModelStepTime(GraphCosts(step_graph(llama), PredictedKernels(_H100, 1)))
    states = {n: _state(n, 100 * n, 5) for n in (1, 2, 3)}
    items = [WorkItem(n, s.num_tokens - 1, s.num_tokens) for n, s in states.items()]
    together = step_time.decode_seconds(items, 4)
    assert len(together) == 4
    for num, expected in enumerate(together):
        for state in states.values():
            state.num_tokens += num
        moved = [WorkItem(n, stop - 1 + num, stop + num) for n, _, stop in items]
        assert step_time.seconds(moved, states) == expected
        for state in states.values():
            state.num_tokens -= num


def test_a_chunk_after_another_costs_more_attention_than_the_first():
    kernels = PredictedKernels(_H100, 1)
    attention = Attention(32, 8, 128)
    first = kernels.prompt_attention_s(attention, [(4096, 0)])
    assert kernels.prompt_attention_s(attention, [(4096, 4096)]) > 2 * first


def test_of_all_pairs_of_a_prompt_in_two_chunks_none_is_computed_twice():
    """Work is the number of pairs: that of one chunk after the other is that of the whole."""
    kernels = PredictedKernels(_H100, 1)
    attention = Attention(32, 8, 128)
    whole = kernels.prompt_attention_s(attention, [(16384, 0)])
    parts = sum(kernels.prompt_attention_s(attention, [(8192, before)]) for before in (0, 8192))
    assert parts == pytest.approx(whole, rel=0.02)


def test_a_product_in_8_bits_takes_less_and_brings_its_operand_to_8_bits():
    wide, narrow = PredictedKernels(_H100, 1), PredictedKernels(_H100, 1, "float8", 1.0)
    product = Product(8192, 8192)
    assert narrow.product_s(4096, product) < wide.product_s(4096, product)
    assert narrow.product_s(4096, product) > 0.5 * wide.product_s(4096, product)


def test_shards_are_faster_and_less_than_as_many_times(llama):
    one, four = (
        ModelStepTime(
            GraphCosts(step_graph(llama, split_plan(llama, tensor_parallel=n)), PredictedKernels(_H100, n))
        ).decode_seconds([WorkItem(0, 999, 1000)], 1)[0]
        for n in (1, 4)
    )
    assert one / 4 < four < one


def test_stages_send_what_goes_from_one_to_the_next(llama):
    kernels = PredictedKernels(_H100, 1)
    one, two = (GraphCosts(step_graph(llama), kernels, sends) for sends in (False, True))
    assert two.tokens_s(100) - one.tokens_s(100) == pytest.approx(kernels.send_s(100 * 4096))
    assert np.array_equal(one.attention_s((), 4, np.array([9.0])), two.attention_s((), 4, np.array([9.0])))
