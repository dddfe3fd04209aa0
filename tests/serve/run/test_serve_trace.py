"""Traces that are served for real, and step times that are measured for the simulator."""

from __future__ import annotations

import numpy as np
import pytest
from tests.serve.run.tiny_models import made

from trainyard.serve.catalog import parse_policies
from trainyard.serve.errors import ServeError
from trainyard.serve.requests.generate import IndependentLengths, LogNormal, Poisson, generate_requests
from trainyard.serve.requests.prompts import with_prompt_ids
from trainyard.serve.requests.request import PrefixBlocks, Request, TracedRequest
from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.engine import EngineOptions
from trainyard.serve.run.measure import _fitted, measured_step_time
from trainyard.serve.run.outputs import StepRecord
from trainyard.serve.run.serve_trace import serve_trace

_OPTIONS = EngineOptions(num_blocks=60, block_tokens=8)


@pytest.fixture(scope="module")
def model() -> CausalModel:
    return CausalModel(made("llama"), "llama")


def test_all_requests_of_a_trace_are_served(model: CausalModel):
    lengths = IndependentLengths(LogNormal(20, 0.5, 60), LogNormal(8, 0.5, 20))
    drawn = list(generate_requests(30, Poisson(300.0), lengths))
    requests = list(with_prompt_ids(drawn, model.vocabulary))
    ((_, policy),) = parse_policies("sarathi(chunk_tokens=32)")
    steps: list[StepRecord] = []
    results = serve_trace(requests, model, policy, _OPTIONS, steps.append)
    tokens = {each.request.name: each.output_tokens for each in results.served}
    assert tokens == {traced.request.name: traced.output_tokens for traced in drawn}
    for each in results.served:
        assert each.arrival_s == each.request.arrival_s
        assert each.arrival_s <= each.scheduled_s <= each.first_token_s <= each.finished_s
    assert results.num_steps == len(steps)


def test_what_the_model_is_too_small_for_is_refused(model: CausalModel):
    requests = list(with_prompt_ids([TracedRequest(Request("long", 0.0, 1000, 5), 5)], model.vocabulary))
    ((_, policy),) = parse_policies("vllm")
    results = serve_trace(requests, model, policy, _OPTIONS)
    assert [(each.request.name, "1000 tokens" in each.why) for each in results.refused] == [("long", True)]


def test_requests_that_continue_others_are_not_served(model: CausalModel):
    requests = [TracedRequest(Request("b", 0.0, 2, 5, parent="a", prompt_ids=(1, 2)), 5)]
    ((_, policy),) = parse_policies("vllm")
    with pytest.raises(ServeError, match="continues 'a'"):
        serve_trace(requests, model, policy, _OPTIONS)


def test_requests_with_adapters_are_not_served(model: CausalModel):
    requests = [TracedRequest(Request("b", 0.0, 2, 5, adapter="a", prompt_ids=(1, 2)), 5)]
    ((_, policy),) = parse_policies("vllm")
    with pytest.raises(ServeError, match="has the adapter 'a'"):
        serve_trace(requests, model, policy, _OPTIONS)


def test_equal_prefix_blocks_get_equal_tokens():
    def traced(name: str, keys: tuple[int, ...]) -> TracedRequest:
        return TracedRequest(Request(name, 0.0, 20, 9, prefix=PrefixBlocks(keys, 8)), 4)

    one, other = with_prompt_ids([traced("a", (1, 2, 3)), traced("b", (1, 2, 4))], 1000)
    assert one.request.prompt_ids[:16] == other.request.prompt_ids[:16]
    assert one.request.prompt_ids[16:] != other.request.prompt_ids[16:]
    assert (len(one.request.prompt_ids), one.request.max_tokens) == (20, 4)


def test_a_linear_form_is_found_again():
    rng = np.random.default_rng(0)
    counts = np.concatenate((np.ones((200, 1)), rng.integers(0, 1000, (200, 4))), axis=1).astype(float)
    weights = np.array([5e-3, 1e-4, 2e-4, 1e-6, 0.0])
    found = _fitted([(row, float(row @ weights)) for row in counts])
    fitted = (found.step_s, found.prompt_token_s, found.decode_s, found.cached_token_s, found.attention_s)
    np.testing.assert_allclose(fitted, weights, rtol=1e-6, atol=1e-12)


def test_steps_are_measured(model: CausalModel):
    found = measured_step_time(model, longest=64)
    assert found.step_s > 0
    assert found.prompt_token_s + found.attention_s > 0
