"""Requests whose tokens go forward and then backward, to train an adapter beside requests that are answered."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from finetuning import Finetuning
from hypothesis import given, settings
from hypothesis import strategies as st
from served import STEP, Checked, request

from trainyard.serve.batch import Batch, CacheOp, Direction, Launch, Layers, WorkItem
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.check import BatchChecker
from trainyard.serve.costs.model_step_time import ModelStepTime
from trainyard.serve.data_parallel import DataParallelInstance
from trainyard.serve.draft import BatchDraft
from trainyard.serve.errors import ServeError
from trainyard.serve.instance import Instance
from trainyard.serve.policies.vllm import vllm
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.router import PrefillDecode
from trainyard.serve.run.engine import Engine, EngineOptions
from trainyard.serve.run.simulated_model import SimulatedModel
from trainyard.serve.simulate_requests import simulate_requests


def training(
    number: int, arrival_s: float, num_tokens: int, adapter: str = "a", **more: Any
) -> TracedRequest:
    return TracedRequest(
        Request(f"r{number}", arrival_s, num_tokens, 0, adapter=adapter, trains=True, **more), 0
    )


def launches_of(replica: Checked) -> list[tuple[Layers, Direction, tuple[WorkItem, ...]]]:
    return [(each.layers, each.direction, each.items) for batch in replica.batches for each in batch.launches]


def test_all_tokens_go_forward_and_then_back_the_last_ones_first():
    replica = Checked(Finetuning(16), 100)
    results = replica.run([training(0, 0.0, 40)])
    assert launches_of(replica) == [
        (None, "forward", ((0, 0, 16),)),
        (None, "forward", ((0, 16, 32),)),
        (None, "forward", ((0, 32, 40),)),
        (None, "backward", ((0, 24, 40),)),
        (None, "backward", ((0, 8, 24),)),
        (None, "backward", ((0, 0, 8),)),
    ]
    assert str(replica.batches[3]) == "compute 0[24:40] backward"
    (done,) = results.trained
    assert (results.served, done.output_tokens, results.end_s) == ([], 0, done.finished_s)
    assert done.meets_objectives
    assert done.first_token_s != done.first_token_s  # NaN
    # Products take as long backward as forward, attention 2.5 times as long: of 40 * 40 / 2 pairs.
    assert done.e2e_s == pytest.approx(6 * STEP.step_s + 2 * 40 * 3e-5 + 3.5 * 800 * 1.5e-9)


def test_all_tokens_go_back_through_one_layer_after_the_other():
    replica = Checked(Finetuning(32, "by layer"), 100, num_layers=2)
    (done,) = replica.run([training(0, 0.0, 40)]).trained
    assert launches_of(replica)[2:] == [
        ((1, 2), "backward", ((0, 8, 40),)),
        ((1, 2), "backward", ((0, 0, 8),)),
        ((0, 1), "backward", ((0, 8, 40),)),
        ((0, 1), "backward", ((0, 0, 8),)),
    ]
    assert str(replica.batches[2]) == "compute 0[8:40] backward in layers 1 to 1"
    assert done.e2e_s == pytest.approx(4 * STEP.step_s + 2 * 40 * 3e-5 + 3.5 * 800 * 1.5e-9)


def test_decodes_and_a_backward_pass_are_one_step():
    replica = Checked(Finetuning(17), 100)
    starts_s = list[float]()
    requests = [training(0, 0.0, 32), request(1, 0.0, 16, 30)]
    simulate_requests(requests, [replica.instance], STEP, seen=lambda _, at_s, batch: starts_s.append(at_s))
    place = next(i for i, batch in enumerate(replica.batches) if len(batch.launches) == 2)
    decodes, back = replica.batches[place].launches
    assert (decodes.direction, back.direction, back.items) == ("forward", "backward", ((0, 16, 32),))
    decode_s = 6e-3 + 5e-5 + 2e-8 * decodes.items[0].stop
    back_s = 6e-3 + 16 * 3e-5 + 2.5 * 16 * 24 * 1.5e-9
    assert starts_s[place + 1] - starts_s[place] == pytest.approx(decode_s + back_s)


class _Costs:
    """A token takes 1 s forward and 3 s backward on its rank, and a hundredth in the experts of all."""

    def tokens_s(self, num: int) -> float:
        return float(num)

    def sequences_s(self, num: int) -> float:
        return 0.0

    def experts_s(self, num: int) -> float:
        return 0.01 * num

    def attention_s(self, chunks: object, num: int, mean_tokens: Any) -> Any:
        return np.zeros(len(mean_tokens))

    def backward_s(self, chunks: Sequence[tuple[int, int]]) -> float:
        return 3.0 * sum(num for num, _ in chunks)


def test_ranks_go_backward_together_and_the_slowest_counts():
    ranks = DataParallelInstance([Instance(Finetuning(), BlockCache(10, 16)) for _ in range(2)])
    requests = [training(0, 0.0, 10), training(1, 0.0, 40)]
    first, last = simulate_requests(requests, [ranks], ModelStepTime(_Costs())).trained
    assert first.finished_s == last.finished_s == pytest.approx(40 + 120 + 2 * 0.01 * 50)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_all_are_served_and_trained_whatever_the_room(data: st.DataObject):
    requests = [
        training(n, 0.01 * n, data.draw(st.integers(1, 150)), data.draw(st.sampled_from("ab")))
        if data.draw(st.booleans())
        else request(n, 0.01 * n, data.draw(st.integers(1, 150)), data.draw(st.integers(1, 60)))
        for n in range(data.draw(st.integers(1, 8)))
    ]
    requests = [
        each if each.request.trains else each._replace(request=replace(each.request, max_tokens=60))
        for each in requests
    ]
    policy = Finetuning(data.draw(st.integers(8, 64)), data.draw(st.sampled_from(["by tokens", "by layer"])))
    replica = Checked(
        policy,
        data.draw(st.integers(14, 40)),
        num_layers=data.draw(st.none() | st.integers(1, 4)),
        max_loras=1,
    )
    results = replica.run(requests, next_token=lambda state: state.num_tokens % 3)
    assert {each.request.name for each in results.trained} == {
        each.request.name for each in requests if each.request.trains
    }
    assert len(results.served) + len(results.trained) == len(requests)


def test_nothing_of_what_trains_is_shared():
    """Equal prompts of one adapter share blocks, but what trains goes forward as a whole, and leaves nothing."""
    ids = tuple(range(64))
    answered = [
        TracedRequest(Request(name, at_s, 64, 8, prompt_ids=ids, adapter="a"), 2)
        for name, at_s in (("x", 1.0), ("y", 3.0))
    ]
    trained = [training(n, at_s, 64, prompt_ids=ids) for n, at_s in ((0, 0.0), (1, 2.0))]
    replica = Checked(Finetuning(64), 100)
    results = replica.run(
        [trained[0], answered[0], trained[1], answered[1]], next_token=lambda state: state.num_tokens
    )
    assert [each.cached_tokens for each in results.trained] == [0, 0]
    assert [each.cached_tokens for each in results.served] == [0, 48]


def test_what_trains_stays_on_the_replica_where_it_began():
    replicas = [Checked(Finetuning(64), 20) for _ in range(2)]
    requests = [training(0, 0.0, 40), request(1, 0.0, 40, 3)]
    instances = [each.instance for each in replicas]
    results = simulate_requests(requests, instances, STEP, router=PrefillDecode(1))
    assert (len(results.trained), len(results.served)) == (1, 1)
    assert [each.num_requests for each in instances] == [0, 0]


def test_the_longest_sequence_may_train():
    for num, served in ((64, 1), (65, 0)):
        results = Checked(Finetuning(64), 10, max_model_len=64).run([training(0, 0.0, num)])
        assert (len(results.trained), len(results.refused)) == (served, 1 - served)


class _Acts(Finetuning):
    """Goes forward, and then does something."""

    def __init__(self, act: Callable[..., Any]) -> None:
        super().__init__(20)
        object.__setattr__(self, "act", act)

    def decide(self, draft: BatchDraft, state: None) -> None:
        one = next(iter(draft.running), draft.first_waiting)
        if one is not None and draft.num_left(one):
            draft.compute(one, min(20, draft.num_left(one)))
        elif one is not None:
            self.act(draft, one)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (
            lambda draft, one: draft.compute_backward(one, 0, 20),
            "backward with tokens 0 to 20 in layers 0 to 3",
        ),
        (lambda draft, one: draft.compute_backward(one, 30, 40, (2, 5)), "in layers 2 to 4; of the 4 layers"),
        (lambda draft, one: draft.compute_backward(one, 30, 40, (-1, 4)), "in layers -1 to 3"),
        (lambda draft, one: draft.compute_backward(one, 30, 40, (0, 2)), "through the last layers first"),
        (lambda draft, one: draft.compute_backward(one, 40, 40), "with tokens 40 to 40"),
        (
            lambda draft, one: [draft.compute_backward(one, 30, 40) for _ in range(2)],
            "allowed are requests that train, went forward as a whole, and are in no step",
        ),
        (
            lambda draft, one: (draft.preempt(one), draft.compute_backward(one, 30, 40)),
            "allowed are requests that train, went forward as a whole",
        ),
        (
            lambda draft, one: draft.swap_out([one]),
            "swapped out; allowed are requests that do not train; preempt it",
        ),
        (
            lambda draft, one: (draft.unload_weights("", (1, 2)), draft.compute_backward(one, 30, 40)),
            "without weights of the model in 1 layers, first in layer 1",
        ),
        (lambda draft, one: draft.compute(one, 1), "1 tokens are to be computed; it has 0 left"),
    ],
)
def test_what_a_draft_refuses(act: Callable[..., Any], said: str):
    replica = Checked(_Acts(act), 10, num_host_blocks=10, num_layers=4)
    with pytest.raises(ServeError, match=re.escape(said)):
        replica.run([training(0, 0.0, 40)])


def test_requests_that_are_answered_do_not_go_back():
    def act(draft: BatchDraft) -> None:
        for each in draft.running:
            draft.compute_backward(each, 0, 1)

    policy = Finetuning()
    object.__setattr__(policy, "decide", lambda draft, state: act(draft) or _first(draft))
    with pytest.raises(ServeError, match="allowed are requests that train"):
        Checked(policy, 10).run([request(0, 0.0, 10, 3)])


def _first(draft: BatchDraft) -> None:
    if draft.first_waiting is not None:
        draft.compute(draft.first_waiting, 10)


def test_backward_in_some_layers_needs_layers():
    policy = _Acts(lambda draft, one: draft.compute_backward(one, 30, 40, (0, 1)))
    with pytest.raises(ServeError, match="here, steps are of all layers"):
        Checked(policy, 10).run([training(0, 0.0, 40)])


@pytest.mark.parametrize(("policy", "more"), [(vllm(), {}), (Finetuning(), {"num_stages": 2})])
def test_only_policies_that_train_get_what_trains(policy: Any, more: dict[str, int]):
    instance = Instance(policy, BlockCache(10, 16), **more)
    with pytest.raises(ServeError, match="'r0' trains its adapter, and the policy or the pipeline"):
        simulate_requests([training(0, 0.0, 40)], [instance], STEP)


def test_an_engine_only_goes_forward():
    engine = Engine(SimulatedModel("m", STEP, 64, 10, (1,)), Finetuning(), EngineOptions(num_blocks=4))
    with pytest.raises(ServeError, match="'r0' trains its adapter, which no engine does; simulate it"):
        engine.add(training(0, 0.0, 2, prompt_ids=(1, 2)).request)


class _GoesBack:
    """A policy that puts a wrong launch in its batch."""

    repeats = "never"

    def start(self) -> None:
        return None

    def decide(self, draft: BatchDraft, state: None) -> None:
        one = draft.first_waiting
        assert one is not None
        draft.compute(one, 2)
        draft._launches.backward.add(one.number)


def test_an_engine_refuses_a_backward_launch_before_it_computes():
    engine = Engine(SimulatedModel("m", STEP, 64, 10, (1,)), _GoesBack(), EngineOptions(num_blocks=4))
    engine.add(Request("r", 0.0, 2, 4, prompt_ids=(1, 2)))
    with pytest.raises(ServeError, match="lets tokens go backward; an engine only goes forward"):
        engine.step()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"adapter": ""}, "adapter is ''; allowed is the name of the one that it trains"),
        ({"max_tokens": 5}, "max_tokens, num_samples is (5, 1); allowed is 0 and 1 where it trains"),
        ({"num_samples": 2}, "max_tokens, num_samples is (0, 2)"),
        ({"ttft_s": 1.0}, "allowed is e2e_s alone where it trains"),
        ({"prompt_tokens": 0}, "prompt_tokens is 0; allowed is 1 or more"),
    ],
)
def test_bad_requests_that_train(given: dict[str, Any], said: str):
    good: dict[str, Any] = {"prompt_tokens": 10, "max_tokens": 0, "adapter": "a"}
    with pytest.raises(ServeError, match=re.escape(said)):
        Request("r", 0.0, trains=True, **(good | given))


def test_what_trains_has_no_output():
    with pytest.raises(ServeError, match="output_tokens is 3; allowed is 0 where it trains"):
        assert training(0, 0.0, 10)._replace(output_tokens=3).by_sample
    with pytest.raises(ServeError, match="max_tokens is 0; allowed is 1 or more"):
        Request("r", 0.0, 10, 0, adapter="a")
    assert training(0, 0.0, 10).by_sample == (0,)


def _back(start: int, stop: int, layers: Layers = None, request: int = 0) -> Batch:
    return Batch((Launch((WorkItem(request, start, stop),), layers=layers, direction="backward"),))


@pytest.fixture
def checker() -> BatchChecker:
    """Request 0 trains and went forward; 1 trains and has 2 of 6 tokens computed; 2 is answered."""
    made = BatchChecker(8, 4, num_layers=4)
    made.arrive(0, 6, trains=True)
    made.arrive(1, 6, trains=True)
    made.arrive(2, 6)
    ops = tuple(CacheOp("allocate", n, (2 * n, 2 * n + 1)) for n in range(3))
    made.check(Batch((Launch((WorkItem(0, 0, 6), WorkItem(1, 0, 2), WorkItem(2, 0, 6))),), ops))
    return made


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        ([_back(0, 6, request=2)], "request 2 goes backward; allowed are requests that train"),
        ([_back(0, 2, request=1)], "request 1 goes backward, where 2 of its 6 tokens went forward"),
        ([_back(2, 5)], "request 0 goes backward with tokens up to 5 in layer 3; next are tokens up to 6"),
        ([_back(0, 6, (0, 3))], "goes backward with tokens 0 to 6 in layer 2; allowed are some from 6 on"),
        ([_back(4, 6), _back(4, 6)], "goes backward with tokens up to 6 in layer 3; next are tokens up to 4"),
        ([_back(4, 6, (2, 4)), _back(0, 6, (1, 2))], "tokens 0 to 6 in layer 1; allowed are some from 4 on"),
        ([_back(4, 6), _back(0, 4, (0, 1))], "tokens 0 to 4 in layer 0; allowed are some from 4 on"),
        ([_back(6, 6)], "goes backward with tokens 6 to 6"),
        ([_back(0, 6, (2, 5))], "goes backward in layers 2 to 4; there are 4"),
        ([_back(0, 6, (2, 2))], "goes backward in layers 2 to 1; there are 4"),
        ([replace(_back(0, 6), repeat=2)], "goes backward 2 times"),
        (
            [replace(_back(0, 6), cache_ops=(CacheOp("free", 0, (1, 0)),))],
            "where 0 of its 6 tokens went forward",
        ),
        ([replace(_back(0, 6), cache_ops=(CacheOp("free", 0, (1,)),))], "without blocks of all tokens"),
        ([Batch(cache_ops=(CacheOp("share", 1, (0,)),))], "request 1 shares block 0, and trains"),
    ],
)
def test_a_wrong_backward_pass_is_found(checker: BatchChecker, batches: list[Batch], said: str):
    for batch in batches[:-1]:
        checker.check(batch)
    with pytest.raises(ServeError, match=re.escape(said)):
        checker.check(batches[-1])


def test_what_trains_generates_nothing(checker: BatchChecker):
    with pytest.raises(ServeError, match="request 0 has a new token, and trains"):
        checker.generate(0)


def test_after_a_preemption_tokens_go_forward_and_back_again(checker: BatchChecker):
    checker.check(_back(4, 6))
    checker.check(Batch(cache_ops=(CacheOp("free", 0, (1, 0)),), preempted=(0,)))
    ops = (CacheOp("allocate", 0, (0, 1)),)
    checker.check(Batch((Launch((WorkItem(0, 0, 6),)),), ops))
    checker.check(_back(0, 6))
    checker.leave(0)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_batch_is_refused_if_and_only_if_a_gradient_is_not_there(data: st.DataObject):
    """By brute force: the gradient of a token in a layer needs those of the layer above, and of later tokens in it."""
    num_layers, num_tokens = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    checker = BatchChecker(4, 4, num_layers=num_layers)
    checker.arrive(0, num_tokens, trains=True)
    checker.check(Batch((Launch((WorkItem(0, 0, num_tokens),)),), (CacheOp("allocate", 0, (0,)),)))
    done = set[tuple[int, int]]()
    for _ in range(12):
        start, stop = sorted(data.draw(st.tuples(*[st.integers(0, num_tokens)] * 2)))
        first, end = sorted(data.draw(st.tuples(*[st.integers(0, num_layers)] * 2)))
        meant = {(layer, token) for layer in range(first, end) for token in range(start, stop)}
        needed = {(layer + 1, token) for layer, token in meant if layer + 1 < num_layers}
        needed |= {(layer, later) for layer, token in meant for later in range(token + 1, num_tokens)}
        layers = None if (first, end) == (0, num_layers) and data.draw(st.booleans()) else (first, end)
        if meant and meant.isdisjoint(done) and needed <= done | meant:
            checker.check(_back(start, stop, layers))
            done |= meant
        else:
            with pytest.raises(ServeError, match=r"request 0 goes backward (with tokens|in layers)"):
                checker.check(_back(start, stop, layers))
