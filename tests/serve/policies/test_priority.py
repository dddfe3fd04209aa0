"""The most urgent request first."""

from __future__ import annotations

from dataclasses import replace

from served import Checked, request

from trainyard.serve.catalog import parse_policies, reads_priority
from trainyard.serve.policies.priority import Priority
from trainyard.serve.policies.token_budget import TokenBudget
from trainyard.serve.requests.request import TracedRequest


def urgent(number: int, priority: int) -> TracedRequest:
    traced = request(number, 0.001 * number, 50, 20)
    return traced._replace(request=replace(traced.request, priority=priority))


def test_who_is_most_urgent_comes_first_and_the_first_of_equal_ones() -> None:
    replica = Checked(TokenBudget(1000, 1, admission=Priority()), 100)
    requests = [urgent(number, priority) for number, priority in enumerate((5, 2, 0, 2, -1))]
    served = replica.run(requests).served
    assert [each.request.name for each in served] == [
        "r0",
        "r4",
        "r2",
        "r1",
        "r3",
    ]  # whoever runs is served to the end


def test_who_was_preempted_comes_before_more_urgent_ones() -> None:
    replica = Checked(TokenBudget(1000, admission=Priority()), 9)
    requests = [urgent(0, 5), urgent(1, 5)] + [
        each._replace(request=replace(each.request, arrival_s=0.2)) for each in (urgent(2, 0),)
    ]
    served = {each.request.name: each for each in replica.run(requests).served}
    assert served["r1"].num_preemptions == 1
    assert served["r1"].finished_s < served["r2"].finished_s


def test_which_policies_read_priorities() -> None:
    assert reads_priority("sarathi + priority")
    assert not reads_priority("vllm, sarathi + vtc")
    assert [name for name, _ in parse_policies("priority")] == ["priority"]
