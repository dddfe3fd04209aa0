"""SGLang's scheduler: which steps have prompts, who is admitted, and who is retracted, by the rules of the program.

The cases are computed by hand, in blocks of one token, which is a page of the program by default. A request of a prompt
of p tokens that may generate m takes p + m + 1 tokens of the estimate when it is admitted. When it has generated g, it
has p + g - 1 blocks and counts as 0.7 (m - g) tokens more.
"""

from __future__ import annotations

import pytest
from served import Checked, request

from trainyard.serve.admission import Admission
from trainyard.serve.policies.longest_prefix import LongestPrefix
from trainyard.serve.policies.sglang import SGLang


def _steps(instance: Checked) -> list[list[tuple[int, int, int]]]:
    """Items of every step."""
    return [
        [(item.request, item.start + step, item.stop + step) for item in batch.items]
        for batch in instance.batches
        for step in range(batch.repeat)
        if batch.items
    ]


def _prompts(instance: Checked) -> list[tuple[int, ...]]:
    """Requests of each step of prompts."""
    return [
        tuple(number for number, *_ in items)
        for items in _steps(instance)
        if any(stop - start > 1 for _, start, stop in items)
    ]


def test_decodes_wait_until_the_chunks_of_prompts_are_computed():
    instance = Checked(SGLang(chunk_tokens=8), 100, 1)
    instance.run([request(0, 0.0, 4, 3, 3), request(1, 0.0, 20, 2, 2)])
    assert _steps(instance) == [
        [(0, 0, 4), (1, 0, 4)],
        [(1, 4, 12)],
        [(1, 12, 20)],
        [(0, 4, 5), (1, 20, 21)],
        [(0, 5, 6)],
    ]


def test_mixed_chunks_take_a_token_of_the_chunk_for_each_decode():
    instance = Checked(SGLang(chunk_tokens=8, mixed_chunk=True), 100, 1)
    instance.run([request(0, 0.0, 4, 4, 4), request(1, 0.0, 16, 2, 2)])
    assert [sorted(items) for items in _steps(instance)] == [
        [(0, 0, 4), (1, 0, 4)],
        [(0, 4, 5), (1, 4, 11)],
        [(0, 5, 6), (1, 11, 16)],
        [(0, 6, 7), (1, 16, 17)],
    ]


def test_a_chunk_ends_where_a_block_does():
    """Of 10 tokens, 5 are of the first prompt, which count as two blocks of 4; half a block is left, so none is cut."""
    instance = Checked(SGLang(chunk_tokens=10), 100, 4)
    instance.run([request(0, 0.0, 5, 1, 1), request(1, 0.0, 14, 1, 1), request(2, 0.0, 9, 1, 1)])
    assert _steps(instance) == [[(0, 0, 5)], [(1, 0, 8)], [(1, 8, 14)], [(2, 0, 8)], [(2, 8, 9)]]


def test_chunks_that_are_smaller_than_a_block_are_computed_one_by_one():
    instance = Checked(SGLang(chunk_tokens=3), 100, 4)
    instance.run([request(0, 0.0, 7, 1, 1)])
    assert _steps(instance) == [[(0, 0, 3)], [(0, 3, 6)], [(0, 6, 7)]]


def test_whole_prompts_are_added_while_the_budget_lasts_and_the_first_one_always_is():
    instance = Checked(SGLang(chunk_tokens=0, max_prefill_tokens=10), 100, 1)
    instance.run([request(number, 0.0, prompt, 1, 1) for number, prompt in enumerate((12, 4, 5, 2))])
    assert _prompts(instance) == [(0,), (1, 2), (3,)]


@pytest.mark.parametrize(("prompt", "is_admitted"), [(12, True), (13, False)])
def test_running_requests_count_as_seven_tenths_of_what_they_may_generate(prompt: int, is_admitted: bool):
    """40 blocks, of which the first prompt has 10; it may generate 9 more tokens after its first: 40 - 10 - 6.3 = 23.7.

    The second one may generate 10: with 12 tokens of a prompt it needs 23, and with 13 it needs 24. While the first is
    admitted, it counts as all 10 tokens that it may generate, so the second one is not in the same step.
    """
    instance = Checked(SGLang(), 40, 1)
    instance.run([request(0, 0.0, 10, 3, 10), request(1, 0.0, prompt, 3, 10)])
    second = next(place for place, items in enumerate(_steps(instance)) if items[0][0] == 1)
    assert second == (1 if is_admitted else 3)


def test_the_share_becomes_smaller_with_each_step_of_decodes_but_no_request_is_tried_until_one_leaves():
    """After 300 steps 0.399 of 599 tokens are 239, and 600 blocks are free: the second one, which needs 301, would fit.

    It is not admitted before the first has its 500 tokens, because it did not fit when it came: 900 - 0.7 * 899 = 270.7.
    If it comes only then, it is.
    """
    first = request(0, 0.0, 100, 500, 900)
    early = Checked(SGLang(), 1000, 1)
    early.run([first, request(1, 0.0, 200, 1, 100)])
    assert [items[0] for items in _steps(early)].index((1, 0, 200)) == 500
    late = Checked(SGLang(), 1000, 1)
    ends_s = early.run([first]).served[0].finished_s
    late.run([first, request(1, 0.7 * ends_s, 200, 1, 100)])
    assert 330 < [items[0] for items in _steps(late)].index((1, 0, 200)) < 370


