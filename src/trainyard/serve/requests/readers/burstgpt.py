"""The traces of BurstGPT.

Wang et al., "BurstGPT: A Real-World Workload Dataset to Optimize LLM Serving Systems", KDD 2025; HPMLL/BurstGPT,
``BurstGPT_*.csv``. Columns: Timestamp, seconds from the midnight before the first request; Model; Request tokens;
Response tokens; Total tokens; Log Type. Newer files have Session ID and Elapsed time, too.

Rows without a response are failures, and are left out. Of the rest, arrival, model and lengths are used. Requests are
called by the lines on which they stand.
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

_LENGTHS = LengthColumns("Request tokens", "Response tokens", "failed: has no response")
_NEEDED = ("Timestamp", "Model", _LENGTHS.prompt, _LENGTHS.output)


def read_burstgpt(path: Path, max_tokens: int, left_out: LeftOut | None = None) -> Iterator[TracedRequest]:
    """All requests that were answered."""

    def moment(row: Row) -> float | str:
        return _LENGTHS.why_not(row, max_tokens) or row.number("Timestamp")

    def made(row: Row, at_s: float) -> TracedRequest:
        request = Request(
            str(row.line), at_s, row.count(_LENGTHS.prompt), max_tokens, model=row.fields["Model"]
        )
        return TracedRequest(request, row.count(_LENGTHS.output))

    return Table(path, _NEEDED, left_out=left_out).in_order(moment, made)


FORMAT = Format("burstgpt", "BurstGPT: CSV of models and lengths", has_columns(*_NEEDED), read_burstgpt)
