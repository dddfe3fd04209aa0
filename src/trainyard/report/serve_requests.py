"""Every request of a run, for programs and spreadsheets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainyard.report.csv_file import write_csv
from trainyard.serve.compare import PolicyRun
from trainyard.serve.request_timeline import RequestTimeline
from trainyard.serve.results import Served

__all__ = ["followed_document", "request_columns", "write_requests"]

_OF_SERVED = (
    "arrival_s", "output_tokens", "scheduled_s", "first_token_s", "finished_s", "ttft_s", "tpot_s", "e2e_s",
    "num_preemptions", "cached_tokens",
)  # fmt: skip


def request_columns(run: PolicyRun) -> dict[str, list[Any]]:
    """All requests of a run, as columns by name: those that were served, as they ended, then those that were refused.

    What is not known of a request is None. ``meets_objectives`` is None for one that has none; ``refused`` says why one
    is not served.
    """
    served, refused = run.results.served, run.results.refused
    requests = [*(each.request for each in served), *(each.request for each in refused)]
    missing = [None] * len(refused)
    found: dict[str, list[Any]] = {
        "name": [each.name for each in requests],
        "client": [each.client for each in requests],
        "prompt_tokens": [each.prompt_tokens for each in requests],
    }
    for name in _OF_SERVED:
        found[name] = [*(getattr(each, name) for each in served), *missing]
    for place, each in enumerate(served):
        if each.longest_tokens == 1:  # there is no token after the first
            found["tpot_s"][place] = None
    # One without a parent comes when its trace says.
    found["arrival_s"][len(served) :] = [
        None if each.request.parent else each.request.arrival_s for each in refused
    ]
    found["meets_objectives"] = [
        *(_meets(each) for each in served),
        *(False if each.request.has_objectives else None for each in refused),
    ]
    found["refused"] = [*("" for _ in served), *(each.why for each in refused)]
    return found


def write_requests(path: Path, runs: Sequence[PolicyRun]) -> None:
    """Write a CSV with a line for every request under every policy; what is not known is empty."""
    tables = [(run.name, request_columns(run)) for run in runs]
    rows = ((policy, *row) for policy, table in tables for row in zip(*table.values(), strict=True))
    write_csv(path, ("policy", *tables[0][1]), rows)


def followed_document(followed: Mapping[str, RequestTimeline]) -> list[dict[str, Any]]:
    """One request under each policy that served it, step by step."""
    return [
        {
            "policy": policy,
            "request": each.served.request.name,
            "arrival_s": each.served.arrival_s,
            "first_token_s": each.served.first_token_s,
            "finished_s": each.served.finished_s,
            "preempted_s": each.preempted_s,
            "steps": [span._asdict() for span in each.spans],
            "waits": [wait._asdict() for wait in each.waits],
        }
        for policy, each in followed.items()
    ]


def _meets(served: Served) -> bool | None:
    return served.meets_objectives if served.request.has_objectives else None
