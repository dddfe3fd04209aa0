"""The processed traces of Vidur, and its tables of lengths.

Agrawal et al., "Vidur: A Large-Scale Simulation Framework for LLM Inference", MLSys 2024; microsoft/vidur,
``data/processed_traces/*.csv``. Columns: arrived_at, seconds; num_prefill_tokens; num_decode_tokens.

Some of its files have only lengths: num_prefill_tokens, num_decode_tokens, num_total_tokens, pd_ratio. They are no
traces: nothing says when a request comes, and any choice would decide the result. So to read one as a trace is an error,
and `read_lengths` gives what it has, for a generator that draws the arrivals. Total and ratio follow from the lengths,
and are not used: in some files the ratio is of the prompt to the output, in others the other way round.

Requests are called by the lines on which they stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainyard.reading import raised_as
from trainyard.reading.head import Head, has_columns
from trainyard.reading.left_out import LeftOut
from trainyard.reading.rows import Row
from trainyard.serve.errors import ServeError
from trainyard.serve.requests.readers.formats import Format, LengthColumns
from trainyard.serve.requests.readers.table import Table
from trainyard.serve.requests.request import Request, TracedRequest

_LENGTHS = LengthColumns("num_prefill_tokens", "num_decode_tokens")
_COLUMNS = (_LENGTHS.prompt, _LENGTHS.output)


def read_vidur(path: Path, max_tokens: int, left_out: LeftOut | None = None) -> Iterator[TracedRequest]:
    """All requests of a trace with arrivals.

    Raises
    ------
    ServeError
        If the file has only lengths; the message says what to do.
    """
    with raised_as(ServeError):
        columns = Head.of(path).columns()
    if columns.issuperset(_COLUMNS) and "arrived_at" not in columns:
        raise ServeError(
            f"{path} has lengths, and no column arrived_at: it does not say when requests come. Read it with "
            "read_lengths, and give these to generate_requests as LengthPairs, with arrivals such as Poisson"
        )

    def moment(row: Row) -> float | str:
        return _LENGTHS.why_not(row, max_tokens) or row.number("arrived_at")

    def made(row: Row, at_s: float) -> TracedRequest:
        request = Request(str(row.line), at_s, row.count(_LENGTHS.prompt), max_tokens)
        return TracedRequest(request, row.count(_LENGTHS.output))

    return Table(path, ("arrived_at", *_COLUMNS), left_out=left_out).in_order(moment, made)


def read_lengths(path: Path) -> tuple[tuple[int, int], ...]:
    """Tokens of prompt and of output of each row of a table of lengths, as they stand.

    Raises
    ------
    ServeError
        If a row has none of either; the message says where.
    """
    rows = Table(path, _COLUMNS).rows()
    lengths = tuple((row.count(_LENGTHS.prompt, 1), row.count(_LENGTHS.output, 1)) for row in rows)
    if not lengths:
        raise ServeError(f"{path} has no row; a table of lengths has one for each request")
    return lengths


FORMAT = Format("vidur", "Vidur: CSV of arrivals and lengths", has_columns(*_COLUMNS), read_vidur)
