"""Trainyard's own form of requests: what is written is read, and what is wrong is said."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.serve.errors import ServeError
from trainyard.serve.requests.read import read_requests
from trainyard.serve.requests.readers.own import FIELDS, write_requests
from trainyard.serve.requests.request import PrefixBlocks, Request, TracedRequest

TEXTS = st.text(st.characters(exclude_categories=("C",)), max_size=8)
OBJECTIVES = st.floats(1e-6, 1e6) | st.just(float("inf"))
FIRST = {"name": "a", "arrival_s": 1, "prompt_tokens": 2, "output_tokens": 3}


@st.composite
def traced(draw: st.DrawFn, name: str, earlier: int) -> TracedRequest:
    prompt_tokens, num_samples = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    lengths = tuple(draw(st.lists(st.integers(1, 9), min_size=num_samples, max_size=num_samples)))
    output_tokens = draw(st.sampled_from([lengths[0], lengths]))
    size = draw(st.integers(1, 5))
    num_blocks = -(-prompt_tokens // size)
    keys = draw(st.none() | st.lists(st.integers(-(2**63), 2**64), min_size=num_blocks, max_size=num_blocks))
    num_ids = draw(st.sampled_from([0, prompt_tokens]))
    parent = draw(st.none() | st.integers(0, earlier - 1)) if earlier else None
    request = Request(
        name,
        draw(st.floats(0, 1e9)),
        prompt_tokens,
        draw(st.integers(max(lengths), 100)),
        **{what: draw(TEXTS) for what in ("model", "client", "adapter")},
        prompt_ids=tuple(draw(st.lists(st.integers(0, 2**17), min_size=num_ids, max_size=num_ids))),
        prefix=None if keys is None else PrefixBlocks(tuple(keys), size),
        **{what: draw(OBJECTIVES) for what in ("ttft_s", "tpot_s", "e2e_s")},
        weight=draw(st.floats(1e-3, 1e3)),
        priority=draw(st.integers(-(2**53), 2**53)),
        parent="" if parent is None else f"r{parent}",
        num_samples=num_samples,
    )
    return TracedRequest(request, output_tokens)


@st.composite
def traces(draw: st.DrawFn) -> list[TracedRequest]:
    return [draw(traced(f"r{number}", number)) for number in range(draw(st.integers(1, 6)))]


@settings(max_examples=60)
@given(traces())
def test_what_is_written_is_read_back(requests: list[TracedRequest]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "requests.jsonl"
        assert write_requests(requests, path) == len(requests)
        found = read_requests(path, strict=True)
        read = list(found)
    assert {each.request.name: each for each in read} == {each.request.name: each for each in requests}
    places = {each.request.name: place for place, each in enumerate(read)}
    assert all(
        places[each.request.parent] < places[each.request.name] for each in read if each.request.parent
    )
    firsts = [each.request.arrival_s for each in read if not each.request.parent]
    assert firsts == sorted(firsts)


def test_csv_and_defaults(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text(
        "name,arrival_s,prompt_tokens,output_tokens,max_tokens,client,prefix_keys,prefix_tokens_per_block,parent\n"
        'b,9,3,2,5,me,"[7, 8]",2,\n'
        "c,4.5,6,1,,,,,b\n"
        "a,8,1,1,,,,,\n"
    )
    assert list(read_requests(path, max_tokens=20, strict=True)) == [
        (Request("a", 8, 1, 20), 1),
        (Request("b", 9, 3, 5, client="me", prefix=PrefixBlocks((7, 8), 2)), 2),
        (Request("c", 4.5, 6, 20, parent="b"), 1),
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"speed": 1}, f"field 'speed': got '1', allowed is none: no such field; there are {', '.join(FIELDS)}"),
        ({"name": ""}, "field 'name': got '', allowed is a name of its own"),
        ({"name": "first"}, "field 'name': got 'first', allowed is a name that no other row has"),
        ({"output_tokens": ""}, "field 'output_tokens': got '', allowed is a number"),
        ({"output_tokens": None}, "no field output_tokens; it has name, arrival_s, prompt_tokens"),
        ({"output_tokens": 0}, "field 'output_tokens': got '0', allowed is a whole number of at least 1"),
        ({"arrival_s": -1}, "field 'arrival_s': got '-1', allowed is a number of at least 0"),
        ({"output_tokens": [3, 4]}, "request 'a': output_tokens is (3, 4); allowed is 1 or more, one number or one"),
        ({"output_tokens": [3, 0], "num_samples": 2}, "request 'a': output_tokens is (3, 0); allowed is 1 or more"),
        ({"output_tokens": "[3"}, "field 'output_tokens': got '[3', allowed is a list of whole numbers"),
        ({"num_samples": 2000}, "request 'a': num_samples is 2000; allowed is at most 1,024"),
        ({"max_tokens": 0}, "field 'max_tokens': got '0', allowed is a whole number of at least 1"),
        ({"weight": 0}, "field 'weight': got '0', allowed is a finite number above 0"),
        ({"priority": 1.5}, "field 'priority': got '1.5', allowed is a whole number"),
        ({"prompt_ids": [1, -5]}, "request 'a': one of prompt_ids is -5; allowed is 0 to 9223372036854775807"),
        ({"prompt_ids": [2**63, 1]}, "request 'a': one of prompt_ids is 9223372036854775808; allowed is 0 to"),
        ({"prompt_ids": [1]}, "request 'a': prompt_ids is 1; allowed is 2, one for each token"),
        ({"prompt_ids": [1, True]}, "field 'prompt_ids': got '[1, true]', allowed is a list of whole numbers"),
        ({"prompt_ids": "[1"}, "field 'prompt_ids': got '[1', allowed is a list of whole numbers"),
        ({"prefix_keys": [1]}, "'prefix_tokens_per_block': got '', allowed is given where prefix_keys is"),
        ({"prefix_tokens_per_block": 2}, "'prefix_keys': got '', allowed is given where prefix_tokens_per_block is"),
        ({"parent": "z"}, "field 'parent': got 'z', allowed is the name of a request on a line before"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_read(tmp_path: Path, change: Mapping[str, Any], said: str) -> None:
    path = tmp_path / "requests.jsonl"
    rows = [FIRST | {"name": "first"}, FIRST | change]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(ServeError) as raised:
        list(read_requests(path, strict=True))
    assert f"{path}, line 2" in str(raised.value)
    assert said in str(raised.value)
    requests = read_requests(path)
    assert [each.request.name for each in requests] == ["first"]
    assert requests.left_out.num_faults == 1


def test_requests_that_continue_one_that_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    rows = [FIRST, FIRST | {"name": "b", "max_tokens": 2}, FIRST | {"name": "c", "parent": "b"}]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    requests = read_requests(path)
    assert [each.request.name for each in requests] == ["a"]
    assert sorted((each.text, each.where) for each in requests.left_out.reasons) == [
        ("continues a request that was left out", "c"),
        ("output longer than max_tokens", "line 2"),
    ]
