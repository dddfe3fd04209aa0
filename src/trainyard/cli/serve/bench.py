"""`trainyard serve bench`: send requests to a server and time its answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from trainyard.cli.bounds import REQUESTS
from trainyard.cli.extras import needing_extra
from trainyard.cli.outputs import Output, writing
from trainyard.cli.quantities import Duration
from trainyard.cli.screen import Outcome, Screen
from trainyard.cli.serve.requests import GivenRequests, RequestOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from trainyard.serve.run.bench.load_generator import BenchProgress, BenchRun
    from trainyard.serve.run.bench.target import Target

__all__ = ["Options", "act"]

_SHOWN_EVERY_S = 0.1
_LATE_MS = 100.0


@dataclass(frozen=True, kw_only=True)
class Options(RequestOptions):
    """Send requests to a server with the API of OpenAI, and time its answers. Each is sent at its time, whatever the
    server does.

    --json has the names of `vllm bench serve`. Times count from when a request is sent.
    """

    url: Annotated[str, tyro.conf.arg(metavar="URL")]
    """Address of the server, such as http://127.0.0.1:8000."""
    model: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Model for all requests, whatever the trace says; by default the only one of the server."""
    endpoint: Literal["completions", "chat"] = "completions"
    """API that is used. With completions, prompts are token ids if the server takes them, and else text."""
    api_key: Annotated[str | None, tyro.conf.arg(metavar="KEY")] = None
    """Key for the server. Other users of this machine can see it; the variable TRAINYARD_API_KEY is safer."""
    max_concurrency: Annotated[int | None, tyro.conf.arg(metavar="N"), REQUESTS] = None
    """Most concurrent requests; others wait, and count as sent late. By default there is no limit."""
    timeout: Duration = 600.0
    """Longest time of a whole answer; a request that takes longer has failed."""
    csv: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write a CSV with one line for every request."""


def act(options: Options, screen: Screen) -> Outcome:
    """Send and time."""
    with needing_extra("serve bench", "server"):
        from trainyard.serve.run.bench.load_generator import generate_load
    from trainyard.report.serve_bench import bench_tables
    from trainyard.serve.run.bench.summary import failures, summary

    target = _target(options)
    options.refuse_turns("serve bench")
    given = options.read()
    with _showing_progress(screen, given.num) as tell:
        run = generate_load(target, tuple(given), options.seed or 0, options.max_concurrency, tell)
    found = summary(run)
    _warn(options, screen, given, found)
    if options.csv is not None:
        _write_csv(options.csv, screen, run)
    first, *others = bench_tables(run, found)
    title = f"{given.title}, sent to {run.format.model} at {target.url}"
    left_out = given.left_out.lines() if given.left_out is not None else ()
    why = ""
    if not found["completed"]:
        kind, _, message = failures(run)[0]
        why = f"no request was answered; {kind}: {message}"
    body: list[RenderableType] = [title, "", first, "", *others, *left_out]
    return Outcome(_document(options, given, run, found), body, why)


def _target(options: Options) -> Target:
    import os

    from trainyard.serve.run.bench.target import Target

    key = os.environ.get("TRAINYARD_API_KEY", "") if options.api_key is None else options.api_key
    return Target(options.url, options.endpoint, options.model or "", key, options.timeout)


@contextmanager
def _showing_progress(screen: Screen, num: int) -> Iterator[Callable[[BenchProgress], None]]:
    """Show how far a run is."""
    with screen.waiting("asking the server what it takes") as progress:
        shown_s = 0.0

        def tell(sent: BenchProgress) -> None:
            nonlocal shown_s
            now_s = time.monotonic()
            if now_s - shown_s >= _SHOWN_EVERY_S:
                shown_s = now_s
                failed = f", {sent.num_failed:,} failed" if sent.num_failed else ""
                progress(
                    "sending requests",
                    f"{sent.num_sent:,} of {num:,}, {sent.num_answered:,} answered{failed}",
                )

        yield tell


def _warn(options: Options, screen: Screen, given: GivenRequests, found: dict[str, Any]) -> None:
    """Warn of what makes the result another one than was asked for."""
    if given.left_out is not None and given.left_out.warning:
        screen.say(given.left_out.warning)
    if options.max_concurrency is None and found["p99_lateness_ms"] > _LATE_MS:
        screen.say(
            f"warning: 1 % of the requests were sent {found['p99_lateness_ms']:,.0f} ms late or more: this client cannot "
            "keep up, and what it measured is too slow; send fewer requests a second from here"
        )
    if found["num_shorter_answers"]:
        screen.say(
            f"warning: {found['num_shorter_answers']:,} answers have fewer tokens than the trace: the server ended them"
        )


def _document(options: Options, given: GivenRequests, run: BenchRun, found: dict[str, Any]) -> dict[str, Any]:
    from trainyard.serve.run.bench.summary import failures, request_lists

    document = {
        "url": options.url,
        "endpoint": options.endpoint,
        "model_id": run.format.model,
        "num_prompts": given.num,
        "max_concurrency": options.max_concurrency,
        "requests": given.document,
        "rows": given.rows,
        "objectives": options.objectives(),
        "prompts_are_tokens": run.format.sends_tokens,
        "ignore_eos": run.format.fixes_length,
        "server_counts_tokens": run.format.includes_usage,
        **found,
        "failures": [
            {"kind": kind, "num": num, "first_message": message} for kind, num, message in failures(run)
        ],
    }
    return document | (request_lists(run) if options.json else {})


def _write_csv(path: Path, screen: Screen, run: BenchRun) -> None:
    from trainyard.report.serve_bench import write_results

    with writing("table of requests", path):
        write_results(path, run)
    screen.say(f"requests written to {path}")
