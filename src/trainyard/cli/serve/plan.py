"""`trainyard serve plan`: the fewest devices on which a model meets the objectives of requests."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from trainyard.cli.bounds import RATE, TOKENS
from trainyard.cli.option_help import text_of_value
from trainyard.cli.outputs import Output
from trainyard.cli.screen import Outcome, Screen
from trainyard.cli.serve.requests import GivenRequests, RequestOptions
from trainyard.cli.serve.simulate import Options as SimulateOptions

if TYPE_CHECKING:
    from trainyard.hardware.cluster import Cluster
    from trainyard.serve.auto import PolicyChoice
    from trainyard.serve.planning.plan import ServingPlan

__all__ = ["Options", "act"]

_ALWAYS_SAID = ("tp", "replicas", "policy", "router")  # of the options of a simulation
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,9})?) ?%", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Options(RequestOptions):
    """Find the fewest devices of a cluster on which a model meets latency objectives, and the bottleneck."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A language model: its name, such as llama3-8b, a Python file, or a config.json of Hugging Face."""
    cluster: Annotated[str, tyro.conf.arg(metavar="C")]
    """Devices that may be used, all of one type: NODESxDEVICESxTYPE, such as 1x8xA100-80G; or a YAML file."""
    rate: Annotated[float | None, tyro.conf.arg(metavar="R"), RATE] = None
    """Draw requests at random, R per second; with --requests, scale the trace to R requests per second."""
    share: Annotated[str, tyro.conf.arg(metavar="PERCENT")] = "99%"
    """Share of the requests that must meet their objectives."""
    policy: Annotated[str | None, tyro.conf.arg(metavar="A,B,...")] = None
    """Choose among these policies only, with the options given; by default all policies are tried, and options tuned."""
    router: Annotated[str, tyro.conf.arg(metavar="NAME")] = "least_requests"
    """How requests are spread over replicas, as in `serve simulate`."""
    kernels: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Folder of measured kernel times, as in `serve simulate`; by default times are predicted."""
    host_time: Annotated[str, tyro.conf.arg(metavar="NAME")] = "overlapped"
    """Time between steps in which devices wait for the host, as in `serve simulate`; by default none."""
    dtype: Annotated[str, tyro.conf.arg(metavar="NAME")] = "bfloat16"
    """Type of the weights: float32, float16, bfloat16, float8 or float4. The KV cache has at least 16 bits."""
    block_tokens: Annotated[int, tyro.conf.arg(metavar="N"), TOKENS] = 16
    """Tokens per block of the KV cache."""
    max_model_len: Annotated[int | None, tyro.conf.arg(metavar="N"), TOKENS] = None
    """Longest sequence, prompt and output together; by default what the model and the KV cache allow."""
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write an HTML page with figures."""
    save: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write the placement to a file, which `serve run --placement` reads."""

    def read_at_rate(self) -> GivenRequests:
        """The requests; those of a trace are scaled to --rate, if that is given."""
        if self.requests is None or self.rate is None:
            return self.read()
        from trainyard.serve.errors import ServeError
        from trainyard.serve.requests.change import scaled

        if self.time_scale is not None:
            raise ServeError("--rate and --time-scale both say how fast requests come; give one")
        given = replace(self, rate=None).read()
        times_s = [each.request.arrival_s for each in given if not each.request.parent]
        if len(times_s) < 2 or times_s[-1] <= times_s[0]:
            raise ServeError(
                f"all requests of {self.requests} arrive at once, so --rate cannot scale them; leave it out"
            )
        factor = (len(times_s) - 1) / (times_s[-1] - times_s[0]) / self.rate
        return replace(
            given,
            again=lambda: (scaled(each, factor) for each in given),
            title=f"{given.title}, at {self.rate:g}/s",
            document={**given.document, "rate_per_s": self.rate, "time_scale": factor},
        )


def act(options: Options, screen: Screen) -> Outcome:
    """Plan."""
    from trainyard.hardware.parse import parse_cluster
    from trainyard.report.serve_plan import plan_document, plan_tables, verdict
    from trainyard.report.serve_plan_page import serve_plan_page
    from trainyard.serve.errors import DoesNotFitError, ServeError

    share, cluster = _share(options.share), parse_cluster(options.cluster)
    sizes = {len(node.devices) for node in cluster.nodes}
    if len(sizes) > 1 or len({device.name for device in cluster.devices}) > 1:
        raise ServeError(
            f"{options.cluster} has different devices, or nodes of different sizes; give a cluster of equal nodes"
        )
    choices = _choices(options.policy)
    objectives = options.objectives()
    given = options.read_at_rate()
    asked = {
        "model": options.model,
        "cluster": options.cluster,
        "requests": given.document,
        "objectives": objectives,
    }
    try:
        plan = _planned(options, screen, given, cluster, share, choices)
    except DoesNotFitError as error:
        return Outcome({**asked, "fits": False, "is_met": False, "reason": str(error)}, failure=str(error))
    if given.left_out is not None and given.left_out.warning:
        screen.say(given.left_out.warning)
    if told := given.other_models(options.model):
        screen.say(told)
    title = f"{options.model} on {options.cluster}: {given.title}"
    command = _simulation(options, plan, given)
    if options.html is not None:
        facts = {
            "result": verdict(plan),
            "requests": given.title,
            "objectives": f"{options.objectives_text() or 'of the trace'}, for {options.share} of the requests",
            "simulated by": command,
        }
        screen.keep(serve_plan_page(title, plan, facts, left_out=given.left_out), options.html)
    document = {
        **asked,
        "fits": True,
        "rows": given.rows,
        **plan_document(plan),
        "simulated_by": command,
    }
    failure = "" if plan.is_met else verdict(plan)
    if options.save is not None and plan.is_met:
        failure = _save(plan, screen, options.save)
    lines = given.left_out.lines() if given.left_out is not None else ()
    tables = (title, *plan_tables(plan), *lines, f"simulate it with `{command}`")
    return Outcome(document, tables, failure)


def _save(plan: ServingPlan, screen: Screen, path: Path) -> str:
    """Write the placement of a plan; return why that cannot be, or ""."""
    from trainyard.serve.placement_document import placement_text

    if plan.deployment.model.data_parallel > 1:
        return f"nothing is saved to {path}: a placement has no ranks that share experts"
    screen.keep(placement_text(plan.deployment.placement()), path, "placement")
    return ""


def _simulation(options: Options, plan: ServingPlan, given: GivenRequests) -> str:
    """The command that simulates the deployment of a plan with the same requests."""
    place, usual = plan.deployment, {each.name: each.default for each in fields(SimulateOptions)}
    wanted = {
        "model": options.model,
        "cluster": options.cluster,
        "tp": place.model.tensor_parallel,
        "pp": place.model.pipeline_stages,
        "dp": place.model.data_parallel,
        "replicas": place.num_replicas,
        "policy": plan.policy,
        "router": options.router,
    }
    of_requests = [each.name for each in fields(RequestOptions) if each.name != "json"]
    shared = ("kernels", "host_time", "dtype", "block_tokens", "max_model_len", *of_requests)
    wanted |= {name: getattr(options, name) for name in shared}
    if "time_scale" in given.document:
        wanted |= {"rate": None, "time_scale": given.document["time_scale"]}
    words = ["trainyard", "serve", "simulate"]
    for name, value in wanted.items():
        if value != usual[name] or name in _ALWAYS_SAID:
            words.append(f"--{name.replace('_', '-')}")
            words += [] if value is True else [_word(name, value)]
    return shlex.join(words)


def _word(option: str, value: object) -> str:
    """Return the value of an option of `serve simulate` on a command line; whole numbers without a fraction."""
    text = text_of_value(SimulateOptions, option, value)
    return text.removesuffix(".0") if isinstance(value, float) else text


def _planned(
    options: Options,
    screen: Screen,
    given: GivenRequests,
    cluster: Cluster,
    share: float,
    choices: Sequence[PolicyChoice],
) -> ServingPlan:
    from trainyard.serve.costs.host_time import host_time_of
    from trainyard.serve.deploy import served_model
    from trainyard.serve.deployment import ServedModel
    from trainyard.serve.planning.plan import plan_serving
    from trainyard.serve.router import router_of

    router_of(options.router)
    host_time = host_time_of(options.host_time)

    def split(tensor_parallel: int, pipeline_stages: int, data_parallel: int) -> ServedModel:
        return served_model(
            options.model,
            cluster,
            tensor_parallel=tensor_parallel,
            pipeline_stages=pipeline_stages,
            data_parallel=data_parallel,
            dtype=options.dtype,
            kernels=options.kernels,
            host_time=host_time,
            block_tokens=options.block_tokens,
        )

    with screen.waiting("planning") as progress:
        return plan_serving(
            tuple(given),  # a search goes through them many times
            split,
            cluster.num_devices,
            choices,
            node_size=len(cluster.nodes[0].devices),
            share=share,
            router=options.router,
            block_tokens=options.block_tokens,
            max_model_len=options.max_model_len,
            tell=partial(progress, "simulating"),
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
