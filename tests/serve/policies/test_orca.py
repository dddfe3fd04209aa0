"""ORCA: who joins and leaves at an iteration, and what is reserved."""

from __future__ import annotations

from served import Checked, request

from trainyard.serve.policies.orca import Orca


def _requests_by_step(instance: Checked) -> list[str]:
    return [
        " ".join(f"{item.request}[{item.start}:{item.stop}]" for item in each.items)
        for each in instance.batches
    ]


def test_requests_join_and_leave_at_every_iteration():
    """Figure 4: prompts of two lengths begin at different iterations, and share them with decodes of others."""
    instance = Checked(Orca(max_requests=3), num_blocks=10_000)
    instance.run(
        [request(1, 0.0, 2, 2), request(2, 0.001, 3, 4), request(3, 0.001, 5, 1), request(4, 0.001, 2, 2)]
    )
    assert _requests_by_step(instance)[:5] == [
        "0[0:2]",
        "0[2:3] 1[0:3] 2[0:5]",
        "1[3:4] 3[0:2]",
        "1[4:5] 3[2:3]",
        "1[5:6]",
    ]


def test_what_may_be_needed_is_reserved_and_the_first_that_finds_too_few_slots_holds_up_the_others():
    """Algorithm 1, lines 11 to 14: room for 2.5 requests of 1016 tokens; the third waits though its prompt would fit."""
    instance = Checked(Orca(max_requests=8), num_blocks=160)
    instance.run(
        [request(number, 0.0, 16, 40) for number in range(3)] + [request(3, 0.0, 16, 1)], one_by_one=True
    )
    steps = _requests_by_step(instance)
    assert {each.count("[") for each in steps[:40]} == {2}
    assert steps[0] == "0[0:16] 1[0:16]"
    assert steps[40] == "2[0:16] 3[0:16]"
    assert all(not each.preempted for each in instance.batches)


def test_samples_of_a_prompt_are_computed_by_themselves_each_with_its_reservation():
    instance = Checked(Orca(max_requests=8), num_blocks=160)
    instance.run([request(0, 0.0, 16, 3, num_samples=3), request(1, 0.0, 16, 2)], one_by_one=True)
    assert _requests_by_step(instance)[:4] == [
        "0[0:16] 1[0:16]",
        "0[16:17] 1[16:17]",
        "0[17:18] 1[17:18]",
        "2[0:16] 3[0:16]",
    ]
    assert not any(each.copies for each in instance.batches)
