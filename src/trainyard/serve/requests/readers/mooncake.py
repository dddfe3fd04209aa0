"""The traces of Mooncake: JSON lines with the prefixes that requests share.

Qin et al., "Mooncake: Trading More Storage for Less Computation", FAST 2025; kvcache-ai/Mooncake,
``FAST25-release/traces/*.jsonl``. Fields: timestamp, milliseconds; input_length and output_length, tokens; hash_ids, one
for each 512 tokens of the prompt, equal where the prompts are equal up to there.

Requests are called by the lines on which they stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainyard.reading.head import has_keys
from trainyard.reading.left_out import LeftOut
from trainyard.reading.rows import Row
from trainyard.serve.requests.readers.formats import Format, LengthColumns
from trainyard.serve.requests.readers.table import JsonLines, as_fault, whole_numbers
from trainyard.serve.requests.request import PrefixBlocks, Request, TracedRequest

TOKENS_PER_BLOCK = 512
_MS_PER_S = 1000
_LENGTHS = LengthColumns("input_length", "output_length")
_NEEDED = ("timestamp", _LENGTHS.prompt, _LENGTHS.output, "hash_ids")


def read_mooncake(path: Path, max_tokens: int, left_out: LeftOut | None = None) -> Iterator[TracedRequest]:
    """All requests that have an output, with their blocks."""

    def moment(row: Row) -> float | str:
        return _LENGTHS.why_not(row, max_tokens) or row.number("timestamp") / _MS_PER_S

    def made(row: Row, at_s: float) -> TracedRequest:
        prefix = PrefixBlocks(whole_numbers(row, "hash_ids"), TOKENS_PER_BLOCK)
        with as_fault(row):
            request = Request(str(row.line), at_s, row.count(_LENGTHS.prompt), max_tokens, prefix=prefix)
        return TracedRequest(request, row.count(_LENGTHS.output))

    return JsonLines(path, _NEEDED, left_out=left_out).in_order(moment, made)


FORMAT = Format("mooncake", "Mooncake: JSON lines with shared prefixes", has_keys(*_NEEDED), read_mooncake)
