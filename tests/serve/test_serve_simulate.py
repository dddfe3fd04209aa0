"""The clock of level 3: when requests come, where they go, and what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from served import STEP, Checked, request

from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.draft import BatchDraft
from trainyard.serve.errors import ServeError
from trainyard.serve.instance import Instance
from trainyard.serve.policies.orca import Orca
from trainyard.serve.policies.sarathi import sarathi
from trainyard.serve.policies.vllm import PrefillFirst, vllm
from trainyard.serve.replicas.vidur import VidurSarathi, VidurVLLM
from trainyard.serve.requests.generate import (
    Constant,
    ConstantGaps,
    Conversations,
    IndependentLengths,
    generate_requests,
)
from trainyard.serve.requests.request import PrefixBlocks
from trainyard.serve.router import least_requests
from trainyard.serve.simulate_requests import simulate_requests
from trainyard.serve.step_time import LinearStepTime


def test_a_request_by_itself_takes_its_prompt_and_a_step_for_each_further_token():
    results = Checked(vllm(), 100).run([request(0, 1.0, 100, 3)])
    (done,) = results.served
    prompt_s = 6e-3 + 100 * 3e-5 + 1.5e-9 * 100 * 50
    decodes_s = sum(6e-3 + 5e-5 + 2e-8 * tokens for tokens in (101, 102))
    assert done.scheduled_s == 1.0
    assert done.ttft_s == pytest.approx(prompt_s)
    assert done.e2e_s == pytest.approx(prompt_s + decodes_s)
    assert done.tpot_s == pytest.approx(decodes_s / 2)
    assert (done.output_tokens, results.num_steps) == (3, 3)


def test_what_continues_a_request_comes_some_time_after_its_end():
    first, second, third = (
        request(0, 1.0, 20, 5),
        request(1, 2.0, 30, 4, parent="r0"),
        request(2, 0.5, 40, 2, parent="r1"),
    )
    results = Checked(vllm(), 100).run([first, second, third, request(3, 1.5, 10, 1)])
    done = {each.request.name: each for each in results.served}
    assert done["r1"].arrival_s == done["r0"].finished_s + 2.0
    assert done["r2"].arrival_s == done["r1"].finished_s + 0.5
    assert done["r3"].arrival_s == 1.5
    assert done["r2"].e2e_s == done["r2"].finished_s - done["r2"].arrival_s


def test_conversations_find_what_was_said_before_in_the_cache():
    requests = generate_requests(
        20,
        ConstantGaps(1.0),
        IndependentLengths(Constant(100), Constant(20)),
        conversations=Conversations(Constant(3), 2.0, 16),
        seed=1,
    )
    results = Checked(vllm(), 1000).run(requests)
    assert len(results.served) == 20
    followed = [each for each in results.served if each.request.parent]
    assert len(followed) > 10
    assert all(each.cached_tokens > 0 for each in followed)


def test_what_continues_a_request_finds_its_answer_too():
    """A prompt of 40 tokens and its answer of 30: 69 are in the cache, of which 4 blocks of 16 are full."""
    turns = Conversations(Constant(2), 2.0, 16)
    lengths = IndependentLengths(Constant(40), Constant(30))
    results = Checked(vllm(), 1000).run(generate_requests(2, ConstantGaps(1.0), lengths, conversations=turns))
    assert [each.cached_tokens for each in results.served] == [0, 64]


@pytest.mark.parametrize(
    ("prompt", "keys", "found"),
    [
        (80, (1, 2, 3, 4, 5), 64),
        (80, (1, 9, 3, 4, 5), 16),
        (69, (1, 2, 3, 4, 5), 32),
        (70, (1, 2, 3, 4, 5), 64),
    ],
)
def test_it_does_so_where_its_prompt_is_long_enough_and_begins_alike(prompt, keys, found):
    first = request(0, 0.0, 40, 30, prefix=PrefixBlocks((1, 2, 7), 16))
    second = request(1, 1.0, prompt, 1, prefix=PrefixBlocks(keys, 16), parent="r0")
    results = Checked(vllm(), 1000).run([first, second])
    assert [each.cached_tokens for each in results.served] == [0, found]


@pytest.mark.parametrize("parent", ["", "r0"])
@pytest.mark.parametrize(
    ("adapters", "found"), [(("", ""), 64), (("a", "a"), 64), (("a", "b"), 0), (("", "a"), 0)]
)
def test_only_requests_with_one_adapter_share_blocks(parent, adapters, found):
    """One that continues another begins with its answer, too: 40 tokens and 30 that were generated."""
    first = request(0, 0.0, 40, 30, prefix=PrefixBlocks((1, 2, 7), 16), adapter=adapters[0])
    more = {"prefix": PrefixBlocks((1, 2, 3, 4, 5), 16), "parent": parent, "adapter": adapters[1]}
    second = request(1, 5.0, 80, 1, **more)
    results = Checked(vllm(), 1000).run([first, second])
    # Without the parent, its answer is not known: the prompts have two blocks in common.
    assert [each.cached_tokens for each in results.served] == [0, found if parent else found // 2]


def test_a_request_of_several_samples_ends_with_the_last_one():
    given = [request(0, 0.0, 20, (2, 5, 1), num_samples=3), request(1, 1.0, 30, 4, parent="r0")]
    instance = Checked(vllm(), 100)
    first, second = instance.run(given).served
    assert (first.by_sample, first.output_tokens, first.longest_tokens) == ((2, 5, 1), 8, 5)
    assert first.tpot_s == pytest.approx((first.finished_s - first.first_token_s) / 4)
    assert second.arrival_s == first.finished_s + 1.0
    assert [len(each.items) for each in instance.batches if each.items][:3] == [1, 2, 1]


def test_requests_go_to_instances_in_turn_however_many_samples_they_have():
    instances = [Instance(vllm(), BlockCache(100, 16)) for _ in range(2)]
    where = []
    given = [request(number, 0.0, 20, 1, num_samples=2) for number in range(4)]
    simulate_requests(
        given, instances, STEP, seen=lambda number, _, batch: where.append((number, len(batch.items)))
    )
    assert sorted(each for each in where if each[1]) == [(0, 2), (1, 2)]


def test_copies_of_the_cache_take_their_time():
    """Two samples copy the last block of their prompt once; of two requests, one is swapped out and in."""
    plain, copies = (
        LinearStepTime(1.0, 0.0, 0.0),
        LinearStepTime(1.0, 0.0, 0.0, copied_block_s=5.0, swapped_block_s=0.25),
    )
    for policy, given, extra_s in (
        (vllm(), [request(0, 0.0, 22, 3, num_samples=2)], 5.0),
        (vllm(preempt="swap"), [request(number, 0.0, 8, 16) for number in range(2)], 0.25 * 2 * 5),
    ):
        ends_s = [
            simulate_requests(given, [Instance(policy, BlockCache(10, 4, 10))], step_time).end_s
            for step_time in (plain, copies)
        ]
        assert ends_s[1] - ends_s[0] == extra_s


@pytest.mark.parametrize("wrong", ["computed", "swapped out", "swapped in"])
def test_only_what_is_there_is_swapped(wrong):
    class Wrong(_OneByOne):
        def decide(self, draft, state):
            first = draft.first_waiting
            if first is not None and wrong == "swapped out":
                draft.swap_out([first])
            if first is None and not draft.swapped:
                first = draft.running[0]
                if wrong == "swapped in":
                    draft.swap_in([first])
                assert draft.swap_out([first])
                assert not draft.swap_in([first]) or draft.swap_out([first])
            draft.compute(first, draft.num_left(first))

    said = (
        "has 1 left, of which 0 are in a step; it is swapped out"
        if wrong == "computed"
        else f"'r0' is to be {wrong}"
    )
    with pytest.raises(ServeError, match=said):
        Checked(Wrong(), 10, 4, 10).run([request(0, 0.0, 9, 5)])


def test_what_continues_a_refused_request_is_refused():
    given = [
        request(0, 0.0, 2000, 5),
        request(1, 1.0, 30, 4, parent="r0"),
        request(2, 1.0, 30, 4, parent="r1"),
    ]
    results = Checked(vllm(), 100).run(given)
    assert not results.served
    assert [(each.request.name, each.why) for each in results.refused] == [
        ("r0", "a prompt of 2000 tokens; prompt and answer have at most 1600"),
        ("r1", "continues a request that was refused"),
        ("r2", "continues a request that was refused"),
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            [request(0, 2.0, 9, 1), request(1, 1.0, 9, 1)],
            "request 'r1' arrives at 1.0 s, after one of 2.0 s; give",
        ),
        (
            [request(0, 2.0, 9, 1, parent="nobody")],
            "request 'r0' continues 'nobody', which is not there or has ended",
        ),
    ],
)
def test_requests_out_of_order_are_refused(given, said):
    with pytest.raises(ServeError, match=said):
        Checked(vllm(), 100).run(given)


def test_two_requests_of_one_name_are_refused():
    with pytest.raises(
        ServeError, match="two requests that are there at once are called 'r1'; give each a name"
    ):
        Checked(vllm(), 100).run([request(1, 0.0, 8, 5), request(1, 0.0, 8, 9)])


def test_a_long_conversation_whose_first_request_is_refused_is_refused():
    turns = [request(0, 0.0, 10_000, 1)] + [request(n, 1.0, 8, 1, parent=f"r{n - 1}") for n in range(1, 2000)]
    assert len(Checked(vllm(), 10).run(turns).refused) == 2000


class _Idle:
    """A policy that computes nothing."""

    repeats = "never"

    def start(self):
        return None

    def decide(self, draft, state):
        pass


def test_a_policy_that_leaves_requests_waiting_is_an_error_not_a_hang():
    with pytest.raises(ServeError, match="1 request is never served"):
        Checked(_Idle(), 100).run([request(0, 0.0, 9, 1)])


def test_requests_go_where_the_fewest_are():
    instances = [Instance(vllm(), BlockCache(100, 16)) for _ in range(3)]
    sizes = []

    def seen(number, start_s, batch):
        sizes.append((number, len(batch.items)))

    given = [request(number, 0.0, 20, 10) for number in range(6)]
    results = simulate_requests(given, instances, STEP, least_requests, seen)
    assert len(results.served) == 6
    assert {number for number, _ in sizes} == {0, 1, 2}
    assert {num for _, num in sizes} == {2}


class _OneByOne:
    """A policy of one request a step."""

    repeats = "always"

    def start(self):
        return None

    def decide(self, draft, state):
        running = draft.running
        if running:
            draft.compute(running[0], draft.num_left(running[0]))
        elif draft.first_waiting is not None:
            draft.compute(draft.first_waiting, draft.num_left(draft.first_waiting))


def test_a_pipeline_has_a_batch_in_every_stage():
    """Stages take 3 and 4 s; a stage takes one batch after the other, and each request is in one batch at a time."""
    instance = Instance(_OneByOne(), BlockCache(100, 16), num_stages=2)
    step_time = LinearStepTime(0.0, 1.0, 8.0)
    starts = []
    results = simulate_requests(
        [request(0, 0.0, 6, 2), request(1, 1.0, 6, 1)],
        [instance],
        step_time,
        seen=lambda number, start_s, batch: starts.append((start_s, batch.items[0].request)),
    )
    # 0: 0 to 3, 3 to 6; 1: 3 to 6, 6 to 9; 0 again: from 6 on, 6 to 10, 10 to 14
    assert {each.request.name: each.finished_s for each in results.served} == {"r0": 14.0, "r1": 9.0}
    assert sorted(starts) == [(0.0, 0), (1.0, 1), (6.0, 0)]
    assert Instance(_OneByOne(), BlockCache(1, 2)).num_stages == 1
    with pytest.raises(ServeError, match="num_stages is 0; allowed is 1 or more"):
        Instance(_OneByOne(), BlockCache(100, 16), num_stages=0)


@dataclass(frozen=True)
class _Unequal(LinearStepTime):
    """The first of two stages takes a quarter of a step."""

    def stage_seconds(self, items, requests, num_stages):
        return self.seconds(items, requests) * np.array([0.25, 0.75])


def test_the_slowest_stage_of_a_pipeline_says_how_many_batches_it_computes():
    instance = Instance(_OneByOne(), BlockCache(100, 16), num_stages=2)
    results = simulate_requests(
        [request(number, 0.0, 8, 1) for number in range(3)], [instance], _Unequal(0.0, 1.0, 8.0)
    )
    # The first stage: 0 to 2, 2 to 4, and from 8 on, when the first batch has left, 8 to 10; the second: 2 to 8, 8 to 14.
    assert [each.finished_s for each in results.served] == [8.0, 14.0, 20.0]


@pytest.mark.parametrize(
    "policy", [vllm(64, 8), PrefillFirst(64, 8), sarathi(32, 8), Orca(4), VidurVLLM(), VidurSarathi(32)]
)
def test_pipelines_serve_all(policy):
    instance = Checked(policy, 24, 4, num_stages=3, prefix_caching=False)
    results = instance.run([request(number, 0.01 * number, 5 + number, 10) for number in range(20)])
    assert {each.output_tokens for each in results.served} == {10}
    assert len(results.served) == 20


class _Greedy(_OneByOne):
    """A policy that computes more than there is."""

    def decide(self, draft, state):
        draft.compute(draft.first_waiting, 100)


def test_a_policy_that_computes_more_than_there_is_is_an_error():
    with pytest.raises(
        ServeError, match="request 'r0': 100 tokens are to be computed; it has 9 left, of which 0 are in"
    ):
        Checked(_Greedy(), 100).run([request(0, 0.0, 9, 1)])


@pytest.mark.parametrize("wrong", ["preempt", "refuse"])
def test_only_those_that_run_are_preempted_and_only_those_that_wait_are_refused(wrong):
    class Wrong(_OneByOne):
        def decide(self, draft, state):
            if wrong == "preempt":
                draft.preempt(draft.first_waiting)
            each = draft.first_waiting
            draft.compute(each, draft.num_left(each))
            draft.refuse(each, "no longer")

    with pytest.raises(ServeError, match=f"request 'r0' is to be {wrong}"):
        Checked(Wrong(), 100).run([request(0, 0.0, 9, 1)])


def test_what_a_request_had_computed_is_found_again_after_it_was_preempted():
    """Its text is not known, so that nobody else finds it; without an index nobody does."""

    def num_computed(prefix_caching):
        instance = Checked(vllm(64, 8), 12, 4, prefix_caching=prefix_caching)
        results = instance.run([request(number, 0.0, 8, 20) for number in range(3)])
        assert results.num_preemptions > 0
        assert all(each.cached_tokens == 0 for each in results.served)
        return sum(each.num_tokens for each in instance.batches)

    assert num_computed(True) < num_computed(False)


@pytest.mark.parametrize(("most", "allowed"), [(1, "2 or more"), (101, "2 to 100")])
def test_a_model_length_that_cannot_be_is_refused(most, allowed):
    with pytest.raises(ServeError, match=f"max_model_len {most}; allowed is {allowed}"):
        Instance(vllm(), BlockCache(10, 10), most)


def test_answers_end_where_a_sequence_is_as_long_as_the_model_takes():
    instance = Instance(vllm(), BlockCache(10, 10), 30)
    (done,) = simulate_requests([request(0, 0.0, 25, 50)], [instance], STEP).served
    assert done.output_tokens == 5


@dataclass(frozen=True)
class _PreemptsAll:
    """Begins all requests anew in every step."""

    repeats = "never"

    def start(self) -> None:
        return None

    def decide(self, draft: BatchDraft, state: None) -> None:
        for each in draft.running:
            draft.preempt(each)
        for each in list(draft.waiting):
            draft.compute(each, 1)


def test_a_policy_under_which_nobody_gets_any_farther_is_an_error():
    with pytest.raises(ServeError, match="none generated a token meanwhile"):
        Checked(_PreemptsAll(), 100).run([request(0, 0.0, 20, 3), request(1, 0.0, 20, 3)])


def test_where_requests_go_does_not_depend_on_when_they_become_samples():
    """Under ORCA, one that waits becomes its samples at the next decision, which is later where decodes are repeated."""
    rest = [request(n, 0.1 * n, 100, 60, num_samples=1 + n % 5) for n in range(40)]

    def ends(one_by_one: bool) -> list[tuple[str, float]]:
        instances = [Instance(Orca(), BlockCache(300, 16)) for _ in range(2)]
        found = simulate_requests(rest, instances, STEP, least_requests, one_by_one=one_by_one).served
        return [(each.request.name, each.finished_s) for each in found]

    assert ends(False) == ends(True)
