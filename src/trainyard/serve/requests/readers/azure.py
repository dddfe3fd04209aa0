"""The Azure LLM inference traces of 2023 and 2024.

Patel et al., "Splitwise: Efficient Generative LLM Inference Using Phase Splitting", ISCA 2024; Stojkovic et al.,
"DynamoLLM", HPCA 2025; Azure/AzurePublicDataset, ``AzureLLMInferenceTrace_*.csv``. Columns: TIMESTAMP, a date and time;
ContextTokens; GeneratedTokens.

Time 0 is the first request, and arrivals are read to the microsecond. Requests are called by the lines on which they
stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainyard.reading.head import has_columns
from trainyard.reading.left_out import LeftOut
from trainyard.reading.rows import Row
from trainyard.serve.requests.readers.formats import Format, LengthColumns
from trainyard.serve.requests.readers.table import Table
from trainyard.serve.requests.request import Request, TracedRequest

_LENGTHS = LengthColumns("ContextTokens", "GeneratedTokens")
_NEEDED = ("TIMESTAMP", _LENGTHS.prompt, _LENGTHS.output)


def read_azure(path: Path, max_tokens: int, left_out: LeftOut | None = None) -> Iterator[TracedRequest]:
    """All requests that have an output."""

    def moment(row: Row) -> float | str:
        return _LENGTHS.why_not(row, max_tokens) or row.moment_s("TIMESTAMP")

    table = Table(path, _NEEDED, left_out=left_out)
    zero_s: float | None = None
    for row, at_s in table.in_order(moment, lambda row, at_s: (row, at_s)):
        zero_s = at_s if zero_s is None else zero_s
        request = Request(str(row.line), round(at_s - zero_s, 6), row.count(_LENGTHS.prompt), max_tokens)
        yield TracedRequest(request, row.count(_LENGTHS.output))


FORMAT = Format("azure", "Azure LLM inference: CSV of dates and lengths", has_columns(*_NEEDED), read_azure)
