"""vLLM: how many requests run at once, what is wasted, and who is preempted."""

from __future__ import annotations

import numpy as np
import pytest
from served import Checked, request

from trainyard.serve.policies.orca import Orca
from trainyard.serve.policies.vllm import PrefillFirst, vllm
from trainyard.serve.requests.request import Request, TracedRequest

_NUM_SLOTS = 15_700
"""Table 1: slots of the cache beside OPT-13B on an A100 of 40 GB."""


def _share_gpt(num: int):
    """Lengths as Figure 11 has them of ShareGPT: means of 161 and 338, sequences of up to 2048; all wait at once."""
    rng = np.random.default_rng(0)
    for number in range(num):
        prompt, output = (int(min(1 + rng.exponential(mean), 1000)) for mean in (161, 338))
        yield TracedRequest(Request(str(number), 0.0, prompt, 2048 - prompt), output)


def _mean_requests(policy) -> tuple[float, float]:
    """How many requests are in a step, and which share of the slots of their blocks has tokens, while some wait."""
    instance = Checked(policy, _NUM_SLOTS // 16)
    shares, nums = [], []

    def seen() -> None:
        states = instance.instance.queues.running.values()
        if instance.instance.queues.waiting:
            nums.append(len(states))
            shares.append(
                sum(each.num_tokens for each in states) / sum(16 * len(each.blocks) for each in states)
            )

    decide = instance.instance.decide
    instance.instance.decide = lambda now_s: (decide(now_s), seen())[0]  # type: ignore[method-assign]
    instance.run(_share_gpt(300))
    return float(np.mean(nums)), float(np.mean(shares))


def test_four_times_as_many_requests_as_with_reservations_and_hardly_any_waste():
    """Figure 13a: 30.42 requests at once where ORCA (Max) has 7.00; figure 2: 96.3 % of the cache is used, not 20.4 %."""
    reserved, used_of_reserved = _mean_requests(Orca(max_requests=256))
    paged, used = _mean_requests(PrefillFirst(max_batch_tokens=2048))
    assert reserved == pytest.approx(7.0, abs=0.1)
    assert paged > 30.42 / 7.00 * reserved
    assert used_of_reserved < 0.25
    assert used > 0.95


@pytest.mark.parametrize("policy", [PrefillFirst(64, 8), vllm(64, 8)])
def test_the_last_to_come_is_preempted_and_computes_its_tokens_again(policy):
    """Section 4.5: of requests that outgrow the cache, the last one to come loses all its blocks, and is then first."""
    instance = Checked(policy, num_blocks=8, block_tokens=4)
    results = instance.run([request(number, 0.0, 8, 12) for number in range(3)])
    assert [each.request.name for each in results.served] == ["r0", "r1", "r2"]
    assert results.served[0].num_preemptions == 0
    first = next(each for each in instance.batches if each.preempted)
    assert first.preempted == (2,)
    again = next(
        item
        for each in instance.batches
        for item in each.items
        if item.request == 2 and item.start == 0 and item.stop > 8
    )
    assert again.stop > 8  # with the tokens that it had generated


def test_a_budget_is_spent_on_decodes_and_a_prompt_is_cut_where_it_ends():
    instance = Checked(vllm(max_batch_tokens=10, max_requests=4), num_blocks=100)
    instance.run([request(0, 0.0, 4, 5), request(1, 0.0, 25, 2)])
    assert [
        [(item.request, item.start, item.stop) for item in each.items] for each in instance.batches[:4]
    ] == [
        [(0, 0, 4), (1, 0, 6)],
        [(0, 4, 5), (1, 6, 15)],
        [(0, 5, 6), (1, 15, 24)],
        [(0, 6, 7), (1, 24, 25)],
    ]


def test_prompts_that_begin_alike_share_blocks_and_compute_them_once():
    """Section 4.4, shared prefix: a later request computes only what is after the blocks that it found."""
    common = tuple(range(32))
    prompts = [(*common, *(100 * number + each for each in range(1, 8))) for number in range(3)]
    instance = Checked(vllm(max_requests=1), num_blocks=100)
    results = instance.run(
        [request(number, 0.0, 39, 3, prompt_ids=prompt) for number, prompt in enumerate(prompts)],
        next_token=lambda each: 7,
    )
    assert [each.cached_tokens for each in results.served] == [0, 32, 32]
    assert sum(each.num_tokens for each in instance.batches) == 39 + 7 + 7 + 3 * 2
