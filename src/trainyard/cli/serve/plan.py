"""`trainyard serve plan`: the fewest devices on which a model meets the objectives of requests."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from trainyard.cli.bounds import RATE, TOKENS
from trainyard.cli.option_help import text_of_value
from trainyard.cli.outputs import Output
from trainyard.cli.screen import Outcome, Screen
from trainyard.cli.serve.deploying import errors_to_expect
from trainyard.cli.serve.requests import GivenRequests, RequestOptions
from trainyard.cli.serve.simulate import Options as SimulateOptions
from trainyard.progress import Progress

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
    router: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """How requests are spread over replicas, as in `serve simulate`; by default by least_requests, and beside it every
    ratio of replicas for prompts to replicas for decodes is tried."""
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
    with screen.waiting("loading PyTorch") as progress:
        from trainyard.serve.errors import DoesNotFitError

        share, cluster = _share(options.share), _cluster(options.cluster)
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
            plan = _planned(options, progress, given, cluster, share, choices)
        except DoesNotFitError as error:
            return Outcome(
                {**asked, "fits": False, "is_met": False, "reason": str(error)}, failure=str(error)
            )
    return _outcome(options, screen, plan, given, asked)


def _cluster(text: str) -> Cluster:
    """Read a cluster of equal devices in equal nodes."""
    from trainyard.hardware.parse import parse_cluster
    from trainyard.serve.errors import ServeError

    cluster = parse_cluster(text)
    sizes = {len(node.devices) for node in cluster.nodes}
    if len(sizes) > 1 or len({device.name for device in cluster.devices}) > 1:
        raise ServeError(
            f"{text} has different devices, or nodes of different sizes; give a cluster of equal nodes"
        )
    return cluster


def _outcome(
    options: Options, screen: Screen, plan: ServingPlan, given: GivenRequests, asked: Mapping[str, Any]
) -> Outcome:
    """Write the page and the placement of a plan, and return what is printed."""
    from trainyard.report.serve_plan import plan_document, plan_tables, verdict
    from trainyard.report.serve_plan_page import serve_plan_page

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
    expected = errors_to_expect(plan.deployment, options.kernels, (plan.policy,))
    document["expected_errors"] = [each._asdict() for each in expected]
    failure = "" if plan.is_met else verdict(plan)
    if options.save is not None and plan.is_met:
        failure = _save(plan, screen, options.save)
    lines = given.left_out.lines() if given.left_out is not None else ()
    lines = (*(f"expected error: {each}" for each in expected), *lines)
    tables = (title, *plan_tables(plan), *lines, f"simulate it with `{command}`")
    return Outcome(document, tables, failure)


def _save(plan: ServingPlan, screen: Screen, path: Path) -> str:
    """Write the placement of a plan; return why that cannot be, or ""."""
    from trainyard.serve.placement_document import placement_text
    from trainyard.serve.planning.search import pools_of

    if plan.deployment.model.data_parallel > 1:
        return f"nothing is saved to {path}: a placement has no ranks that share experts"
    if pools_of(plan.best) is not None:
        return (
            f"nothing is saved to {path}: requests move from replicas for prompts to replicas for decodes, which `serve "
            "run` does not do; plan with --router least_requests"
        )
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
        "router": plan.best.router,
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
    progress: Progress,
    given: GivenRequests,
    cluster: Cluster,
    share: float,
    choices: Sequence[PolicyChoice],
) -> ServingPlan:
    from trainyard.serve.costs.host_time import host_time_of
    from trainyard.serve.deploy import served_model
    from trainyard.serve.deployment import ServedModel, split_text
    from trainyard.serve.planning.plan import plan_serving
    from trainyard.serve.router import router_of

    if options.router is not None:
        router_of(options.router)
    host_time = host_time_of(options.host_time)

    def split(tensor_parallel: int, pipeline_stages: int, data_parallel: int) -> ServedModel:
        progress(
            "planning", f"splitting the model: {split_text(tensor_parallel, pipeline_stages, data_parallel)}"
        )
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
