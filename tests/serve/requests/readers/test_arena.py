"""The trace of Chatbot Arena."""

from __future__ import annotations

from pathlib import Path

import pytest
from requests_public import TRACES, in_brief, read_all, totals
from shared_data import needs_data

from trainyard.serve.errors import ServeError
from trainyard.serve.requests.read import read_requests


@needs_data(TRACES)
def test_clients() -> None:
    found = read_all("vtc/arena_real_trace.csv")
    assert totals(found) == (1500, 204398, 384297)
    assert [in_brief(each) for each in (*found[:2], found[-1])] == [
        ("0", 0.0, 13, 199),
        ("1", 0.207938, 36, 137),
        ("1499", 600.0, 28, 513),
    ]
    assert found[0].request.client == "13"
    assert {each.request.client for each in found} == {str(client) for client in range(27)}


def test_a_name_that_stands_twice(tmp_path: Path) -> None:
    path = tmp_path / "arena.csv"
    path.write_text("req_id,client,arrival_s,prompt_len,output_len\n0,a,0,1,1\n0,b,1,1,1\n")
    with pytest.raises(
        ServeError, match="line 3, field 'req_id': got '0', allowed is a name that no other row has"
    ):
        list(read_requests(path, strict=True))
