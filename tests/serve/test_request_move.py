"""Requests whose prompts are computed on one replica, and all further tokens on another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from deployments import deployment
from hypothesis import given, settings
from hypothesis import strategies as st
from served import STEP, Checked, request

from trainyard.serve.batch import Batch, CacheOp
from trainyard.serve.catalog import parse_policies
from trainyard.serve.check import BatchChecker
from trainyard.serve.compare import compare_policies, follow_request
from trainyard.serve.errors import ServeError
from trainyard.serve.policies.vllm import vllm
from trainyard.serve.policy import BatchPolicy
from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import TracedRequest
from trainyard.serve.results import Results
from trainyard.serve.router import RoutedInstance, Router, router_of
from trainyard.serve.simulate import simulate_requests

_STEP = replace(STEP, moved_block_s=1e-3)
_LOADS = replace(_STEP, adapter_s=0.01)
_POLICIES = "vllm, vllm_v0, sarathi(chunk_tokens=100), orca, vllm_v0(preempt='swap')"


def serve(
    requests: Sequence[TracedRequest],
    replicas: Sequence[Checked],
    router: str = "prefill_decode",
    **more: bool,
) -> Results:
    """Every batch is checked, and in the end nobody holds anything."""
    instances = [each.instance for each in replicas]
    results = simulate_requests(
        requests, instances, _STEP, router_of(router), next_token=lambda state: state.num_tokens % 7, **more
    )
    for each in instances:
        assert each.checker.num_held == each.num_requests == each.num_expected == 0
        assert each.cache.num_free == each.cache.num_blocks
    return results


def test_decodes_begin_when_the_blocks_have_come() -> None:
    prefill, decode = Checked(vllm(), 100), Checked(vllm(), 100)
    (done,) = serve([request(0, 1.0, 100, 3)], [prefill, decode]).served
    prompt_s = 6e-3 + 100 * 3e-5 + 1.5e-9 * 100 * 50
    decodes_s = sum(6e-3 + 5e-5 + 2e-8 * tokens for tokens in (101, 102))
    assert done.ttft_s == pytest.approx(prompt_s)
    assert done.e2e_s == pytest.approx(prompt_s + 7e-3 + decodes_s)  # 100 tokens are in 7 blocks of 16
    assert [batch.items for batch in prefill.batches if batch.launches] == [((0, 0, 100),)]
    first, *others = [batch for batch in decode.batches if batch.launches or batch.cache_ops]
    (move,) = first.cache_ops
    assert (move.kind, move.instance, len(move.blocks), len(move.to)) == ("move", 0, 7, 7)
    assert str(move).startswith("move 0: ")
    assert " of instance 0 -> " in str(move)
    assert not first.launches
    assert [batch.items[0][1:] for batch in others] == [(100, 101), (101, 102)]


def test_moves_share_links() -> None:
    prefill, decode = Checked(vllm(), 100), Checked(vllm(), 100)
    served = serve([request(n, 1.0, 160, 2) for n in range(3)], [prefill, decode]).served
    ends_s = sorted(each.finished_s for each in served)
    assert served[0].first_token_s == served[2].first_token_s
    assert ends_s[1] - ends_s[0] > 9e-3
    assert ends_s[2] - ends_s[1] > 9e-3


def test_one_token_is_an_answer_of_the_first_replica() -> None:
    prefill, decode = Checked(vllm(), 100), Checked(vllm(), 100)
    assert (
        len(
            serve(
                [request(0, 0.0, 50, 1), request(1, 0.0, 50, (1, 4), num_samples=2)], [prefill, decode]
            ).served
        )
        == 2
    )
    assert [{item.request for item in batch.items} for batch in decode.batches if batch.launches] == [{2}] * 3


def test_blocks_that_samples_share_come_once() -> None:
    prefill, decode = Checked(vllm(), 100), Checked(vllm(), 100)
    serve([request(0, 0.0, 100, (5, 6, 7), num_samples=3)], [prefill, decode])
    moves = next(batch.cache_ops for batch in decode.batches if batch.cache_ops)
    assert len(moves) == 3
    assert len({block for op in moves for block in op.to}) == 7


@pytest.mark.parametrize("policy", [each for _, each in parse_policies(_POLICIES)])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_all_are_served_whatever_the_room(policy: object, data: st.DataObject) -> None:
    lengths, outputs = st.integers(1, 150), st.integers(1, 60)
    requests = [
        request(
            n,
            0.02 * n,
            data.draw(lengths),
            data.draw(st.tuples(outputs, outputs)) if n % 4 == 3 else data.draw(outputs),
            num_samples=2 if n % 4 == 3 else 1,
        )
        for n in range(data.draw(st.integers(1, 12)))
    ]
    requests = [each._replace(request=replace(each.request, max_tokens=60)) for each in requests]
    replicas = [Checked(policy, data.draw(st.integers(30, 60)), num_host_blocks=40) for _ in range(3)]
    number = data.draw(st.integers(1, 2))
    results = serve(requests, replicas, f"prefill_decode(prefill_replicas={number})")
    assert len(results.served) == len(requests)
    assert all(
        item.stop <= requests[item.request].request.prompt_tokens
        for batch in replicas[0].batches
        for item in batch.items
        if item.request < len(requests) and not any(each.request.num_samples > 1 for each in requests)
    )


def _mixed(request: RequestState, instances: Sequence[RoutedInstance]) -> tuple[int, ...]:
    """Some requests stay on the first replica, beside others that go on from there."""
    return (0,) if request.request_number % 3 == 0 else (0, 1 + request.request_number % 2)


_ROUTERS: dict[str, Router] = {
    "mixed": _mixed,
    **{
        text: router_of(text)
        for text in (
            "round_robin",
            "least_requests",
            "prefill_decode",
            "prefill_decode(prefill_replicas=2)",
        )
    },
}
_REPEATED = (
    "vllm, vllm_v0, sarathi(chunk_tokens=100), orca, vllm_v0(preempt='swap'), vllm + vtc, vllm_v0 + vtc, orca + vtc, "
    "sarathi(chunk_tokens=100) + vtc(predict='moving average'), vllm + vtc(predict='oracle'), vllm + priority, "
    "vllm + shortest_prompt, vllm + longest_prefix"
)
_DRAWN = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.01, 0.05, 0.3]),
        st.integers(1, 150),
        st.integers(1, 90) | st.tuples(st.integers(1, 90), st.integers(1, 9)),
        st.sampled_from(["", "a", "b", "c"]),
        st.sampled_from("xyz"),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("policy", [each for _, each in parse_policies(_REPEATED)], ids=_REPEATED.split(", "))
@pytest.mark.parametrize("router", sorted(_ROUTERS))
@settings(max_examples=8, deadline=None)
@given(drawn=_DRAWN, num_blocks=st.integers(16, 60), max_loras=st.sampled_from([None, 1, 2]))
def test_repeated_steps_are_those_that_are_decided_one_by_one(
    router: str, policy: BatchPolicy, drawn: list[tuple[Any, ...]], num_blocks: int, max_loras: int | None
) -> None:
    """With adapters that are loaded, and pools between which requests move."""
    requests, now_s = [], 0.0
    for number, (gap_s, prompt, output, adapter, client) in enumerate(drawn):
        now_s += gap_s
        num_samples = len(output) if isinstance(output, tuple) else 1
        more = {"adapter": adapter, "client": client, "num_samples": num_samples, "priority": number % 3}
        each = request(number, now_s, prompt, output, **more)
        requests.append(each._replace(request=replace(each.request, max_tokens=90)))
    runs = []
    for one_by_one in (True, False):
        replicas = [Checked(policy, num_blocks, num_host_blocks=40, max_loras=max_loras) for _ in range(3)]
        instances = [each.instance for each in replicas]
        runs.append(simulate_requests(requests, instances, _LOADS, _ROUTERS[router], one_by_one=one_by_one))
    single, repeated = runs
    assert single.served == repeated.served
    assert single.num_steps == repeated.num_steps
    assert len(single.served) + len(single.refused) == len(requests)


def test_a_load_before_repeated_decodes_takes_its_time() -> None:
    """The second replica loads the adapter when the request moves in, before it decodes."""
    one = [request(0, 0.0, 16, 5, adapter="a")]

    def end_s(adapter_s: float, one_by_one: bool) -> float:
        replicas = [Checked(vllm(), 100, max_loras=1) for _ in range(2)]
        step_time = replace(STEP, adapter_s=adapter_s, moved_block_s=1e-3)
        instances = [each.instance for each in replicas]
        router = router_of("prefill_decode")
        (done,) = simulate_requests(one, instances, step_time, router, one_by_one=one_by_one).served
        return done.finished_s

    assert end_s(0.01, False) == end_s(0.01, True)
    # One load before the prompt; the other one begins with the move, which takes 1 ms of it.
    assert end_s(0.01, False) - end_s(0.0, False) == pytest.approx(0.01 + 0.01 - 1e-3)


def test_a_request_is_followed_to_its_second_replica() -> None:
    requests = [request(n, 0.0, 300, 20) for n in range(3)]
    place, router = deployment(2), router_of("prefill_decode")
    place = replace(place, model=replace(place.model, step_time=_STEP))
    runs, _ = compare_policies("vllm", requests, place, router)
    followed = follow_request("r2", runs, requests, place, router)["vllm"]
    assert [span.kind for span in followed.spans] == ["prefill", "decode"]
    assert "its KV cache moves to another replica" in {wait.why for wait in followed.waits}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prefill_decode(prefill_replicas=2)", "fewer than all"),
        ("prefill_decode(prefill_replicas=0)", "prefill_replicas"),
        ("prefill_decode(decode_replicas=1)", "its options: prefill_replicas"),
        ("round_robin, least_requests", "names several"),
        ("random", "round_robin, least_requests, prefill_decode"),
    ],
)
def test_bad_routers(text: str, said: str) -> None:
    with pytest.raises(ServeError, match=said):
        serve([request(0, 0.0, 10, 2)], [Checked(vllm(), 10), Checked(vllm(), 10)], text)


def test_data_parallel_ranks_hand_nothing_over() -> None:
    place = deployment(2)
    place = replace(place, model=replace(place.model, data_parallel=2))
    with pytest.raises(ServeError, match="data-parallel ranks"):
        simulate_requests(
            [request(0, 0.0, 10, 3)], place.instances(vllm()), _STEP, router_of("prefill_decode")
        )


@pytest.mark.parametrize(
    ("op", "said"),
    [
        (CacheOp("move", 0, (4,), to=(1,), instance=1), "comes with 1 blocks"),
        (CacheOp("move", 0, (0, 1), to=(1, 2)), "does 'move'"),
        (CacheOp("swap in", 0, (0, 1), "host", (1, 2), instance=1), "does 'swap in'"),
        (CacheOp("move", 0, (4, 5), to=(1, 9), instance=1), "there are 3"),
        (CacheOp("move", 0, (4, 5), to=(1, 1), instance=1), "others have"),
    ],
)
def test_bad_moves_are_found(op: CacheOp, said: str) -> None:
    checker = BatchChecker(3, 16)
    checker.move_in(0, 21, 20)
    with pytest.raises(ServeError, match=said):
        checker.check(Batch(cache_ops=(op,)))
