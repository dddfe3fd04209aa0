"""The trace of Chatbot Arena that VTC was evaluated with.

Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024; Ying1123/VTC-artifact,
``fair_bench/real_trace.pkl``, as a table. Columns: req_id; client, who asks; arrival_s; prompt_len and output_len,
tokens.
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

_LENGTHS = LengthColumns("prompt_len", "output_len")
_NEEDED = ("req_id", "client", "arrival_s", _LENGTHS.prompt, _LENGTHS.output)


def read_arena(path: Path, max_tokens: int, left_out: LeftOut | None = None) -> Iterator[TracedRequest]:
    """All requests that have an output, with their clients."""

    def moment(row: Row) -> float | str:
        return _LENGTHS.why_not(row, max_tokens) or row.number("arrival_s")

    def made(row: Row, at_s: float) -> TracedRequest:
        name, client = row.fields["req_id"], row.fields["client"]
        request = Request(name, at_s, row.count(_LENGTHS.prompt), max_tokens, client=client)
        return TracedRequest(request, row.count(_LENGTHS.output))

    return Table(path, _NEEDED, left_out=left_out).in_order(moment, made, "req_id")


FORMAT = Format("arena", "Chatbot Arena, as VTC has it: CSV with clients", has_columns(*_NEEDED), read_arena)
