"""Trainyard's own form of a request trace, to bring one and to keep one.

A JSON object on each line, or a CSV file with a header. Only the first four fields must be there; an empty field, or
``null``, is the default. In CSV, lists are written as in JSON, in quotes.

=========================== ================================================================ ===========
field                       meaning                                                          default
=========================== ================================================================ ===========
name                        of the request, unique
arrival_s                   when it comes, seconds; of one with a parent, seconds after the
                            end of that one
prompt_tokens               length of its prompt
output_tokens               how many it will have, or a list of how many each of its
                            samples will have; only the trace knows
max_tokens                  how many its client takes at most                                given to
                                                                                             the reader
model, client, adapter,     which model answers, who asks, which adapter is used, and the    none
cache_salt                  secret without which no other request shares its blocks
prompt_ids                  the prompt's tokens: a list of whole numbers                     not known
prefix_keys,                the prompt by blocks: a key for each, equal where prompts are    not known
prefix_tokens_per_block     equal up to the end of the block; and tokens of a block
ttft_s, tpot_s, e2e_s       objectives: seconds to the first token, between tokens, to the   none
                            end
weight                      of its client, above 0                                           1
priority                    a smaller one is more urgent                                     0
num_samples                 how many answers to its prompt are wanted                        1
parent                      name of the request that it continues, on a line before          none
=========================== ================================================================ ===========

Requests come in the order of their arrivals; one with a parent comes in the order with the first one of its conversation,
and after its parent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from trainyard.reading import raised_as
from trainyard.reading.defaults import changed_fields
from trainyard.reading.head import HasColumns, Head, has_keys
from trainyard.reading.left_out import LeftOut
from trainyard.reading.rows import Row
from trainyard.serve.errors import ServeError
from trainyard.serve.requests.readers.formats import Format, too_long
from trainyard.serve.requests.readers.table import JsonLines, Table, as_fault, whole_numbers
from trainyard.serve.requests.request import PrefixBlocks, Request, TracedRequest

_NEEDED = ("name", "arrival_s", "prompt_tokens", "output_tokens")
_TEXTS = ("model", "client", "parent", "adapter", "cache_salt")
_POSITIVE = ("ttft_s", "tpot_s", "e2e_s", "weight")
_PREFIX = ("prefix_keys", "prefix_tokens_per_block")
FIELDS = (*_NEEDED, "max_tokens", *_TEXTS, *_POSITIVE, "priority", "num_samples", "prompt_ids", *_PREFIX)
_FARTHEST_PRIORITY = 2**53
_is_json = has_keys(*_NEEDED)


def read_own(path: Path, max_tokens: int, left_out: LeftOut | None = None) -> Iterator[TracedRequest]:
    """Requests of a file in this form.

    Parameters
    ----------
    max_tokens : of requests that do not say.
    """
    with raised_as(ServeError):
        is_json = Head.of(path).text.lstrip().startswith("{")
    comes_s: dict[str, float] = {}  # with children at the moment of the first one of the conversation

    def moment(row: Row) -> float | str:
        traced = _traced(row, max_tokens)
        request = traced.request
        at_s = comes_s.get(request.parent) if request.parent else request.arrival_s
        if at_s is None:
            raise row.error("parent", "the name of a request on a line before, which can be read")
        comes_s.setdefault(request.name, at_s)
        return too_long(traced.max_output_tokens, request.max_tokens) or at_s

    table = (JsonLines if is_json else Table)(path, _NEEDED, left_out=left_out)
    return table.in_order(moment, lambda row, _: _traced(row, max_tokens), "name")


def _traced(row: Row, max_tokens: int) -> TracedRequest:
    unknown = sorted(row.fields.keys() - set(FIELDS))
    if unknown:
        raise row.error(unknown[0], f"none: no such field; there are {', '.join(FIELDS)}")
    given = {name: value for name, value in row.fields.items() if value}
    row = row._replace(fields=given)
    missing = [name for name in _NEEDED if name not in given]
    if missing:
        raise row.error(missing[0], "a name of its own" if missing[0] == "name" else "a number")
    prompt_tokens, output_tokens = row.count("prompt_tokens", 1), _output_tokens(row)
    rest: dict[str, Any] = {name: given[name] for name in _TEXTS if name in given}
    rest |= {name: row.positive(name) for name in _POSITIVE if name in given}
    if "priority" in given:
        rest["priority"] = row.count("priority", -_FARTHEST_PRIORITY)
    if "num_samples" in given:
        rest["num_samples"] = row.count("num_samples", 1)
    if "prompt_ids" in given:
        rest["prompt_ids"] = whole_numbers(row, "prompt_ids")
    if any(name in given for name in _PREFIX):
        rest["prefix"] = _prefix(row)
    with as_fault(row):
        max_tokens = row.count("max_tokens", 1) if "max_tokens" in given else max_tokens
        request = Request(given["name"], row.number("arrival_s"), prompt_tokens, max_tokens, **rest)
        traced = TracedRequest(request, output_tokens)
        traced.by_sample  # noqa: B018  raises where there are other numbers than samples
    return traced


def _output_tokens(row: Row) -> int | tuple[int, ...]:
    is_list = row.fields["output_tokens"].lstrip().startswith("[")
    return whole_numbers(row, "output_tokens") if is_list else row.count("output_tokens", 1)


def _prefix(row: Row) -> PrefixBlocks:
    missing = [name for name in _PREFIX if name not in row.fields]
    if missing:
        raise row.error(missing[0], f"given where {_PREFIX[missing[0] == _PREFIX[0]]} is")
    return PrefixBlocks(whole_numbers(row, _PREFIX[0]), row.count(_PREFIX[1], 1))


def write_requests(requests: Iterable[TracedRequest], path: Path) -> int:
    """Write requests in this form, as JSON lines; return how many."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for traced in requests:
            file.write(f"{json.dumps(_values_of(traced))}\n")
            count += 1
    return count


def _values_of(traced: TracedRequest) -> dict[str, Any]:
    """A request in this form: what is not the default, by field."""
    request = traced.request
    values: dict[str, Any] = {name: getattr(request, name) for name in _NEEDED[:3]}
    values |= {"output_tokens": traced.output_tokens, "max_tokens": request.max_tokens}
    values |= changed_fields(request, FIELDS[len(values) : -len(_PREFIX)])
    if request.prefix is not None:
        values |= dict(zip(_PREFIX, request.prefix, strict=True))
    return values


FORMAT = Format(
    "trainyard",
    "Trainyard's own: JSON lines or CSV of everything a request can say",
    HasColumns((_NEEDED,), or_else=_is_json),
    read_own,
)
