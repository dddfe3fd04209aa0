"""Reading requests of any format: what may be asked for, and what is said where it cannot be."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.serve.errors import ServeError
from trainyard.serve.requests.read import FORMATS, read_requests

VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
BEGINNINGS = {
    "trainyard": '{"name": "0", "arrival_s": 3, "prompt_tokens": 1, "output_tokens": 1}\n',
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n",
    "vidur": VIDUR + "3,1,1\n",
    "mooncake": '{"timestamp": 3, "input_length": 9, "output_length": 5, "hash_ids": [0]}\n',
    "arena": "req_id,client,arrival_s,prompt_len,output_len\n0,13,0.0,13,199\n",
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,4,1,5,API log\n",
}


PIECES = [
    b"",
    b"9" * 30,
    b"1e400",
    b"-",
    b"null",
    b'"',
    b",",
    b"\n",
    b"[",
    b"{",
    b"nan",
    b"\0",
    b"\xff",
    b"0",
    b"true",
]


def trace(tmp_path: Path, text: str = VIDUR + "4,30,10\n1,5,7\n2,6,40\n") -> Path:
    path = tmp_path / "trace"
    path.write_text(text)
    return path


def test_each_format_is_recognised_by_its_beginning_and_no_other_matches(tmp_path: Path) -> None:
    assert BEGINNINGS.keys() == FORMATS.keys()
    for name, text in BEGINNINGS.items():
        path = trace(tmp_path, text)
        (alone,) = read_requests(path, strict=True)
        assert [alone] == list(read_requests(path, name, strict=True))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"format": "azzure"}, "unknown trace format 'azzure'; known: trainyard, azure, vidur, mooncake, arena"),
        ({"limit": 0}, "limit 0: it is the number of requests to take, at least 1; leave it out to take all"),
        ({"max_tokens": 0}, "max_tokens 0: it is what a client takes at most, at least 1"),
        ({"time_scale": 0}, "time_scale 0: it multiplies arrivals, and is a finite number above 0"),
        ({"time_scale": float("nan")}, "time_scale nan: it multiplies arrivals"),
        ({"time_scale": float("inf")}, "time_scale inf: it multiplies arrivals"),
        ({"max_num_tokens": 1}, "max_num_tokens 1: it is of prompt and output together, at least 2"),
        ({"longer": "cut"}, "longer 'cut': what becomes of longer requests is one of leave_out, cut_prompt"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for(tmp_path: Path, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ServeError, match=re.escape(said)):
        read_requests(trace(tmp_path), **asked)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty; a trace has a line for each request"),
        ("a,b\n1,2\n", "is of no known format; name one: trainyard, azure, .*It begins with 'a,b'"),
        (VIDUR, "gives no request to replay: it has no rows"),
        (VIDUR + "1,5,0\n2,5,0\n1,x,1\n", "gives no request to replay: 1 row: .*got 'x'.*; 2 rows: has no output"),
        ("PK\x03\x04", "is a ZIP archive, or a workbook; unpack it"),
    ],
)  # fmt: skip
def test_files_that_give_nothing(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ServeError, match=said):
        list(read_requests(trace(tmp_path, text)))


@pytest.mark.parametrize("format", [None, *FORMATS])
def test_no_such_file(tmp_path: Path, format: str | None) -> None:
    with pytest.raises(ServeError, match=r"cannot read .*none\.csv: No such file"):
        list(read_requests(tmp_path / "none.csv", format))
    with pytest.raises(ServeError, match="Is a directory"):
        list(read_requests(tmp_path, format))


def test_the_first_ones_come_in_the_order_of_arrival(tmp_path: Path) -> None:
    requests = read_requests(trace(tmp_path), limit=2)
    assert next(requests).request.arrival_s == 1
    assert [each.request.arrival_s for each in requests] == [2]
    assert requests.left_out.lines() == (
        "left out: 1 of 3 rows",
        "  1 row: after the first 2 requests, which is the limit that was given",
    )


def test_outputs_longer_than_clients_take_are_left_out(tmp_path: Path) -> None:
    requests = read_requests(trace(tmp_path), max_tokens=10)
    assert [(each.request.max_tokens, each.output_tokens) for each in requests] == [(10, 7), (10, 10)]
    assert [str(each) for each in requests.left_out.reasons] == [
        "1 row: output longer than max_tokens (line 4)"
    ]


def test_the_first_fault_is_an_error_where_asked(tmp_path: Path) -> None:
    path = trace(tmp_path, VIDUR + "1,5,7\n-2,6,40\n")
    with pytest.raises(ServeError, match="line 3, field 'arrived_at': got '-2'"):
        list(read_requests(path, strict=True))
    assert len(list(read_requests(path))) == 1


@pytest.mark.parametrize(
    ("longer", "prompts", "left_out"),
    [
        ("leave_out", [5], ["2 rows: more than 39 tokens of prompt and output (4, 2)"]),
        ("cut_prompt", [5, 29], ["1 row: more than 39 tokens of prompt and output (4)"]),
    ],
)
def test_longer_requests(tmp_path: Path, longer: str, prompts: list[int], left_out: list[str]) -> None:
    requests = read_requests(trace(tmp_path), max_num_tokens=39, longer=longer)
    assert [each.request.prompt_tokens for each in requests] == prompts
    assert [str(each) for each in requests.left_out.reasons] == left_out


def test_a_request_whose_output_fills_all_has_no_prompt_to_cut_to(tmp_path: Path) -> None:
    requests = read_requests(trace(tmp_path), max_num_tokens=10, longer="cut_prompt")
    assert [(each.request.prompt_tokens, each.output_tokens) for each in requests] == [(3, 7)]
    assert requests.left_out.num_left_out == 2


def test_times_are_scaled(tmp_path: Path) -> None:
    assert [each.request.arrival_s for each in read_requests(trace(tmp_path), time_scale=0.5)] == [0.5, 1, 2]


@given(
    st.sampled_from([*FORMATS]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 9), st.sampled_from(PIECES)), max_size=4),
)
def test_damaged_files_give_one_kind_of_error(
    tmp_path_factory: pytest.TempPathFactory, name: str, damages: list[tuple[float, int, bytes]]
) -> None:
    data = BEGINNINGS[name].encode()
    for place, num_bytes, piece in damages:
        begin = int(place * len(data))
        data = data[:begin] + piece + data[begin + num_bytes :]
    path = tmp_path_factory.mktemp("damaged") / "trace"
    path.write_bytes(data)
    for format in (None, name):
        with suppress(ServeError):
            assert list(read_requests(path, format, max_num_tokens=50, longer="cut_prompt"))
