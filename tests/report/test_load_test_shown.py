"""Each number of a load test of a server stands in its own column and unit: in tables and as CSV."""

from __future__ import annotations

import csv
from array import array
from pathlib import Path
from typing import Any

from distinct_results import Row, check_facts, check_table, number, printed, seconds

from trainyard.report.serve_bench import bench_tables, write_results
from trainyard.serve.requests.request import Request
from trainyard.serve.run.bench.load_generator import BenchRun, RequestResult
from trainyard.serve.run.bench.request_format import RequestFormat
from trainyard.serve.run.bench.streamed_response import RequestFailure
from trainyard.serve.run.bench.summary import summary

_ANSWER: dict[str, Any] = {
    "wanted_tokens": 9,
    "due_s": 1.0,
    "sent_s": 1.25,
    "prompt_tokens": 71,
    "output_tokens": 3,
    "end_s": 4.0,
}


def test_a_load_test_shows_each_number_in_its_column(tmp_path: Path) -> None:
    asked = Request("first", 1.0, 70, 9, client="ann", e2e_s=2.0)
    answered = RequestResult(asked, token_times_s=array("d", [1.75, 2.5, 4.0]), failure=None, **_ANSWER)
    failed = RequestResult(
        Request("second", 2.0, 50, 9, client="bob"),
        9,
        2.0,
        2.125,
        0,
        0,
        array("d"),
        2.5,
        RequestFailure("HTTP 429", "busy"),
    )
    run = BenchRun(RequestFormat("completions", "m"), (answered, failed), 8.0)
    facts, latencies, failures = (printed(each) for each in bench_tables(run, summary(run)))
    wanted: Row = [
        ("  answered", (number(1), " of ", number(2), " requests")),
        ("  duration", seconds(8.0)),
        ("  requests/s", number(1 / 8)),
        ("  goodput", (number(0.0), " requests/s within their objectives")),
        ("  tokens/s", (number(3 / 8), " of answers")),
        ("  ", (number(74 / 8), " with prompts")),
        ("  tokens", (number(71), " of prompts, ", number(3), " of answers")),
        ("  concurrent", (number(1), " requests at most")),
        # Between 0.125 and 0.25 s, 99 % of the way.
        ("  sent late by", (seconds(0.24875), " (p99), ", seconds(0.25), " at most")),
        ("  prompts", "text of about as many tokens"),
        ("  answers", "as in the trace (ignore_eos)"),
    ]
    check_facts([(name, text) for name, text in facts[1]], wanted)
    times: list[Row] = [
        [
            ("", name),
            ("mean", seconds(mean)),
            ("median", seconds(mean)),
            ("p99", seconds(p99)),
            ("std", seconds(std)),
        ]
        for name, mean, p99, std in (
            ("TTFT", 0.5, 0.5, 0.0),
            ("TPOT", 1.125, 1.125, 0.0),
            ("ITL", 1.125, 0.75 + 0.99 * 0.75, 0.375),
            ("E2E", 2.75, 2.75, 0.0),
        )
    ]
    check_table(latencies, times)
    assert failures[1] == (("HTTP 429", "busy", "1"),)
    path = tmp_path / "rows.csv"
    write_results(path, run)
    columns = "name,client,due_s,sent_s,prompt_tokens,output_tokens,ttft_s,tpot_s,e2e_s,meets_objectives,failure,message"
    rows = ["first,ann,1.0,1.25,71,3,0.5,1.125,2.75,False,,", "second,bob,2.0,2.125,50,,,,,,HTTP 429,busy"]
    with path.open() as file:
        assert list(csv.reader(file)) == [line.split(",") for line in (columns, *rows)]
