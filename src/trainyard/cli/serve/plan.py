"""`trainyard serve plan`: the fewest devices on which a model serves requests as fast as they are to be served."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from trainyard.cli.bounds import TOKENS
from trainyard.cli.outputs import Output
from trainyard.cli.screen import Outcome, Screen
from trainyard.cli.serve.requests import GivenRequests, RequestOptions

if TYPE_CHECKING:
    from trainyard.hardware.cluster import Cluster
    from trainyard.serve.auto import PolicyChoice
    from trainyard.serve.planning.plan import ServingPlan

__all__ = ["Options", "act"]

_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,9})?) ?%", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Options(RequestOptions):
    """Find the fewest devices of a cluster on which a model meets objectives, and say what bounds them."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A language model: its name, such as llama3-8b, or a Python file."""
    cluster: Annotated[str, tyro.conf.arg(metavar="C")]
    """The devices that there are, all of a type: NODESxDEVICESxTYPE, such as 1x8xA100-80G; or a YAML file."""
    share: Annotated[str, tyro.conf.arg(metavar="PERCENT")] = "99%"
    """How many of the requests are to meet their objectives."""
    policy: Annotated[str | None, tyro.conf.arg(metavar="A,B,...")] = None
    """Choose among these policies only, as they are; by default those of the catalog, and their options."""
    router: Annotated[str, tyro.conf.arg(metavar="NAME")] = "least_requests"
    """Which replica a request goes to: round_robin, or least_requests."""
    kernels: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Measured times of kernels; by default seconds are predicted from what is known of the device."""
    dtype: Annotated[str, tyro.conf.arg(metavar="NAME")] = "bfloat16"
    """Of weights: float32, float16, bfloat16 or float8; keys and values have at least 16 bits."""
    block_tokens: Annotated[int, tyro.conf.arg(metavar="N"), TOKENS] = 16
    """Tokens of a block."""
    max_model_len: Annotated[int | None, tyro.conf.arg(metavar="N"), TOKENS] = None
    """The longest sequence, prompt and output together; by default what the model and the cache allow."""
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write a page with figures."""

    def read_at_rate(self) -> GivenRequests:
        """The requests; those of a trace come at the rate, if one is given."""
        if self.requests is None or self.rate is None:
            return self.read()
        from trainyard.serve.errors import ServeError
        from trainyard.serve.requests.change import scaled

        if self.time_scale is not None:
            raise ServeError("--rate and --time-scale both say how fast requests come; give one")
        given = replace(self, rate=None).read()
        times_s = [each.request.arrival_s for each in given.requests if not each.request.parent]
        if len(times_s) < 2 or times_s[-1] <= times_s[0]:
            raise ServeError(
                f"requests of {self.requests} come all at once, so --rate says nothing; leave it out"
            )
        factor = (len(times_s) - 1) / (times_s[-1] - times_s[0]) / self.rate
        return replace(
            given,
            requests=tuple(scaled(each, factor) for each in given.requests),
            title=f"{given.title}, at {self.rate:g}/s",
            document={**given.document, "rate_per_s": self.rate},
        )


def act(options: Options, screen: Screen) -> Outcome:
    """Plan."""
    from trainyard.hardware.parse import parse_cluster
    from trainyard.report.serve_plan import plan_document, plan_tables, verdict
    from trainyard.report.serve_plan_page import serve_plan_page
    from trainyard.serve.errors import ServeError

    share, cluster = _share(options.share), parse_cluster(options.cluster)
    sizes = {len(node.devices) for node in cluster.nodes}
    if len(sizes) > 1 or len({device.name for device in cluster.devices}) > 1:
        raise ServeError(
            f"{options.cluster} has devices or nodes that are not alike; give a cluster of like ones"
        )
    choices = _choices(options.policy)
    objectives = options.objectives()
    given = options.read_at_rate()
    plan = _planned(options, screen, given, cluster, share, choices)
    if given.left_out is not None and given.left_out.warning:
        screen.say(given.left_out.warning)
    title = f"{options.model} on {options.cluster}: {given.title}"
    if options.html is not None:
        wanted = ", ".join(
            f"{name.upper()} {text}" for name in ("ttft", "tpot", "e2e") if (text := getattr(options, name))
        )
        facts = {"requests": given.title, "objectives": f"{wanted or 'of the trace'}, {options.share}"}
        screen.keep(serve_plan_page(title, plan, facts, left_out=given.left_out), options.html)
    document = {
        "model": options.model,
        "cluster": options.cluster,
        "requests": given.document,
        "objectives": objectives,
        "rows": given.left_out.document("requests") if given.left_out is not None else None,
        **plan_document(plan),
    }
    lines = given.left_out.lines() if given.left_out is not None else ()
    return Outcome(document, (title, *plan_tables(plan), *lines), "" if plan.is_met else verdict(plan))


def _planned(
    options: Options,
    screen: Screen,
    given: GivenRequests,
    cluster: Cluster,
    share: float,
    choices: Sequence[PolicyChoice],
) -> ServingPlan:
    from trainyard.serve.deploy import served_model
    from trainyard.serve.deployment import ServedModel
    from trainyard.serve.errors import ServeError
    from trainyard.serve.planning.plan import plan_serving
    from trainyard.serve.router import ROUTERS

    if options.router not in ROUTERS:
        raise ServeError(f"no router {options.router!r}; there are {', '.join(ROUTERS)}")

    def split(tensor_parallel: int, pipeline_stages: int) -> ServedModel:
        return served_model(
            options.model,
            cluster,
            tensor_parallel=tensor_parallel,
            pipeline_stages=pipeline_stages,
            dtype=options.dtype,
            kernels=options.kernels,
        )

    with screen.waiting("planning") as change:
        return plan_serving(
            given.requests,
            split,
            cluster.num_devices,
            choices,
            node_size=len(cluster.nodes[0].devices),
            share=share,
            router=options.router,
            block_tokens=options.block_tokens,
            max_model_len=options.max_model_len,
            tell=lambda what: change(f"simulating {what}"),
        )


def _choices(policy: str | None) -> Sequence[PolicyChoice]:
    """By default those of the catalog; of the orders of admission, those that have to do with objectives."""
    from trainyard.serve.policy_choices import catalog_choices, given_choices

    return catalog_choices(("shortest_prompt",)) if policy is None else given_choices(policy)


def _share(text: str) -> float:
    from trainyard.serve.errors import ServeError

    match = _PERCENT.fullmatch(text.strip())
    share = float(match[1]) / 100 if match else 0.0
    if not 0 < share <= 1:
        raise ServeError(f"--share {text!r}: allowed is a percentage above 0, up to 100%, such as 99%")
    return share
