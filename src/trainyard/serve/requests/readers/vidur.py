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
from trainyard.serve.requests.request import MAX_TOKENS, Request, TracedRequest

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
            f"{path} has lengths, and no column arrived_at: it does not say when requests come. Give it as --lengths "
            "FILE with --rate R, which draws arrivals; in Python, give what read_lengths reads to generate_requests"
        )

    def moment(row: Row) -> float | str:
        return _LENGTHS.why_not(row, max_tokens) or row.number("arrived_at")

    def made(row: Row, at_s: float) -> TracedRequest:
        request = Request(str(row.line), at_s, row.count(_LENGTHS.prompt), max_tokens)
        return TracedRequest(request, row.count(_LENGTHS.output))

    return Table(path, ("arrived_at", *_COLUMNS), left_out=left_out).in_order(moment, made)


def read_lengths(
    path: Path, max_tokens: int = MAX_TOKENS, left_out: LeftOut | None = None
) -> tuple[tuple[int, int], ...]:
    """Tokens of prompt and of output of each row of a table of lengths, as they stand.

    Parameters
    ----------
    max_tokens : that a client takes at most; rows with longer outputs are left out, as of a trace.
    left_out : gets the rows that give no lengths; without, those that cannot be read are errors.

    Raises
    ------
    ServeError
        If no row gives lengths, or the file is no such table.
    """
    left_out = left_out or LeftOut(strict=True)
    lengths = []
    for row in Table(path, _COLUMNS, left_out=left_out).rows():
        with left_out.faults():
            if why := _LENGTHS.why_not(row, max_tokens):
                left_out.add(why, path, row.line)
            else:
                lengths.append((row.count(_LENGTHS.prompt), row.count(_LENGTHS.output)))
    left_out.num_used = len(lengths)
    if not lengths:
        why = "; ".join(str(reason) for reason in left_out.reasons) or "it has no rows"
        raise ServeError(f"{path} gives no lengths: {why}")
    return tuple(lengths)


FORMAT = Format("vidur", "Vidur: CSV of arrivals and lengths", has_columns(*_COLUMNS), read_vidur)
