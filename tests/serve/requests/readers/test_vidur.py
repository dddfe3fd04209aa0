"""Vidur's traces, and its tables of lengths."""

from __future__ import annotations

from pathlib import Path

import pytest
from requests_public import TRACES, in_brief, read_all, totals
from shared_data import needs_data

from trainyard.reading.left_out import LeftOut
from trainyard.serve.errors import ServeError
from trainyard.serve.requests.read import read_requests
from trainyard.serve.requests.readers.vidur import read_lengths

LENGTHS = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n"


@needs_data(TRACES)
@pytest.mark.parametrize("kind", ["conv", "code"])
def test_processed_traces_are_those_of_azure(kind: str) -> None:
    found = read_all(f"vidur/splitwise_{kind}.csv")
    dated = read_all(f"azure-llm-2023/AzureLLMInferenceTrace_{kind}.csv")
    for name, arrival_s, *lengths in map(in_brief, found):
        assert (name, round(arrival_s, 6), *lengths) == in_brief(dated[int(name) - 2])
    assert totals(found)[0] == {"conv": 19366, "code": 8819}[kind]


@needs_data(TRACES)
@pytest.mark.parametrize(
    ("path", "num_rows", "prompt_tokens", "output_tokens", "first"),
    [
        ("vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv", 28257, 73131321, 8234948, (3772, 54)),
        ("sharegpt-lengths/sharegpt_val_10k_llama2.csv", 10000, 2457517, 3256299, (3742, 284)),
    ],
)  # fmt: skip
def test_lengths(
    path: str, num_rows: int, prompt_tokens: int, output_tokens: int, first: tuple[int, int]
) -> None:
    lengths = read_lengths(TRACES / path)
    assert lengths[0] == first
    assert len(lengths) == num_rows
    assert tuple(map(sum, zip(*lengths, strict=True))) == (prompt_tokens, output_tokens)


def test_lengths_are_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(LENGTHS + "5,7,12,0.7\n")
    with pytest.raises(ServeError, match=r"no column arrived_at.*--lengths FILE with --rate R.*read_lengths"):
        read_requests(path)
    assert read_lengths(path) == ((5, 7),)


def test_rows_without_lengths_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(LENGTHS + "5,7,12,0.7\n5,0,5,1\nmany,7,12,1\n0,7,7,1\n5,9,14,1\n6,8,14,1\n")
    left_out = LeftOut()
    assert read_lengths(path, 8, left_out) == ((5, 7), (6, 8))
    assert (left_out.num_rows, left_out.num_used, left_out.num_faults) == (6, 2, 1)
    assert [each.text for each in left_out.reasons[1:]] == [
        "has no output", "has no prompt", "output longer than max_tokens",
    ]  # fmt: skip
    with pytest.raises(ServeError, match="line 4, field 'num_prefill_tokens': got 'many'"):
        read_lengths(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LENGTHS, "gives no lengths: it has no rows"),
        (LENGTHS + "5,0,5,1\n", r"gives no lengths: 1 row: has no output \(line 2\)"),
        ("num_prefill_tokens\n5\n", "line 1: no column num_decode_tokens; it has num_prefill_tokens"),
    ],
)  # fmt: skip
def test_tables_that_have_no_lengths(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(text)
    with pytest.raises(ServeError, match=said):
        read_lengths(path)


def test_other_columns_than_of_vidur(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrived_at,tokens\n1,2\n")
    with pytest.raises(ServeError, match="line 1: no column num_prefill_tokens, num_decode_tokens"):
        list(read_requests(path, "vidur"))
