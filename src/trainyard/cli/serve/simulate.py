"""`trainyard serve simulate`: serve a trace of requests by one or more policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from trainyard.cli.outputs import Output, writing
from trainyard.cli.screen import Outcome, Screen
from trainyard.cli.serve.chunk_option import ChunkOption
from trainyard.cli.serve.deploying import (
    DeployOptions,
    deployment_document,
    deployment_facts,
    errors_to_expect,
)
from trainyard.cli.serve.requests import GivenRequests, RequestOptions

if TYPE_CHECKING:
    from trainyard.serve.compare import CannotRun, PolicyRun
    from trainyard.serve.costs.expected_error import ExpectedError
    from trainyard.serve.deployment import Deployment
    from trainyard.serve.request_timeline import RequestTimeline
    from trainyard.serve.router import Router

__all__ = ["Options", "act"]

_SHOWN_EVERY = 100  # requests
_IN_TITLE = ("deployment", "cluster")


@dataclass(frozen=True, kw_only=True)
class Options(DeployOptions, ChunkOption, RequestOptions):
    """Simulate how a model on a cluster serves requests, under one or more policies. No GPU is needed."""

    policy: Annotated[str, tyro.conf.arg(metavar="A,B,...")] = "vllm"
    """Batch policies, separated by commas, with options in parentheses; + adds an admission order, as in vllm+vtc. Lists
    of both: `trainyard papers`."""
    router: Annotated[str, tyro.conf.arg(metavar="NAME")] = "round_robin"
    """How requests are spread over replicas: round_robin, least_requests, or prefill_decode(prefill_replicas=N), where N
    replicas compute prompts and the others all further tokens."""
    baseline: Annotated[str | None, tyro.conf.arg(metavar="POLICY")] = None
    """Policy of --policy that a column of the table compares the others with; by default there is no such column."""
    follow: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Request whose steps --html and --json show one by one; by default the page shows the slowest preempted request, or
    the slowest of all."""
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write an HTML page with figures."""
    csv: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write a CSV with one line for every request under every policy."""


def act(options: Options, screen: Screen) -> Outcome:
    """Simulate."""
    from trainyard.report.serve_league import refusal_lines, run_document, serve_tables
    from trainyard.report.serve_page import serve_page
    from trainyard.report.serve_requests import followed_document
    from trainyard.serve.compare import baseline_run, ranked_policies, require_request
    from trainyard.serve.router import router_of

    options = _chunked(options)
    router = router_of(options.router)
    baseline_run(options.policy, (), options.baseline)
    given = options.read()
    if options.follow is not None:
        require_request(options.follow, given)
    with screen.waiting(f"working out the steps of {options.model}"):
        deployment = options.deployment(options.policy)
    _warn(options, screen, deployment, given)
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
        "rows": given.rows,
        "cannot_run": [{"policy": each.name, "why": each.why} for each in cannot],
        "baseline": options.baseline or "",
    }
    said = refusal_lines(runs, cannot)
    if not runs:
        why = f"no policy could serve: {cannot[0].name}: {cannot[0].why}"
        return Outcome(document | {"runs": []}, said, why)
    followed = _followed(options, screen, runs, given, deployment, router)
    base = _baseline(options, screen, runs)
    title = f"{given.title}; {deployment} on {options.cluster}"
    expected = errors_to_expect(deployment, options.kernels, [run.name for run in runs])
    facts = _facts(options, deployment, expected)
    if options.html is not None:
        top = {"requests": given.title, **facts, "best": ranked_policies(runs)[0].name}
        page = serve_page(
            title, runs, top, followed=followed, left_out=left_out, baseline=base, cannot=cannot
        )
        screen.keep(page, options.html)
    _write_csv(options.csv, screen, ranked_policies(runs))
    found = {
        "expected_errors": [each._asdict() for each in expected],
        "runs": [run_document(run, base) for run in ranked_policies(runs)] if options.json else [],
        "followed": followed_document(followed),
    }
    lines = (*said, *(left_out.lines() if left_out is not None else ()))
    told = (f"{name}: {value}" for name, value in facts.items() if name not in _IN_TITLE)
    return Outcome(
        document | found,
        (*serve_tables(title, runs, base, cannot), *told, *lines),
        "" if any(run.summary.num_served for run in runs) else f"no request was served: {said[0]}",
    )


