"""Weights of adapters and of the model that a policy loads and unloads by layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from acts import Acts
from hypothesis import given, settings
from hypothesis import strategies as st
from served import STEP, Checked, request

from trainyard.serve.batch import Batch, Launch, Layers, WeightOp, WorkItem
from trainyard.serve.cache.adapter_slots import AdapterSlots
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.check import BatchChecker
from trainyard.serve.data_parallel import DataParallelInstance
from trainyard.serve.draft import BatchDraft
from trainyard.serve.errors import ServeError
from trainyard.serve.instance import Instance
from trainyard.serve.policies.vllm import vllm
from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import Request
from trainyard.serve.run.engine import Engine, EngineOptions
from trainyard.serve.run.simulated_model import SimulatedModel
from trainyard.serve.simulate_requests import simulate_requests

_STEP = replace(STEP, adapter_s=0.5, weights_s=8.0)
_NUM_LAYERS = 8


@dataclass(frozen=True)
class Streamed:
    """Of the model and of an adapter, only the layers are on the device that a prompt goes through in a step."""

    repeats = "never"

    def start(self) -> None:
        return None

    def decide(self, draft: BatchDraft, state: Any) -> None:
        one = next(iter(draft.running), draft.first_waiting)
        if one is None:
            return
        done = one.num_layers_done
        for name in ("", one.request.adapter):
            if done == 0:
                draft.unload_weights(name)
            else:
                draft.unload_weights(name, (0, done))
            assert draft.load_weights(name, (done, done + 4))
        draft.compute(one, one.num_half_computed or draft.num_left(one), layers=(done, done + 4))


def test_weights_come_layer_by_layer_and_take_their_share():
    replica = Checked(Streamed(), 100, max_loras=1, num_layers=_NUM_LAYERS)
    (done,) = simulate_requests([request(0, 0.0, 100, 2, adapter="a")], [replica.instance], _STEP).served
    assert [str(op) for op in replica.batches[0].weight_ops] == [
        "unload the model",
        "load the model in layers 0 to 3 from host",
        "load adapter a in layers 0 to 3 from host",
    ]
    assert replica.batches[2].weight_ops == (
        WeightOp("unload", "", layers=(4, 8)),
        WeightOp("load", "", layers=(0, 4)),
        WeightOp("unload", "a", layers=(4, 8)),
        WeightOp("load", "a", layers=(0, 4)),
    )
    assert str(replica.batches[1]).startswith(
        "compute 0[0:100] in layers 4 to 7\nunload the model in layers 0 to 3\nload the model in layers 4 to 7 from host"
    )
    prompt_s = STEP.seconds([WorkItem(0, 0, 100)], {0: RequestState(0, request(0, 0.0, 100, 2).request, 0.0)})
    assert done.ttft_s == pytest.approx(8.5 + prompt_s)


def test_a_request_loads_all_of_an_adapter_that_is_not_there():
    """One that a policy took away comes back with the next request; the policy's own loads count."""

    def act(draft: BatchDraft) -> None:
        if draft.first_waiting is not None:
            draft.compute(draft.first_waiting, 10)
        elif not draft.running:
            draft.unload_weights("a", (2, 8))
            draft.unload_weights("a")

    replica = Checked(Acts(act), 10, max_loras=1, num_layers=_NUM_LAYERS)
    replica.run([request(0, 0.0, 10, 1, adapter="a"), request(1, 1.0, 10, 1, adapter="a")])
    assert [op for batch in replica.batches for op in batch.weight_ops] == [
        WeightOp("load", "a"),
        WeightOp("unload", "a", layers=(2, 8)),
        WeightOp("unload", "a", layers=(0, 2)),
        WeightOp("load", "a"),
        WeightOp("unload", "a", layers=(2, 8)),
        WeightOp("unload", "a", layers=(0, 2)),
    ]


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (
            lambda draft, one: (draft.unload_weights("", (6, 8)), draft.compute(one, 10)),
            "'r0' is to be computed without weights of the model in 2 layers, first in layer 6; load them before",
        ),
        (
            lambda draft, one: (draft.load_weights("a", (0, 4)), draft.compute(one, 10, layers=(0, 8))),
            "without weights of a in 4 layers, first in layer 4",
        ),
        (
            lambda draft, one: (draft.compute(one, 10, layers=(0, 4)), draft.unload_weights("a", (3, 5))),
            "'r0' is to be computed, and weights of a unloaded before",
        ),
        (
            lambda draft, one: (draft.compute(one, 10), draft.unload_weights("")),
            "'r0' is to be computed, and weights of the model unloaded before",
        ),
        (
            lambda draft, one: draft.load_weights("", (4, 9)),
            "weights of the model in layers 4 to 8; it has 8",
        ),
        (lambda draft, one: draft.unload_weights("a", (4, 4)), "weights of a in layers 4 to 3; it has 8"),
    ],
)
def test_what_is_not_there_computes_nothing(act: Callable[..., Any], said: str):
    policy = Acts(lambda draft: act(draft, draft.first_waiting) if draft.num_waiting else None)
    with pytest.raises(ServeError, match=said):
        Checked(policy, 10, max_loras=1, num_layers=_NUM_LAYERS).run([request(0, 0.0, 10, 1, adapter="a")])


