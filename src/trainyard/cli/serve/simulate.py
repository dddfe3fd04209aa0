"""`trainyard serve simulate`: serve a trace of requests by one or more policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from trainyard.cli.outputs import Output, writing
from trainyard.cli.screen import Outcome, Screen
from trainyard.cli.serve.deploying import DeployOptions, deployment_document, deployment_facts
from trainyard.cli.serve.requests import GivenRequests, RequestOptions

if TYPE_CHECKING:
    from trainyard.serve.compare import CannotRun, PolicyRun
    from trainyard.serve.deployment import Deployment
    from trainyard.serve.followed import Followed
    from trainyard.serve.router import Router

__all__ = ["Options", "act"]

_SHOWN_EVERY = 100  # requests


@dataclass(frozen=True, kw_only=True)
class Options(DeployOptions, RequestOptions):
    """Serve requests with a model on a cluster that you need not have, under one or more policies."""

    policy: Annotated[str, tyro.conf.arg(metavar="A,B,...")] = "vllm"
    """Policies, separated by commas; options in parentheses. After a + stands who is admitted next."""
    router: Annotated[str, tyro.conf.arg(metavar="NAME")] = "round_robin"
    """Which replica a request goes to: round_robin, or least_requests."""
    baseline: Annotated[str | None, tyro.conf.arg(metavar="POLICY")] = None
    """Policy with which the others are compared."""
    follow: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Request that the page follows through; by default the slowest of those that were preempted, else of all."""
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write a page with figures."""
    csv: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write every request under every policy, a line each."""


def act(options: Options, screen: Screen) -> Outcome:
    """Simulate."""
    from trainyard.report.serve_league import ranked_policies, refusal_lines, run_document, serve_tables
    from trainyard.serve.compare import baseline_run

    router = _router(options.router)
    baseline_run(options.policy, (), options.baseline)
    given = options.read()
    deployment = options.deployment()
    runs, cannot = _simulated(options, screen, given, deployment, router)
    left_out = given.left_out
    if left_out is not None and left_out.warning:
        screen.say(left_out.warning)
    document = {
        "requests": given.document,
        "cluster": options.cluster,
        "deployment": deployment_document(deployment),
        "router": options.router,
        "objectives": options.objectives(),
        "rows": left_out.document("requests") if left_out is not None else None,
        "cannot_run": [{"policy": each.name, "why": each.why} for each in cannot],
        "baseline": options.baseline or "",
    }
    said = refusal_lines(runs, cannot)
    if not runs:
        why = f"no policy could serve: {cannot[0].name}: {cannot[0].why}"
        return Outcome(document | {"runs": []}, said, why)
    base = baseline_run(options.policy, runs, options.baseline)
    if options.baseline is not None and base is None:
        screen.say(f"warning: nothing is compared with --baseline {options.baseline!r}: it could not serve")
    title = f"{given.title}; {deployment} on {options.cluster}"
    if options.html is not None:
        _write_page(options, screen, title, runs, cannot, given, deployment, router)
    if options.csv is not None:
        _write_csv(options.csv, screen, ranked_policies(runs))
    facts = [f"{name}: {value}" for name, value in deployment_facts(deployment).items()]
    lines = (*said, *(left_out.lines() if left_out is not None else ()))
    return Outcome(
        document
        | {"runs": [run_document(run, base) for run in ranked_policies(runs)] if options.json else []},
        (*serve_tables(title, runs, base, cannot), *facts, *lines),
        "" if any(run.summary.num_served for run in runs) else f"no request was served: {said[0]}",
    )


def _router(name: str) -> Router:
    from trainyard.serve.errors import ServeError
    from trainyard.serve.router import ROUTERS

    if name not in ROUTERS:
        raise ServeError(f"no router {name!r}; there are {', '.join(ROUTERS)}")
    return ROUTERS[name]


def _simulated(
    options: Options, screen: Screen, given: GivenRequests, deployment: Deployment, router: Router
) -> tuple[Sequence[PolicyRun], Sequence[CannotRun]]:
    from trainyard.serve.compare import compare_policies

    with screen.waiting("simulating") as change:

        def tell(name: str, num: int) -> None:
            if num % _SHOWN_EVERY == 0:
                change(f"simulating {name}, {num:,} of {len(given.requests):,} requests")

        return compare_policies(
            options.policy,
            given.requests,
            deployment,
            router,
            tell,
            watches_load=options.html is not None,
        )


def _write_page(
    options: Options,
    screen: Screen,
    title: str,
    runs: Sequence[PolicyRun],
    cannot: Sequence[CannotRun],
    given: GivenRequests,
    deployment: Deployment,
    router: Router,
) -> None:
    from trainyard.report.serve_league import ranked_policies
    from trainyard.report.serve_page import serve_page
    from trainyard.serve.compare import baseline_run, follow_request, request_to_follow

    assert options.html is not None
    followed: Mapping[str, Followed] = {}
    if any(run.summary.num_served for run in runs):
        name = options.follow or request_to_follow(runs)
        with screen.waiting(f"following request {name}"):
            followed = follow_request(name, runs, given.requests, deployment, router)
    facts = {
        "requests": given.title,
        **deployment_facts(deployment),
        "cluster": options.cluster,
        "best": ranked_policies(runs)[0].name,
    }
    page = serve_page(
        title,
        runs,
        facts,
        followed=followed,
        left_out=given.left_out,
        baseline=baseline_run(options.policy, runs, options.baseline),
        cannot=cannot,
    )
    screen.keep(page, options.html)


def _write_csv(path: Path, screen: Screen, runs: Sequence[PolicyRun]) -> None:
    from trainyard.report.serve_requests import write_requests

    with writing("table of requests", path):
        write_requests(path, runs)
    screen.say(f"requests written to {path}")
