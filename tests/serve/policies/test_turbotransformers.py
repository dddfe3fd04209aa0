"""TurboTransformers: batches by dynamic programming are the best, and memory is reused within requests and between."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from served import Checked

from trainyard.serve.batch import WorkItem
from trainyard.serve.errors import ServeError
from trainyard.serve.policies.turbotransformers.allocator import Chunk, ChunkedMemory, UsageRecord, allocate
from trainyard.serve.policies.turbotransformers.batching import (
    BatchCost,
    PaddedStepTime,
    TurboTransformers,
    plan_batches,
)
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.simulate_requests import simulate_requests

_LENGTHS = st.lists(st.integers(1, 8), min_size=1, max_size=7)
_TABLE = st.lists(st.integers(0, 50), min_size=56, max_size=56)


def _linear(step: float) -> BatchCost:
    """A constant and each token of the padded batch."""
    return lambda length, size: step + length * size


def _seconds(batches, lengths, cost) -> float:
    return sum(cost(max(lengths[place] for place in batch), len(batch)) for batch in batches)


@given(lengths=_LENGTHS, table=_TABLE, most=st.integers(1, 7))
def test_no_split_of_the_sorted_requests_takes_less(lengths, table, most):
    """Algorithm 3 against all contiguous splits, at costs without any order among them."""

    def cost(length: int, size: int) -> float:
        return table[(length - 1) * 7 + size - 1]

    batches = plan_batches(lengths, cost, most)
    order = sorted(range(len(lengths)), key=lambda place: lengths[place])
    assert [place for batch in batches for place in batch] == order
    assert max(map(len, batches)) <= most
    every = []
    for num_cuts in range(len(lengths)):
        for cuts in combinations(range(1, len(lengths)), num_cuts):
            split = [order[start:stop] for start, stop in pairwise((0, *cuts, len(order)))]
            if max(map(len, split)) <= most:
                every.append(_seconds(split, lengths, cost))
    assert _seconds(batches, lengths, cost) == min(every)


@given(lengths=st.lists(st.integers(1, 500), min_size=1, max_size=60), step=st.integers(0, 5000))
def test_never_worse_than_one_batch_or_than_none(lengths, step):
    cost = _linear(step)
    found = _seconds(plan_batches(lengths, cost, len(lengths)), lengths, cost)
    assert found <= cost(max(lengths), len(lengths))
    assert found <= sum(cost(length, 1) for length in lengths)


@pytest.mark.parametrize(
    ("step", "groups"), [(20.0, [[17, 18], [52, 63], [77]]), (50.0, [[17, 18], [52, 63, 77]])]
)
def test_groups_of_alike_lengths_beat_one_batch_and_none(step, groups):
    """Five requests: the more of a batch is the same for any size, the fewer batches there are."""
    lengths, cost = [52, 17, 77, 18, 63], _linear(step)
    batches = plan_batches(lengths, cost, 5)
    assert [[lengths[place] for place in batch] for batch in batches] == groups
    assert _seconds(batches, lengths, cost) < cost(77, 5)
    assert _seconds(batches, lengths, cost) < sum(cost(length, 1) for length in lengths)


@pytest.mark.parametrize(
    ("lengths", "seconds", "most", "said"),
    [
        ([1], 1.0, 0, "max_requests is 0; allowed is 1"),
        ([3, 0], 1.0, 1, "a request of 0 tokens; allowed is 1"),
        ([3], float("nan"), 1, "1 requests of 3 tokens costs nan s; allowed is a time of 0 s or more"),
        ([3], -1.0, 1, "1 requests of 3 tokens costs -1.0 s"),
    ],
)
def test_what_is_no_length_limit_or_cost(lengths, seconds, most, said):
    with pytest.raises(ServeError, match=said):
        plan_batches(lengths, lambda length, size: seconds, most)


def test_of_plans_that_take_the_same_time_the_one_with_small_batches():
    assert plan_batches([5, 5, 5], _linear(0.0), 3) == ((0,), (1,), (2,))


def test_a_policy_without_room_in_its_batches():
    with pytest.raises(ServeError, match="max_requests is 0; allowed is 1"):
        TurboTransformers(_linear(1.0), 0)


def _encode(number: int, arrival_s: float, tokens: int, most: int = 1) -> TracedRequest:
    return TracedRequest(Request(f"r{number}", arrival_s, tokens, most), 1)


def _serve(requests, cost, max_requests: int = 20, num_blocks: int = 1000):
    """Tokens of the requests of each batch, and the results."""
    checked = Checked(TurboTransformers(cost, max_requests), num_blocks)
    results = simulate_requests(requests, [checked.instance], PaddedStepTime(cost))
    assert checked.instance.cache.num_free == num_blocks
    return [[item.stop for item in each.items] for each in checked.batches if each.items], results


def test_a_free_instance_takes_all_that_wait_and_computes_their_batches_in_turn():
    """The hungry strategy: r0 runs alone; those that came meanwhile are planned at its end, later ones after these."""
    lengths = [40, 52, 17, 77, 18, 63]
    requests = [_encode(0, 0.0, 40), *(_encode(n, 1.0, tokens) for n, tokens in enumerate(lengths[1:], 1))]
    batches, results = _serve([*requests, _encode(6, 100.0, 17)], _linear(50.0))
    assert batches == [[40], [17, 18], [52, 63, 77], [17]]
    assert {each.request.name: each.finished_s for each in results.served} == {
        "r0": 90.0,
        **dict.fromkeys(["r2", "r4"], 90.0 + 86.0),
        **dict.fromkeys(["r1", "r3", "r5"], 176.0 + 281.0),
        "r6": 457.0 + 67.0,
    }


@given(drawn=st.lists(st.tuples(st.floats(0, 200), st.integers(1, 100)), min_size=1, max_size=30))
def test_all_are_served_once_also_where_the_cache_has_no_room_for_a_batch(drawn):
    requests = [_encode(n, at_s, tokens) for n, (at_s, tokens) in enumerate(sorted(drawn))]
    batches, results = _serve(requests, _linear(50.0), max_requests=6, num_blocks=10)
    assert sorted(tokens for batch in batches for tokens in batch) == sorted(tokens for _, tokens in drawn)
    assert len(results.served) == len(drawn)
    assert max(map(len, batches)) <= 6
    assert all(sum(-(-tokens // 16) for tokens in batch) <= 10 for batch in batches)


def test_batches_that_do_not_fit_in_the_cache_go_on_in_the_next_one():
    batches, _ = _serve([_encode(n, 0.0, 64) for n in range(5)], _linear(1e6), num_blocks=8)
    assert batches == [[64, 64], [64, 64], [64]]


def test_requests_that_generate_are_refused():
    _, results = _serve([_encode(0, 0.0, 10), _encode(1, 0.0, 10, most=2)], _linear(1.0))
    (refused,) = results.refused
    assert refused.why == "max_tokens is 2, where a request is one forward pass; give 1"
    assert [each.request.name for each in results.served] == ["r0"]


def test_a_plan_is_sooner_done_than_one_batch_or_none():
    """Under the same padded times, the same requests one by one, and all in one batch."""
    requests = [_encode(n, 0.0, 10 + 37 * n % 400) for n in range(60)]
    cost = _linear(200.0)
    _, planned = _serve(requests, cost, 60)
    _, alone = _serve(requests, cost, 1)
    assert planned.end_s < alone.end_s
    assert planned.end_s < cost(max(each.request.prompt_tokens for each in requests), 60)


def test_padded_steps_of_whole_sequences():
    items, padded = [WorkItem(0, 4, 5), WorkItem(1, 8, 9)], PaddedStepTime(_linear(100.0))
    assert padded.seconds(items, {}) == 118.0
    assert list(padded.decode_seconds(items, 3)) == [118.0, 120.0, 122.0]


_RECORDS = st.lists(
    st.builds(
        lambda first, num, size: UsageRecord("", first, first + num, size),
        st.integers(0, 12),
        st.integers(0, 5),
        st.integers(1, 40),
    ),
    min_size=1,
    max_size=20,
)


def _bert(tokens: int, num_layers: int = 2, hidden: int = 768, heads: int = 12) -> list[UsageRecord]:
    """Activations of an encoder in 4 bytes: each layer has seven operators and passes its output to the next."""
    row, scores = 4 * tokens * hidden, 4 * heads * tokens * tokens
    records = []
    for layer in range(num_layers):
        op = 7 * layer
        for name, first, last, size in [
            ("input", op - 1, op + 5, row),
            ("qkv", op, op + 1, 3 * row),
            ("q", op + 1, op + 2, row),
            ("k", op + 1, op + 2, row),
            ("v", op + 1, op + 3, row),
            ("scores", op + 2, op + 3, scores),
            ("context", op + 3, op + 4, row),
            ("attended", op + 4, op + 6, row),
            ("intermediate", op + 5, op + 6, 4 * row),
        ]:
            records.append(UsageRecord(f"{layer}.{name}", first, last, size))
    return records


def _live_bytes(records: list[UsageRecord]) -> int:
    ops = range(min(each.first_op for each in records), 1 + max(each.last_op for each in records))
    return max(sum(each.size_bytes for each in records if each.first_op <= op <= each.last_op) for op in ops)


def _check(records: list[UsageRecord], memory: ChunkedMemory) -> None:
    """Every tensor lies within a chunk, none upon another while both are alive, and no chunk is empty."""
    size = dict(memory.chunks)
    assert len(size) == len(memory.chunks)
    assert {place.chunk for place in memory.places} == set(size)
    ends = []
    for record, place in zip(records, memory.places, strict=True):
        assert 0 <= place.offset_bytes <= size[place.chunk] - record.size_bytes
        ends.append((record, place.chunk, place.offset_bytes, place.offset_bytes + record.size_bytes))
    for (one, chunk, start, stop), (other, also, first, last) in combinations(ends, 2):
        alive = one.first_op <= other.last_op and other.first_op <= one.last_op
        assert not (alive and chunk == also and start < last and first < stop)
    assert memory.footprint_bytes >= _live_bytes(records)


@given(requests=st.lists(_RECORDS, min_size=1, max_size=4))
def test_tensors_that_are_alive_at_once_never_overlap(requests):
    kept: tuple[Chunk, ...] = ()
    for records in requests:
        memory = allocate(records, kept, chunk_bytes=32)
        _check(records, memory)
        new = [chunk for chunk in memory.chunks if chunk not in kept]
        largest = max(each.size_bytes for each in records)
        assert all(32 <= chunk.size_bytes <= max(32, 1.2 * largest + 1) for chunk in new)
        kept = memory.chunks


@given(before=_RECORDS, records=_RECORDS)
def test_the_same_request_again_changes_nothing(before, records):
    """What was released is not missed: chunks are searched in the order in which they were allocated."""
    first = allocate(records, allocate(before, chunk_bytes=32).chunks, chunk_bytes=32)
    assert allocate(records, first.chunks, chunk_bytes=32) == first


@pytest.mark.parametrize("tokens", [40, 200, 500])
def test_reuse_by_lifetimes_needs_less_than_without(tokens):
    """Without reuse each tensor has bytes of its own, layer by layer; with it, another layer costs nothing."""
    records = _bert(tokens, num_layers=12)
    memory = allocate(records)
    _check(records, memory)
    assert memory.footprint_bytes < 0.25 * sum(each.size_bytes for each in records)
    assert memory.footprint_bytes == allocate(_bert(tokens, num_layers=2)).footprint_bytes


@pytest.mark.parametrize(("longer", "shorter"), [(500, 450), (500, 200), (240, 200), (200, 40), (64, 63)])
def test_a_shorter_request_after_a_longer_one_allocates_nothing(longer, shorter):
    before = allocate(_bert(longer))
    after = allocate(_bert(shorter), before.chunks)
    _check(_bert(shorter), after)
    assert set(after.chunks) <= set(before.chunks)


def test_a_longer_request_keeps_the_chunks_and_a_much_shorter_one_releases_some():
    short = allocate(_bert(200))
    long = allocate(_bert(400), short.chunks)
    assert set(short.chunks) < set(long.chunks)
    assert set(allocate(_bert(40), long.chunks).chunks) < set(long.chunks)


def test_the_smallest_gap_that_is_large_enough_and_then_the_end():
    """Algorithm 2: a and d leave gaps of 30 and 20 where they end; 20 goes into the smaller one, 25 into the other."""
    sizes = [("a", 0, 0, 30), ("b", 0, 9, 29), ("d", 0, 0, 20), ("c", 0, 9, 20)]
    late = [("20", 5, 5, 20), ("25", 7, 7, 25), ("1", 0, 9, 1)]
    memory = allocate([UsageRecord(*each) for each in [*sizes, *late]], chunk_bytes=100)
    assert [place.offset_bytes for place in memory.places] == [0, 30, 59, 79, 59, 0, 99]
    assert memory.chunks == (Chunk(0, 100),)
    more = allocate([UsageRecord(*each) for each in [*sizes, *late, ("over", 0, 9, 1)]], chunk_bytes=100)
    assert more.chunks == (Chunk(0, 100), Chunk(1, 100))


def test_a_large_tensor_gets_a_chunk_of_its_scaled_size():
    assert allocate([UsageRecord("", 0, 0, 10 * 2**20)]).chunks == (Chunk(0, 12 * 2**20),)
    assert allocate([UsageRecord("", 0, 0, 5)]).chunks == (Chunk(0, 2 * 2**20),)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: UsageRecord("x", 0, 0, 0), "tensor 'x' has 0 bytes"),
        (lambda: UsageRecord("x", 3, 2, 5), "from operator 3 to 2; allowed are"),
        (lambda: allocate([], [Chunk(1, 5), Chunk(1, 6)]), "give each a number of its own"),
        (lambda: allocate([], [Chunk(1, 0)]), "allowed is 1 or more"),
        (lambda: allocate([], chunk_bytes=0), "allowed is 1 or more"),
        (lambda: allocate([], scale=0.9), "scale is 0.9; allowed is 1 or more"),
    ],
)
def test_what_is_no_record_chunk_or_scale(wrong, said):
    with pytest.raises(ServeError, match=said):
        wrong()