def _baseline(options: Options, screen: Screen, runs: Sequence[PolicyRun]) -> PolicyRun | None:
    """The policy that others are compared with; it is said if it could not serve."""
    from trainyard.serve.compare import baseline_run

    base = baseline_run(options.policy, runs, options.baseline)
    if options.baseline is not None and base is None:
        screen.say(f"warning: nothing is compared with --baseline {options.baseline!r}: it could not serve")
    return base


def _chunked(options: Options) -> Options:
    """The options with what --chunk says in the names of the policies."""
    baseline = None if options.baseline is None else options.chunked(options.baseline)
    return replace(options, policy=options.chunked(options.policy), baseline=baseline)


def _warn(options: Options, screen: Screen, deployment: Deployment, given: GivenRequests) -> None:
    """Warn of requests for other models, and of options without effect."""
    from trainyard.serve.catalog import is_own, swapping_policies

    if options.follow is not None and options.html is None and not options.json:
        screen.say("warning: --follow has no effect without --html or --json")
    swapping = swapping_policies(options.policy, samples=given.has_samples)
    if swapping and not deployment.num_host_blocks:
        screen.say(
            f"warning: without --host-cache-memory nothing is swapped out by {', '.join(swapping)}: requests that are "
            "preempted are computed again"
        )
    if deployment.num_host_blocks and not swapping and not is_own(options.policy):
        screen.say(f"warning: --host-cache-memory has no effect: no policy of {options.policy!r} swaps")
    if told := given.other_models(deployment.model.name):
        screen.say(told)


def _simulated(
    options: Options, screen: Screen, given: GivenRequests, deployment: Deployment, router: Router
) -> tuple[Sequence[PolicyRun], Sequence[CannotRun]]:
    from trainyard.serve.compare import compare_policies

    with screen.waiting("simulating") as progress:

        def tell(name: str, num: int) -> None:
            if num % _SHOWN_EVERY == 0:
                progress(f"simulating {name}", f"{num:,} of {given.num:,} requests")

        return compare_policies(
            options.policy,
            given,
            deployment,
            router,
            tell,
            records_load=options.html is not None,
        )


def _followed(
    options: Options,
    screen: Screen,
    runs: Sequence[PolicyRun],
    given: GivenRequests,
    deployment: Deployment,
    router: Router,
) -> Mapping[str, RequestTimeline]:
    """The request that is to be followed, by policy; none if nobody asks for it, or none was served."""
    from trainyard.serve.compare import follow_request, request_to_follow

    wants = options.html is not None or options.follow is not None
    if not wants or not any(run.summary.num_served for run in runs):
        return {}
    name = options.follow or request_to_follow(runs)
    with screen.waiting(f"following request {name}"):
        found = follow_request(name, runs, given, deployment, router)
    if not found:
        screen.say(f"warning: request {name!r} is not followed: every policy refused it")
    return found


def _facts(options: Options, deployment: Deployment, expected: Sequence[ExpectedError]) -> dict[str, str]:
    """The deployment, the errors to expect, and the objectives, by name."""
    others = {"expected error": "; ".join(map(str, expected)), "objectives": options.objectives_text()}
    facts = {**deployment_facts(deployment), "cluster": options.cluster}
    return facts | {name: text for name, text in others.items() if text}


def _write_csv(path: Path | None, screen: Screen, runs: Sequence[PolicyRun]) -> None:
    """Write the requests of all policies, if a file is given."""
    if path is None:
        return
    from trainyard.report.serve_requests import write_requests

    with writing("table of requests", path):
        write_requests(path, runs)
    screen.say(f"requests written to {path}")
