"""vLLM: samples of one prompt share its blocks, and requests are swapped out and in."""

from __future__ import annotations

import numpy as np
import pytest
from served import Checked, request

from trainyard.serve.errors import ServeError
from trainyard.serve.policies.vllm import PrefillFirst, vllm
from trainyard.serve.requests.request import Request, TracedRequest

_NUM_SLOTS = 15_700
"""Table 1: slots of the cache beside OPT-13B on an A100 of 40 GB."""


@pytest.mark.parametrize("policy", [PrefillFirst(), vllm()])
def test_two_samples_of_a_prompt_copy_its_last_block_when_the_first_of_them_writes(policy):
    """Figure 8: a prompt of 7 tokens in blocks of 4; reference counts go from 2 to 1, and the second writes in place."""
    instance = Checked(policy, 8, 4)
    cache, counts = instance.instance.cache, []

    def seen(number, start_s, batch):
        counts.append([cache.ref_count(block) for block in range(4)])

    instance.run([request(0, 0.0, 7, 4, num_samples=2)], one_by_one=True, seen=seen)
    assert [str(batch) for batch in instance.batches[:3]] == [
        "compute 0[0:7]\nallocate 0: 0 1",
        "compute 0[7:8] 1[7:8]\ncopy 0: 1 -> 2",
        "compute 0[8:9] 1[8:9]\nallocate 0: 3\nallocate 1: 4",
    ]
    assert counts[:3] == [[1, 1, 0, 0], [2, 1, 1, 0], [2, 1, 1, 1]]


def _preempting(preempt: str, num_samples: int = 1) -> Checked:
    instance = Checked(PrefillFirst(64, 8, preempt=preempt), 12, 4, num_host_blocks=20)
    results = instance.run([request(number, 0.0, 8, 20, num_samples=num_samples) for number in range(3)])
    assert results.num_preemptions > 0
    assert [each.request.name for each in results.served] == ["r0", "r1", "r2"]
    assert {each.output_tokens for each in results.served} == {20 * num_samples}
    return instance


def _num_swapped_out(instance: Checked) -> int:
    return sum(op.kind == "swap out" for batch in instance.batches for op in batch.cache_ops)


def test_what_is_swapped_out_is_not_computed_again():
    """Section 4.5: requests get the same tokens and end in the same order; each token is computed once."""
    swapped, again = _preempting("swap"), _preempting("recompute")
    num_tokens = [sum(batch.num_tokens for batch in each.batches) for each in (swapped, again)]
    assert num_tokens[0] == 3 * (8 + 19) < num_tokens[1]
    assert _num_swapped_out(swapped) > 0
    assert _num_swapped_out(again) == 0
    assert _num_swapped_out(_preempting("swap samples")) == 0  # each of these is one sequence


def test_all_samples_of_a_request_lose_their_blocks_together_and_come_back_together():
    """Section 4.5: what a block of several samples is copied for, it is copied for once."""
    instance = _preempting("swap samples", num_samples=2)
    swaps = [
        [op for op in batch.cache_ops if op.kind in ("swap out", "swap in")]
        for batch in instance.batches
        if batch.copies
    ]
    together = [ops for ops in swaps if len(ops) == 2]
    assert {ops[0].kind for ops in together} == {"swap out", "swap in"}
    for first, second in together:
        assert second.request == first.request + 1
        assert first.to[:2] == second.to[:2]  # of the prompt
        assert not set(first.to[2:]) & set(second.to[2:])


def test_while_some_are_swapped_out_no_new_request_is_admitted():
    instance = Checked(PrefillFirst(64, 8, preempt="swap"), 12, 4, num_host_blocks=20)
    states, decide = instance.instance.queues, instance.instance.decide
    num_seen = 0

    def watched(now_s):
        nonlocal num_seen
        swapped, waiting = set(states.swapped), set(states.waiting)
        batch = decide(now_s)
        if swapped and waiting:
            num_seen += 1
            assert not {item.request for item in batch.items} & waiting
        return batch

    instance.instance.decide = watched  # type: ignore[method-assign]
    instance.run(
        [request(number, 0.0, 8, 20) for number in range(3)] + [request(3, 0.07, 4, 2)], one_by_one=True
    )
    assert num_seen > 5


def test_without_room_on_the_host_tokens_are_computed_again():
    instance = Checked(PrefillFirst(64, 8, preempt="swap"), 12, 4, num_host_blocks=1)
    results = instance.run([request(number, 0.0, 8, 20) for number in range(3)])
    assert results.num_preemptions > 0
    assert _num_swapped_out(instance) == 0


def test_samples_that_outgrow_the_cache_go_on_one_by_one():
    """Together they would need 3 + 4 * 4 blocks, of which there are 10."""
    instance = Checked(PrefillFirst(64, 8), 10, 4, num_host_blocks=40)
    (done,) = instance.run([request(0, 0.0, 12, 18, num_samples=4)]).served
    assert done.by_sample == (18,) * 4
    assert done.num_preemptions > 0


def test_samples_count_as_requests_that_run():
    instance = Checked(PrefillFirst(64, max_requests=4), 100, 4)
    instance.run([request(number, 0.0, 8, 5, num_samples=3) for number in range(2)])
    assert max(len(batch.items) for batch in instance.batches) == 3


def test_another_way_to_preempt_is_refused():
    with pytest.raises(ServeError, match="preempt is 'drop'; allowed is one of 'recompute', 'swap', 'swap"):
        vllm(preempt="drop")  # type: ignore[arg-type]


def _saved(mean_prompt: float, mean_output: float, num_samples: int) -> float:
    """Share of the blocks that would be held if samples shared none, in the mean of all steps while some wait."""
    instance = Checked(PrefillFirst(), _NUM_SLOTS // 16, num_host_blocks=4000)
    running, decide, shares = instance.instance.queues.running, instance.instance.decide, []

    def watched(now_s):
        batch = decide(now_s)
        if instance.instance.queues.waiting:
            blocks = [block for each in running.values() for block in each.blocks]
            shares.append(1 - len(set(blocks)) / len(blocks))
        return batch

    def drawn():
        rng = np.random.default_rng(0)
        for number in range(round(50_000 / mean_output)):
            prompt, output = (
                int(min(1 + rng.exponential(mean), 1000)) for mean in (mean_prompt, mean_output)
            )
            wanted = Request(str(number), 0.0, prompt, 2048 - prompt, num_samples=num_samples)
            yield TracedRequest(wanted, output)

    instance.instance.decide = watched  # type: ignore[method-assign]
    instance.run(drawn())
    return float(np.mean(shares))


def test_more_is_saved_with_more_samples_and_with_longer_prompts():
    """Figure 15a: 6.1 % to 9.8 % with 2 to 6 samples of Alpaca; section 6.3: 16.2 % to 30.5 % of ShareGPT."""
    long, short = ([_saved(*means, num) for num in (2, 6)] for means in ((161, 338), (19, 58)))
    assert long == pytest.approx([0.162, 0.305], abs=0.08)
    assert short == pytest.approx([0.061, 0.098], abs=0.04)
    assert long[0] < long[1] - 0.05
    assert short[0] < short[1] - 0.02