def test_adapters_without_slots_stay_on_the_device():
    policy = Acts(lambda draft: draft.unload_weights("a"))
    with pytest.raises(ServeError, match="all adapters stay on the device; give max_loras"):
        Checked(policy, 10).run([request(0, 0.0, 10, 1, adapter="a")])


def test_there_is_no_slot_for_another_adapter_while_a_request_runs():
    seen = []

    def act(draft: BatchDraft) -> None:
        for each in draft.running or list(draft.waiting):
            draft.compute(each, draft.num_left(each))
            seen.append(draft.load_weights("b", (0, 1)))

    Checked(Acts(act), 10, max_loras=1, num_layers=2).run([request(0, 0.0, 10, 2, adapter="a")])
    assert seen == [False, False]


@pytest.mark.parametrize(
    ("ops", "layers", "said"),
    [
        (
            [WeightOp("load", "a", layers=(0, 4))],
            None,
            r"without its adapter 'a' in layers \[4, 5, 6, 7\]; load it",
        ),
        ([WeightOp("load", "a", layers=(0, 4))], (4, 8), r"without its adapter 'a' in layers \[4, 5, 6, 7\]"),
        (
            [WeightOp("load", "a"), WeightOp("unload", "", layers=(0, 1))],
            None,
            r"weights of the model in layers \[0\]",
        ),
        ([WeightOp("load", "a"), WeightOp("unload", "")], None, "without the weights of the model; load it"),
        (
            [WeightOp("load", "", layers=(0, 1))],
            None,
            "load the model in layers 0 to 0 from host, which is there",
        ),
        (
            [WeightOp("load", "a", layers=(0, 4)), WeightOp("load", "a")],
            None,
            "load adapter a from host, which is there",
        ),
        (
            [WeightOp("load", "a", layers=(0, 4)), WeightOp("unload", "a")],
            None,
            "unload adapter a, which is not there",
        ),
        ([WeightOp("load", "a", layers=(4, 9))], None, "layers 4 to 8 from host; allowed are 8 layers"),
        ([WeightOp("load", "a", layers=(4, 4))], None, "layers 4 to 3 from host; allowed are 8 layers"),
        (
            [WeightOp("load", "a", layers=(0, 1)), WeightOp("load", "b", layers=(7, 8))],
            None,
            "beside 1 others",
        ),
    ],
)
def test_wrong_weights_are_found(ops: list[WeightOp], layers: Layers, said: str):
    checker = BatchChecker(3, 16, max_loras=1, num_layers=_NUM_LAYERS)
    checker.arrive(0, 10, adapter="a")
    if layers is not None and layers[0]:
        before = (WeightOp("load", "a", layers=(4, 8)), WeightOp("unload", "a", layers=(4, 8)))
        checker.check(Batch(weight_ops=before))
    with pytest.raises(ServeError, match=said):
        checker.check(Batch((Launch((WorkItem(0, 0, 10),), layers=layers),), weight_ops=tuple(ops)))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_slots_say_is_true_of_every_layer(data: st.DataObject):
    """Whatever is loaded and unloaded, a launch is refused if and only if one of its layers has no weights."""
    num_layers, num = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 2))
    slots = AdapterSlots(num, num_layers)
    there = {(name, layer): not name for name in ("", "a", "b", "c") for layer in range(num_layers)}
    checker = BatchChecker(8, 16, max_loras=num, num_layers=num_layers)
    ranges = st.integers(0, num_layers - 1).flatmap(
        lambda first: st.tuples(st.just(first), st.integers(first + 1, num_layers))
    )
    for number in range(data.draw(st.integers(1, 12))):
        name, layers = data.draw(st.sampled_from(["", "a", "b", "c"])), data.draw(st.none() | ranges)
        act = data.draw(st.sampled_from(["load", "unload", "use"]))
        if act == "unload":
            ops = slots.unload(name, layers)
        else:
            assert slots.has_room(name, ())
            ops = slots.load(name, layers, ()) if act == "load" else slots.use(name, ())
        for op in ops:
            for layer in range(*(op.layers or (0, num_layers))):
                assert there[op.adapter, layer] == (op.kind == "unload")
                there[op.adapter, layer] = op.kind == "load"
        checker.check(Batch(weight_ops=tuple(ops)))
        used, through = data.draw(st.sampled_from(["", "a", "b", "c"])), data.draw(ranges)
        lacking = [layer for layer in range(*through) if not (there["", layer] and there[used, layer])]
        assert bool(lacking) == bool(checker._weights.lacks(used, through)), number


def test_adapters_of_data_parallel_ranks_take_their_time():
    ranks = DataParallelInstance([Instance(vllm(), BlockCache(10, 16), max_loras=1) for _ in range(2)])
    requests = [request(n, 0.0, 10, 1, adapter="a") for n in range(2)]
    served = simulate_requests(requests, [ranks], _STEP).served
    assert [done.ttft_s > 1.0 for done in served] == [True, True]


def test_an_engine_keeps_its_weights():
    model = SimulatedModel("m", STEP, 64, 10, (1,))
    engine = Engine(model, Acts(lambda draft: draft.unload_weights("")), EngineOptions(num_blocks=4))
    engine.add(Request("r", 0.0, 2, 4, prompt_ids=(1, 2)))
    with pytest.raises(ServeError, match="the policy wants to unload the model; an engine keeps all weights"):
        engine.step()
