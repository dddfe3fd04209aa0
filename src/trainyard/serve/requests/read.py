"""Reading a trace of requests of any format, which is recognised by how it begins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainyard.reading import raised_as
from trainyard.reading.head import recognised
from trainyard.reading.left_out import LeftOut
from trainyard.serve.errors import ServeError
from trainyard.serve.requests.change import LONGER, check_scale, cut, scaled
from trainyard.serve.requests.readers import arena, azure, burstgpt, mooncake, own, vidur
from trainyard.serve.requests.readers.formats import Format
from trainyard.serve.requests.request import MAX_TOKENS, TracedRequest

FORMATS: dict[str, Format] = {
    entry.name: entry
    for entry in (
        own.FORMAT, azure.FORMAT, vidur.FORMAT, mooncake.FORMAT, arena.FORMAT, burstgpt.FORMAT,
    )
}  # fmt: skip
"""All formats, by name."""


class RequestTrace:
    """The requests of a trace in the order in which they come; read when they are asked for, once, one after the other.

    Attributes
    ----------
    left_out : rows that gave no request, and why; whole when all requests were taken.
    """

    def __init__(
        self, requests: Iterator[TracedRequest], left_out: LeftOut, path: Path, limit: int | None
    ) -> None:
        self.left_out = left_out
        self._requests = self._counted(requests, path, limit)

    def __iter__(self) -> Iterator[TracedRequest]:
        return self._requests

    def __next__(self) -> TracedRequest:
        return next(self._requests)

    def _counted(
        self, requests: Iterator[TracedRequest], path: Path, limit: int | None
    ) -> Iterator[TracedRequest]:
        given: set[str] = set()
        for traced in requests:
            request = traced.request
            if request.parent and request.parent not in given:
                self.left_out.add_named("continues a request that was left out", request.name)
                continue
            given.add(request.name)
            self.left_out.num_used += 1
            yield traced
            if self.left_out.num_used == limit:
                self.left_out.add_rest(
                    f"after the first {limit:,} requests, which is the limit that was given"
                )
                return
        if not self.left_out.num_used:
            why = "; ".join(str(reason) for reason in self.left_out.reasons) or "it has no rows"
            raise ServeError(f"{path} gives no request to replay: {why}")


def read_requests(
    path: Path,
    format: str | None = None,
    limit: int | None = None,
    *,
    max_tokens: int = MAX_TOKENS,
    strict: bool = False,
    time_scale: float = 1.0,
    max_num_tokens: int | None = None,
    longer: str = "leave_out",
) -> RequestTrace:
    """The requests of a trace, in the order in which they come; read when asked for, one after the other.

    Rows that are no requests to replay and rows that cannot be read are left out and counted. Files may be compressed
    (gzip, bzip2, xz) and in UTF-16.

    Parameters
    ----------
    path : a file.
    format : name of the format; recognised if it is not given.
    limit : take only so many requests, the first ones; by default all.
    max_tokens : that a client takes at most, where the trace does not say. It is the same for all, whatever their
        outputs: policies see it, and are not to learn from it how long an output will be. So a row with a longer output
        is left out.
    strict : the first row that cannot be read is an error.
    time_scale : by which arrivals are multiplied, and how long after their parents others come: 0.5 is twice the load.
    max_num_tokens : of prompt and output together; by default any number.
    longer : what becomes of a request that has more: ``leave_out``; or ``cut_prompt`` to so many that it has
        ``max_num_tokens``, as Vidur does. One whose output alone has that many is left out in any case. Where prompts are
        cut, their lengths say something of the outputs.

    Raises
    ------
    ServeError
        If the file cannot be read, or no row of it gives a request; the message says where, and what is allowed.
    """
    if format is not None and format not in FORMATS:
        raise ServeError(f"unknown trace format {format!r}; known: {', '.join(FORMATS)}")
    if limit is not None and limit < 1:
        raise ServeError(
            f"limit {limit}: it is the number of requests to take, at least 1; leave it out to take all"
        )
    if max_tokens < 1:
        raise ServeError(f"max_tokens {max_tokens}: it is what a client takes at most, at least 1")
    if longer not in LONGER:
        raise ServeError(f"longer {longer!r}: what becomes of longer requests is one of {', '.join(LONGER)}")
    if max_num_tokens is not None and max_num_tokens < 2:
        raise ServeError(
            f"max_num_tokens {max_num_tokens}: it is of prompt and output together, at least 2; leave it out to take any"
        )
    check_scale(time_scale)
    with raised_as(ServeError):
        entry = FORMATS[format] if format else recognised(path, FORMATS, "request")
    left_out = LeftOut(strict=strict)
    requests = entry.read(path, max_tokens, left_out)
    if max_num_tokens is not None:
        requests = _fitted(requests, max_num_tokens, longer, left_out)
    if time_scale != 1:
        requests = (scaled(traced, time_scale) for traced in requests)
    return RequestTrace(requests, left_out, path, limit)


def _fitted(
    requests: Iterator[TracedRequest], max_num_tokens: int, longer: str, left_out: LeftOut
) -> Iterator[TracedRequest]:
    for traced in requests:
        request, output_tokens = traced.request, traced.max_output_tokens
        if request.prompt_tokens + output_tokens <= max_num_tokens:
            yield traced
        elif longer == "cut_prompt" and output_tokens < max_num_tokens:
            yield cut(traced, max_num_tokens - output_tokens)
        else:
            left_out.add_named(f"more than {max_num_tokens:,} tokens of prompt and output", request.name)
