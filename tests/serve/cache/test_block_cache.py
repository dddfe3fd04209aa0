"""The cache in blocks: what is lost first, and what is found."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from served import table
from shared_data import DATA, needs_data

from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.cache.block_keys import BlockKeys
from trainyard.serve.cache.eviction import LeastRecentlyUsed, UnkeyedFirst
from trainyard.serve.errors import ServeError
from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import PrefixBlocks, Request


def _hit_fraction(capacity: int, prompts: list[list[int]]) -> float:
    """As least recently used: each key of a prompt, in order, is touched or entered."""
    cache, num_cached_tokens = BlockCache(capacity, 512), 0
    for keys in prompts:
        num_cached_tokens += len(cache.find(keys))
        for key in keys:
            block = cache.find([key])
            if block:
                cache.share(block)
            else:
                block = cache.next_free(1)
                cache.allocate(block)
                cache.register(block[0], key)
            cache.free(block)
    return num_cached_tokens / sum(map(len, prompts))


@needs_data(DATA)
def test_hits_of_a_trace_are_those_of_least_recently_used():
    with (DATA / "serving/mooncake/conversation_trace.jsonl").open() as file:
        prompts = [json.loads(line)["hash_ids"] for line in file]
    rows = table(DATA / "reference/serve/prefix_cache.csv")
    assert len(rows) == 4
    for row in rows:
        capacity = int(row["capacity_blocks"].replace("unlimited", row["block_references"]))
        assert _hit_fraction(capacity, prompts) == pytest.approx(float(row["hit_fraction"]), abs=1e-6)


def test_what_was_given_back_longest_ago_is_lost_first():
    cache = BlockCache(4, 16)
    blocks = cache.next_free(4)
    cache.allocate(blocks)
    for block, key in zip(blocks, "abcd", strict=True):
        cache.register(block, key)
    cache.free([2, 0])
    cache.free([3, 1])
    cache.allocate(cache.next_free(2))
    assert [cache.find([key]) for key in "abcd"] == [[], [1], [], [3]]


def test_a_block_that_is_shared_is_free_when_the_last_one_gives_it_back():
    cache = BlockCache(2, 16)
    cache.allocate([0])
    cache.register(0, "a")
    cache.share(cache.find(["a"]))
    cache.free([0])
    assert (cache.num_free, cache.num_held([0, 1])) == (1, 1)
    cache.free([0])
    assert (cache.num_free, cache.num_held([0, 1])) == (2, 0)
    assert cache.find(["a"]) == [0]


def test_a_later_block_with_the_same_key_is_the_one_that_is_found():
    cache = BlockCache(3, 16)
    cache.allocate([0, 1])
    cache.register(0, "a")
    cache.register(1, "a")
    assert cache.find(["a"]) == [1]
    cache.free([0])
    cache.allocate([0])  # what was in the other one is lost; this one is still found
    assert cache.find(["a"]) == [1]


def test_of_two_blocks_with_the_same_key_both_can_be_lost():
    cache = BlockCache(2, 16)
    cache.allocate([0, 1])
    cache.register(0, "a")
    cache.register(1, "a")
    cache.free([1, 0])
    cache.allocate([1])
    cache.allocate([0])
    assert cache.find(["a"]) == []


@pytest.mark.parametrize(("num_blocks", "block_tokens"), [(0, 16), (4, 0), (-1, 16)])
def test_a_cache_without_room_is_refused(num_blocks, block_tokens):
    with pytest.raises(ServeError, match="allowed is 1 or more of both"):
        BlockCache(num_blocks, block_tokens)


def test_more_blocks_than_are_free_are_refused():
    with pytest.raises(ServeError, match="5 blocks are to be allocated; 4 of 4 are free"):
        BlockCache(4, 16).next_free(5)


def _with_keys(eviction):
    """Blocks 0 to 3, of which 0 and 2 have keys, given back in this order."""
    cache = BlockCache(4, 16, eviction=eviction)
    cache.allocate([0, 1, 2, 3])
    cache.register(0, "a")
    cache.register(2, "c")
    cache.free([0, 1, 2, 3])
    return cache


def test_blocks_that_nobody_finds_may_be_lost_first():
    assert _with_keys(LeastRecentlyUsed).next_free(4) == [0, 1, 2, 3]
    cache = _with_keys(UnkeyedFirst)
    assert (cache.num_free, cache.next_free(4)) == (4, [1, 3, 0, 2])
    cache.share(cache.find(["a"]))
    cache.allocate([1])
    assert cache.next_free(2) == [3, 2]
    cache.free([1, 0])
    assert cache.next_free(4) == [3, 1, 2, 0]


def test_copies_are_found_by_the_keys_of_what_is_in_them():
    cache = BlockCache(4, 16, num_host_blocks=3)
    cache.allocate([0, 1])
    cache.register(0, "a")
    assert cache.host is not None
    copies = cache.host.allocate_copies([0, 1, 0], cache)
    assert copies == {0: 0, 1: 1}
    cache.free([0, 1])
    cache.allocate([2, 3, 0, 1])
    cache.free([2, 3])
    assert cache.find(["a"]) == []
    assert cache.allocate_copies([0, 1], cache.host) == {0: 2, 1: 3}
    assert cache.find(["a"]) == [2]
    assert (cache.num_free, cache.host.num_free) == (0, 1)
    with pytest.raises(ServeError, match="a cache with -1 blocks on the host; allowed is 0 or more"):
        BlockCache(4, 16, -1)


_TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=12)


@given(_TOKENS, _TOKENS, st.integers(1, 4))
def test_keys_of_tokens_are_the_same_where_all_before_is(one, other, size):
    keys = BlockKeys(size)

    def of(tokens):
        return keys.of(
            RequestState(0, Request("r", 0.0, len(tokens), 1, prompt_ids=tuple(tokens)), 0.0),
            len(tokens) // size,
        )

    first, second = of(one), of(other)
    assert (len(first), len(second)) == (len(one) // size, len(other) // size)
    for place in range(min(len(first), len(second))):
        end = (place + 1) * size
        assert (first[place] == second[place]) == (one[:end] == other[:end])


@given(st.integers(1, 40), st.integers(0, 40), st.integers(1, 9), st.integers(1, 9))
def test_keys_of_a_prefix_are_the_same_where_its_blocks_are(num_tokens, num_common, prefix_size, size):
    """Two prompts whose blocks are the same as far as these are full of common tokens."""
    num = -(-num_tokens // prefix_size)
    num_same = min(num_common // prefix_size, num)
    keys = BlockKeys(size)

    def of(mark):
        ids = tuple(range(num_same)) + tuple(mark + place for place in range(num_same, num))
        prompt = Request("r", 0.0, num_tokens, 1, prefix=PrefixBlocks(ids, prefix_size))
        return keys.of(RequestState(0, prompt, 0.0), num_tokens // size)

    same = [a == b for a, b in zip(of(1000), of(2000), strict=True)]
    assert same == [(place + 1) * size <= num_same * prefix_size for place in range(num_tokens // size)]


def test_tokens_that_are_not_known_are_like_no_others():
    keys, prompt = BlockKeys(4), (1, 2, 3, 4, 5, 6)
    one, other = (RequestState(n, Request(str(n), 0.0, 6, 99, prompt_ids=prompt), 0.0) for n in range(2))
    assert keys.of(one, 1) == keys.of(other, 1)
    assert keys.of(one, 2) != keys.of(other, 2)


@pytest.mark.parametrize("how", ["tokens", "prefix"])
def test_keys_of_equal_prompts_differ_where_their_adapters_or_salts_do(how):
    keys, ids = BlockKeys(4), (1, 2, 3)
    owners = (("", ""), ("a", ""), ("b", ""), ("", "a"), ("", "b"), ("a", "b"), ("ab", ""), ("", "ab"))

    def of(adapter, salt):
        more = {"prompt_ids": ids * 4} if how == "tokens" else {"prefix": PrefixBlocks(ids, 4)}
        request = Request("r", 0.0, 12, 1, adapter=adapter, cache_salt=salt, **more)
        return keys.of(RequestState(0, request, 0.0), 3)

    found = [of(*owner) for owner in owners]
    assert len({key for each in found for key in each}) == 3 * len(owners)
    assert [of(*owner) for owner in owners] == found


@pytest.mark.parametrize("order", [LeastRecentlyUsed, UnkeyedFirst])
def test_forgotten_blocks_stay_with_those_who_hold_them_and_in_their_order(order):
    cache = BlockCache(4, 16, num_host_blocks=2, eviction=order)
    cache.allocate([0, 1, 2, 3])
    for block in range(4):
        cache.register(block, f"key {block}")
    assert cache.host is not None
    cache.host.allocate([0])
    cache.host.register(0, "on the host")
    cache.free([2, 1])
    cache.forget()
    assert (cache.find(["key 0"]), cache.find(["key 1"]), cache.host.find(["on the host"])) == ([], [], [])
    assert (cache.ref_count(0), cache.num_free, cache.next_free(2)) == (1, 2, [2, 1])
    cache.register(0, "key 0")
    assert cache.find(["key 0"]) == [0]
    cache.allocate([2, 1])
    cache.free([0])
    assert cache.next_free(1) == [0]
