"""Steps in which some requests go through a part of the layers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import pytest
from acts import Acts
from deployments import deployment
from hypothesis import given, settings
from hypothesis import strategies as st
from served import STEP, Checked, request

from trainyard.serve.batch import Batch, CacheOp, Launch, WorkItem
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.check import BatchChecker
from trainyard.serve.compare import compare_policies, follow_request
from trainyard.serve.draft import BatchDraft
from trainyard.serve.errors import ServeError
from trainyard.serve.instance import Instance
from trainyard.serve.policies.preemption import decode_or_preempt
from trainyard.serve.simulate_requests import simulate_requests


@dataclass(frozen=True)
class LayerByLayer:
    """One prompt at a time goes through a few layers in each step, beside all decodes."""

    num_at_once: int = 8
    repeats = "never"

    def start(self) -> None:
        return None

    def decide(self, draft: BatchDraft, state: Any) -> None:
        assert draft.num_layers is not None
        running = draft.running
        prompts = [each for each in running if not each.decodes]
        decodes = [each for each in running if each.decodes]
        while decodes:
            decode_or_preempt(draft, decodes.pop(0), 1, decodes)
        first = next(iter(prompts), draft.first_waiting)
        if first is not None and (first.blocks or first.number not in {n for n, _, _ in draft.items}):
            stop = min(first.num_layers_done + self.num_at_once, draft.num_layers)
            num = first.num_half_computed or draft.num_left(first)
            draft.compute(first, num, layers=(first.num_layers_done, stop))


def test_a_prompt_goes_through_the_layers_in_steps() -> None:
    replica = Checked(LayerByLayer(), 100, num_layers=20)
    (done,) = replica.run([request(0, 0.0, 100, 2)]).served
    assert [each.launches[0].layers for each in replica.batches if each.launches] == [
        (0, 8),
        (8, 16),
        (16, 20),
        None,
    ]
    assert str(replica.batches[1]) == "compute 0[0:100] in layers 8 to 15"
    assert done.ttft_s == pytest.approx(6e-3 + 100 * 3e-5 + 1.5e-9 * 100 * 50)  # as in one step of all layers


def test_a_part_takes_its_share_of_what_it_adds_to_a_step() -> None:
    replica = Checked(LayerByLayer(5), 200, num_layers=20)
    ends_s = []
    simulate_requests(
        [request(0, 0.0, 16, 30), request(1, 0.02, 400, 2)],
        [replica.instance],
        STEP,
        seen=lambda number, start_s, batch: ends_s.append((start_s, batch)),
    )
    (start_s, batch), (next_s, _) = next(
        pair for pair in itertools.pairwise(ends_s) if len(pair[0][1].launches) == 2
    )
    assert {launch.layers for launch in batch.launches} == {None, (0, 5)}
    decode = next(launch for launch in batch.launches if launch.layers is None).items[0]
    prompt_s = 400 * 3e-5 + 1.5e-9 * 400 * 200
    assert next_s - start_s == pytest.approx(6e-3 + 5e-5 + 2e-8 * decode.stop + prompt_s / 4)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_all_are_served_whatever_the_room(data: st.DataObject) -> None:
    requests = [
        request(n, 0.01 * n, data.draw(st.integers(1, 150)), data.draw(st.integers(1, 60)))
        for n in range(data.draw(st.integers(1, 10)))
    ]
    requests = [each._replace(request=replace(each.request, max_tokens=60)) for each in requests]
    replica = Checked(
        LayerByLayer(data.draw(st.integers(1, 12))), data.draw(st.integers(20, 40)), num_layers=12
    )
    assert len(replica.run(requests, next_token=lambda state: state.num_tokens % 3).served) == len(requests)


def test_a_deployment_knows_its_layers() -> None:
    place, requests = deployment(), [request(0, 0.0, 100, 2)]
    policy = f"{__file__}:LayerByLayer"
    known = replace(place, model=replace(place.model, num_layers=16))
    runs, cannot = compare_policies(policy, requests, known)
    assert not cannot
    (followed,) = follow_request("r0", runs, requests, known).values()
    assert [(span.kind, span.num_tokens) for span in followed.spans] == [
        ("prefill", 0),
        ("prefill", 100),
        ("decode", 1),
    ]


@pytest.mark.parametrize(
    ("layers", "num_layers", "said"),
    [
        ((0, 4), None, "here, steps are of all layers"),
        ((1, 4), 8, "it goes on with layer 0 of 8"),
        ((0, 9), 8, "layers 0 to 8"),
        ((0, 0), 8, "layers 0 to -1"),
    ],
)
def test_bad_layers(layers: tuple[int, int], num_layers: int | None, said: str) -> None:
    policy = Acts(lambda draft: draft.compute(next(draft.waiting), 10, layers=layers))
    with pytest.raises(ServeError, match=said):
        Checked(policy, 10, num_layers=num_layers).run([request(0, 0.0, 10, 1)])


def test_stages_compute_all_layers() -> None:
    policy = Acts(lambda draft: draft.compute(next(draft.waiting), 10, layers=(0, 4)))
    replica = Instance(policy, BlockCache(10, 16), num_stages=2, num_layers=8)
    with pytest.raises(ServeError, match="steps are of all layers"):
        simulate_requests([request(0, 0.0, 10, 1)], [replica], STEP)


@pytest.mark.parametrize(
    ("item", "layers", "said"),
    [
        (WorkItem(0, 0, 20), (6, 8), "from layer 4 on, of 8"),
        (WorkItem(0, 0, 10), (4, 8), "next are tokens up to 20"),
        (WorkItem(0, 0, 20), None, "from layer 4 on"),
        (WorkItem(0, 0, 20), (4, 9), "of 8"),
    ],
)
def test_bad_parts_are_found(item: WorkItem, layers: tuple[int, int] | None, said: str) -> None:
    checker = BatchChecker(3, 16, num_layers=8)
    checker.arrive(0, 30)
    checker.check(Batch((Launch((WorkItem(0, 0, 20),), layers=(0, 4)),), (CacheOp("allocate", 0, (0, 1)),)))
    with pytest.raises(ServeError, match=said):
        checker.check(Batch((Launch((item,), layers=layers),)))
