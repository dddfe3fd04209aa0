"""BurstGPT's traces, older and newer."""

from __future__ import annotations

from pathlib import Path

import pytest
from requests_public import in_brief

from trainyard.serve.requests.read import read_requests

OLD = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
NEW = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


@pytest.mark.parametrize(("head", "more"), [(OLD, ""), (NEW, "7,1.5,")])
def test_failures_are_left_out(tmp_path: Path, head: str, more: str) -> None:
    path = tmp_path / "BurstGPT.csv"
    rows = [
        "5,{}ChatGPT,472,18,490,Conversation log",
        "45,{}GPT-4,1087,0,1087,API log",
        "118,{}GPT-4,417,276,693,API log",
    ]
    path.write_text(head + "".join(row.format(more) + "\n" for row in rows))
    requests = read_requests(path)
    found = list(requests)
    assert [in_brief(each) for each in found] == [("2", 5.0, 472, 18), ("4", 118.0, 417, 276)]
    assert [each.request.model for each in found] == ["ChatGPT", "GPT-4"]
    assert requests.left_out.lines() == ("left out: 1 of 3 rows", "  1 row: failed: has no response (line 3)")
