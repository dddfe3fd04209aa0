"""Mooncake's traces, with their prefixes."""

from __future__ import annotations

import json
from pathlib import Path

from requests_public import TRACES, in_brief, read_all, totals
from shared_data import needs_data

from trainyard.serve.requests.read import read_requests
from trainyard.serve.requests.request import PrefixBlocks


@needs_data(TRACES)
def test_conversations() -> None:
    found = read_all("mooncake/conversation_trace.jsonl")
    assert totals(found) == (12031, 144793823, 4122048)
    assert in_brief(found[0]) == ("1", 0.0, 6758, 500)
    assert found[0].request.prefix == PrefixBlocks(tuple(range(14)), 512)
    assert in_brief(found[-1])[:2] == ("12031", 3536.999)
    keys = [key for each in found if each.request.prefix for key in each.request.prefix.keys]
    assert (len(keys), len(set(keys))) == (288500, 182790)


@needs_data(TRACES)
def test_synthetic() -> None:
    found = read_all("mooncake/synthetic_trace.jsonl")
    assert totals(found) == (3993, 61194628, 595432)
    assert in_brief(found[-1])[:2] == ("3993", 1022.025)


def test_lines_that_give_no_request(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [
        (0, 600, 3, [1, 2]),
        (9, 600, 3, [1]),
        (5, 600, 3, [1, 2.5]),
        (4, 512, 0, [1]),
        (2, 512, 1, [1]),
        (-1, 1, 1, [1]),
    ]
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    requests = read_requests(path)
    assert [in_brief(each) for each in requests] == [("1", 0.0, 600, 3), ("5", 0.002, 512, 1)]
    assert {each.text: (each.is_fault, each.where) for each in requests.left_out.reasons} == {
        "cannot be a request": (
            True,
            "line 2: request '2': prefix is 1 keys; allowed is one for each 512 of its 600 tokens",
        ),
        "field 'hash_ids' cannot be used": (
            True,
            "line 3: got '[1, 2.5]', allowed is a list of whole numbers such as [3, 1, 4]",
        ),
        "field 'timestamp' cannot be used": (True, "line 6: got '-1', allowed is a number of at least 0"),
        "has no output": (False, "line 4"),
    }
