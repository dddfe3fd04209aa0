"""The Azure LLM inference traces."""

from __future__ import annotations

from pathlib import Path

from requests_public import TRACES, in_brief, read_all, totals
from shared_data import needs_data

from trainyard.serve.requests.read import read_requests


@needs_data(TRACES)
def test_conversations_of_2023() -> None:
    found = read_all("azure-llm-2023/AzureLLMInferenceTrace_conv.csv")
    assert totals(found) == (19366, 22361870, 4088665)
    assert [in_brief(each) for each in (*found[:2], found[-1])] == [
        ("2", 0.0, 374, 44),
        ("3", 4.314579, 396, 109),
        ("19367", 3501.721937, 197, 183),
    ]
    assert {each.request.max_tokens for each in found} == {4096}


@needs_data(TRACES)
def test_code_of_2023() -> None:
    found = read_all("azure-llm-2023/AzureLLMInferenceTrace_code.csv")
    assert totals(found) == (8819, 18059974, 245896)
    assert [in_brief(each) for each in (found[0], found[-1])] == [
        ("2", 0.0, 4808, 10),
        ("8820", 3435.948056, 549, 173),
    ]


def test_dates_of_2024_with_a_zone_and_rows_that_give_none(tmp_path: Path) -> None:
    path = tmp_path / "AzureLLMInferenceTrace_conv_1week.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-12 00:00:00.009930+00:00,0,5\n"
        "2024-05-12 00:00:01.250000+00:00,5,7\n"
        "2024-05-12 02:00:00.750000+02:00,2162,5\n"
        "2024-05-12 00:00:00.500000+00:00,9,0\n"
        "yesterday,9,1\n"
        "2024-05-12 00:00:02+00:00,9.5,1\n"
    )
    requests = read_requests(path)
    assert [in_brief(each) for each in requests] == [("4", 0.0, 2162, 5), ("3", 0.5, 5, 7)]
    assert [(each.text, each.is_fault, each.where.split(":")[0]) for each in requests.left_out.reasons] == [
        ("field 'TIMESTAMP' cannot be used", True, "line 6"),
        ("field 'ContextTokens' cannot be used", True, "line 7"),
        ("has no prompt", False, "line 2"),
        ("has no output", False, "line 5"),
    ]
