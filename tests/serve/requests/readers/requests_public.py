"""Where the public traces of requests are, and what of them is compared."""

from __future__ import annotations

from shared_data import DATA

from trainyard.serve.requests.read import read_requests
from trainyard.serve.requests.request import TracedRequest

TRACES = DATA / "serving"


def read_all(path: str) -> list[TracedRequest]:
    """All requests of a trace of which every row gives one."""
    requests = read_requests(TRACES / path)
    found = list(requests)
    assert requests.left_out.lines() == ()
    return found


def in_brief(traced: TracedRequest) -> tuple[str, float, int, int]:
    request = traced.request
    return request.name, request.arrival_s, request.prompt_tokens, traced.output_tokens


def totals(found: list[TracedRequest]) -> tuple[int, int, int]:
    """How many requests, and the tokens of their prompts and outputs."""
    return (
        len(found),
        sum(each.request.prompt_tokens for each in found),
        sum(each.output_tokens for each in found),
    )