@pytest.mark.parametrize(("prompt", "is_admitted"), [(17, True), (18, False)])
def test_the_share_begins_anew_when_the_server_is_idle(prompt: int, is_admitted: bool):
    """After 600 steps of decodes, and a pause, 50 of 700 blocks are free and a request may generate 19 tokens more: 13.3.

    So 36.7 tokens are left, and the next request needs 36 or 37. With the share of before, 0.098, both would be admitted.
    """
    instance = Checked(SGLang(), 700, 1)
    long = request(0, 0.0, 60, 601, 601)
    instance.run([long, request(1, 1e3, 650, 3, 20), request(2, 1e3, prompt, 3, 18)])
    steps = _steps(instance)
    assert steps[601] == [(1, 0, 650)]
    assert steps[602] == ([(2, 0, 17)] if is_admitted else [(1, 650, 651)])


def test_the_longest_prompt_of_those_with_fewest_tokens_is_retracted_and_waits_after_all_others():
    """39 blocks. The second is admitted: it needs 23, and 37 - 0.7 * 19 = 23.7 are left. Then each step takes 2 blocks.

    17 steps of decodes take what is left, 39 - 5 = 34. Both have 18 tokens then; the second has the longer prompt. The
    third, which came with both, is admitted before it.
    """
    instance = Checked(SGLang(), 39, 1, prefix_caching=False)
    results = instance.run([request(0, 0.0, 2, 20, 20), request(1, 0.0, 3, 19, 19), request(2, 0.0, 2, 1, 1)])
    assert [each.num_preemptions for each in sorted(results.served, key=lambda each: each.request.name)] == [
        0,
        1,
        0,
    ]
    steps = _steps(instance)
    assert steps[:2] == [[(0, 0, 2)], [(1, 0, 3)]]
    assert steps[18] == [(0, 18, 19), (1, 19, 20)]
    assert steps[19:22] == [[(0, 19, 20)], [(2, 0, 2)], [(0, 20, 21)]]
    assert steps[22] == [(1, 0, 21)]


@pytest.mark.parametrize(("prompt", "is_admitted"), [(90, True), (91, False)])
def test_after_a_retraction_the_share_is_what_is_left_has_generated_and_twenty_tokens(
    prompt: int, is_admitted: bool
):
    """291 blocks: the second is admitted, as 289 - 0.7 * 199 = 149.7 are left for 149; after 143 decodes none is free.

    The first stays, with 144 of 200 tokens: (144 + 20) / 201. A step later it may generate 55 more, and 145 blocks are
    free, so 100.1 tokens are left. The third needs 100, or 101.
    """
    instance = Checked(SGLang(), 291, 1)
    instance.run([request(0, 0.0, 2, 200, 200), request(1, 0.0, 3, 145, 145), request(2, 0.0, prompt, 1, 9)])
    steps = _steps(instance)
    assert steps[1] == [(1, 0, 3)]
    assert steps[144:146] == [[(0, 144, 145), (1, 145, 146)], [(0, 145, 146)]]
    assert steps[146] == ([(2, 0, 90)] if is_admitted else [(0, 146, 147)])


@pytest.mark.parametrize(("interval", "place"), [(1, 3), (4, 5), (6, 7)])
def test_requests_that_come_between_decodes_are_received_after_so_many_of_them(interval: int, place: int):
    """The second comes while the second decode runs, after one step of the prompt: steps 3, 5 and 7 follow that."""
    first = request(0, 0.0, 4, 12, 12)
    ends_s: list[float] = []
    alone = Checked(SGLang(), 100, 1)
    alone.run([first], one_by_one=True, seen=lambda _, at_s, batch: ends_s.append(at_s))
    came_s = (ends_s[2] + ends_s[3]) / 2
    for one_by_one in (True, False):
        instance = Checked(SGLang(receive_interval=interval), 100, 1)
        instance.run([first, request(1, came_s, 5, 1, 1)], one_by_one=one_by_one)
        assert [items[0] for items in _steps(instance)].index((1, 0, 5)) == place


def test_at_most_so_many_requests_run():
    instance = Checked(SGLang(max_requests=2), 100, 1)
    instance.run([request(number, 0.0, 3, 4, 4) for number in range(3)])
    assert max(len(items) for items in _steps(instance)) == 2
    assert _prompts(instance) == [(0, 1), (2,)]


@pytest.mark.parametrize(
    ("admission", "order"),
    [
        (LongestPrefix(), [0, 3, 1, 2]),
        (LongestPrefix(most_waiting=3), [0, 3, 1, 2]),
        (LongestPrefix(most_waiting=2), [0, 1, 3, 2]),
    ],
)
def test_the_longest_prefix_is_first_unless_too_many_wait(admission: Admission, order: list[int]):
    """Requests 1 to 3 wait while 0 runs alone; 3 begins with its prompt. If 2 at most may be sorted, 1 is next."""
    instance = Checked(SGLang(max_requests=1, admission=admission), 100, 4)
    alike, other = tuple(range(8)), (9,) * 9
    prompts = [(*alike, 8), other, (7,) * 9, (*alike, 6)]
    instance.run(
        [request(number, 0.0, 9, 2, prompt_ids=prompt) for number, prompt in enumerate(prompts)],
        next_token=lambda each: 0,
    )
    begun = list(dict.fromkeys(item[0] for items in _steps(instance) for item in items))
    assert begun == order
