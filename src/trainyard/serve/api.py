"""The public functions of level 3: read or draw requests, simulate a deployment that serves them, plan a deployment."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import cluster_of
from trainyard.progress import Progress, no_progress
from trainyard.reading.arguments import joined_names, require_type
from trainyard.reading.left_out import warn_of_rows
from trainyard.serve.catalog import parse_policies
from trainyard.serve.compare import CannotRun, PolicyRun, compare_policies, ranked_policies
from trainyard.serve.costs.host_time import host_time_of
from trainyard.serve.deploy import deploy, served_model
from trainyard.serve.deployment import Deployment, ServedModel, split_text
from trainyard.serve.errors import ServeError
from trainyard.serve.planning.plan import ServingPlan, plan_serving
from trainyard.serve.policy_choices import catalog_choices, given_choices
from trainyard.serve.requests.change import with_objectives
from trainyard.serve.requests.drawn import (
    BURSTINESS,
    LENGTHS,
    NUM_REQUESTS,
    drawn_requests,
    log_normal_lengths,
)
from trainyard.serve.requests.read import read_requests as read_trace
from trainyard.serve.requests.request import MAX_TOKENS, TracedRequest
from trainyard.serve.router import router_of
from trainyard.serve.splits import MakeSplit
from trainyard.serve.step_memory import largest_step
from trainyard.shown import ShownOnPage

__all__ = ["ServingComparison", "deployment_of", "draw_requests", "plan", "read_requests", "simulate"]

SHARE = 0.99
"""Share of the requests that are to meet their objectives."""
_MODEL = 'a name of the zoo such as "llama3-8b", the path of a Python file, or a config.json of Hugging Face'


@dataclass(frozen=True, eq=False, repr=False)
class ServingComparison(ShownOnPage):
    """Batch policies on the same requests and the same deployment.

    Attributes
    ----------
    deployment : replicas of the model on the cluster.
    runs : of the policies that could serve, in the order in which they were named.
    cannot_run : policies that could not serve, and why.
    """

    deployment: Deployment
    runs: tuple[PolicyRun, ...]
    cannot_run: tuple[CannotRun, ...]

    @property
    def ranked(self) -> tuple[PolicyRun, ...]:
        """The runs, that of the shortest mean end-to-end time first; who served fewer requests comes later."""
        return ranked_policies(self.runs)

    @property
    def best(self) -> PolicyRun:
        """The first of the ranked runs.

        Raises
        ------
        ServeError
            If no policy could serve.
        """
        if not self.runs:
            raise ServeError(f"no policy could serve: {self.cannot_run[0].name}: {self.cannot_run[0].why}")
        return self.ranked[0]

    def __getitem__(self, policy: str) -> PolicyRun:
        """The run of a policy.

        Raises
        ------
        ServeError
            If the policy has no run.
        """
        for run in self.runs:
            if run.name == policy:
                return run
        raise ServeError(
            f"there is no run of {policy!r}; there are {', '.join(run.name for run in self.runs)}"
        )

    def rows(self) -> list[dict[str, Any]]:
        """The figures of each run in seconds and shares, best run first, as ``pandas.DataFrame`` takes them."""
        return [
            {
                "policy": run.name,
                **run.summary.numbers(),
                "fairness": run.summary.fairness,
                "utilisation": run.summary.utilisation,
                "num_cut": run.summary.num_cut,
            }
            for run in self.ranked
        ]


def read_requests(
    path: str | Path,
    *,
    ttft_s: float = math.inf,
    tpot_s: float = math.inf,
    e2e_s: float = math.inf,
    format: str | None = None,
    limit: int | None = None,
    max_tokens: int = MAX_TOKENS,
    strict: bool = False,
    time_scale: float = 1.0,
) -> list[TracedRequest]:
    """Read the requests of a trace, in the order of arrival.

    A warning says if many rows of the trace gave no request.

    Parameters
    ----------
    path : a file of your own or of a public format.
    ttft_s, tpot_s, e2e_s : objectives of requests without their own: time to the first token, per token after it, and to
        the last one; by default none.
    format, limit, max_tokens, strict, time_scale : as of `trainyard.serve.requests.read.read_requests`.

    Raises
    ------
    ServeError
        If the file cannot be read, or no row of it gives a request; the message says where, and what is allowed.
    """
    trace = read_trace(Path(path), format, limit, max_tokens=max_tokens, strict=strict, time_scale=time_scale)
    requests = [with_objectives(each, ttft_s, tpot_s, e2e_s) for each in trace]
    warn_of_rows(trace.left_out)
    return requests


def draw_requests(
    rate_per_s: float,
    num_requests: int = NUM_REQUESTS,
    *,
    prompt_tokens: int = LENGTHS["prompt_tokens"],
    output_tokens: int = LENGTHS["output_tokens"],
    burstiness: float = BURSTINESS,
    seed: int = 0,
    ttft_s: float = math.inf,
    tpot_s: float = math.inf,
    e2e_s: float = math.inf,
    max_tokens: int = MAX_TOKENS,
) -> list[TracedRequest]:
    """Draw requests at random, in the order of arrival.

    Parameters
    ----------
    rate_per_s : requests that arrive in a second.
    prompt_tokens, output_tokens : means of log-normal lengths, whose standard deviation equals the mean.
    burstiness : coefficient of variation of the gaps between arrivals; 1 is Poisson.
    ttft_s, tpot_s, e2e_s : objectives, as of `read_requests`.
    max_tokens : that clients take at most.

    Raises
    ------
    ServeError
        If a number is out of range.
    """
    lengths = log_normal_lengths(prompt_tokens, output_tokens)
    drawn = drawn_requests(rate_per_s, num_requests, lengths, burstiness, seed, max_tokens=max_tokens)
    return [with_objectives(each, ttft_s, tpot_s, e2e_s) for each in drawn]


def deployment_of(
    model: str,
    cluster: Cluster | str,
    policies: str = "vllm",
    *,
    host_time: str = "overlapped",
    **options: Any,
) -> Deployment:
    """Replicas of a model on a cluster, with room for the largest step of any of some policies.

    Parameters
    ----------
    host_time : how long devices wait for the host between steps, as `host_time_of` reads it; by default not at all.
    options : of `trainyard.serve.deploy.deploy`, such as ``tensor_parallel=2`` or ``num_replicas=1``.

    Raises
    ------
    ServeError
        If options do not go together, or the model does not fit.
    """
    require_type("model", model, str, _MODEL)
    step = largest_step(policy for _, policy in parse_policies(policies))
    return deploy(model, cluster_of(cluster), host_time=host_time_of(host_time), step=step, **options)


def simulate(
    requests: str | Path | Sequence[TracedRequest],
    model: str,
    cluster: Cluster | str,
    policies: str | Sequence[str] = "vllm",
    *,
    router: str = "round_robin",
    records_load: bool = False,
    tell: Callable[[str, int], None] = lambda policy, num: None,
    **options: Any,
) -> ServingComparison:
    """Simulate how a model on a cluster serves requests under one or more policies, as ``trainyard serve simulate`` does.

    Parameters
    ----------
    requests : in the order of arrival; or the path of a trace, as `read_requests` takes it.
    model : its name in the zoo, a Python file, or a ``config.json`` of Hugging Face.
    cluster : or its text form, ``"1x2xA100-80G"``.
    policies : names of the catalog, or ``FILE.py:NAME``, each with options in parentheses if it has any: a list, or text
        with commas between.
    router : how requests are spread over replicas.
    records_load : whether the load over time is recorded, for charts.
    tell : called with the policy and the number of requests that have arrived.
    options : of the deployment, as of `deployment_of`.

    Raises
    ------
    ServeError
        If a policy or the router is unknown, the model does not fit, or the trace cannot be read. A policy that cannot
        serve these requests is no error: the result names it.

    Examples
    --------
    >>> from trainyard.serve import draw_requests, simulate
    >>> found = simulate(draw_requests(2.0, 20), "llama3-8b", "1x1xA100-80G", ["vllm", "sarathi"])
    >>> [row["num_served"] for row in found.rows()]
    [20, 20]
    """
    names, spread = joined_names("policies", policies, ServeError), router_of(router)
    coming = _requests(requests)
    deployment = deployment_of(model, cluster, names, **options)
    runs, cannot = compare_policies(names, coming, deployment, spread, tell, records_load=records_load)
    return ServingComparison(deployment, runs, cannot)


def plan(
    requests: str | Path | Sequence[TracedRequest],
    model: str,
    cluster: Cluster | str,
    *,
    share: float = SHARE,
    policies: str | Sequence[str] | None = None,
    router: str | None = None,
    kernels: Path | None = None,
    host_time: str = "overlapped",
    dtype: str = "bfloat16",
    block_tokens: int = 16,
    max_model_len: int | None = None,
    progress: Progress = no_progress,
) -> ServingPlan:
    """Find the fewest devices on which a model meets the objectives of requests, as ``trainyard serve plan`` does.

    Parameters
    ----------
    requests : in the order of arrival, with objectives.
    model : as of `simulate`.
    cluster : devices that may be used, all of one type, in equal nodes.
    share : of the requests that must meet their objectives.
    policies : to choose among; by default all are tried.
    router, kernels, host_time, dtype, block_tokens, max_model_len : as of `trainyard.serve.deploy.deploy` and
        `plan_serving`.
    progress : called with what is done next.

    Raises
    ------
    DoesNotFitError
        If the devices have too little memory for the model, however it is split.
    ServeError
        If there are no requests or no objectives, or the cluster has unlike devices.
    """
    require_type("model", model, str, _MODEL)
    place, waits = _equal_nodes(cluster_of(cluster)), host_time_of(host_time)
    if router is not None:
        router_of(router)
    names = None if policies is None else joined_names("policies", policies, ServeError)
    # Of the orders of admission, those that have to do with objectives.
    choices = catalog_choices(("shortest_prompt",)) if names is None else given_choices(names)

    served = partial(
        served_model, model, place, dtype=dtype, kernels=kernels, host_time=waits, block_tokens=block_tokens
    )

    return plan_serving(
        _requests(requests),
        _telling(served, progress),
        place.num_devices,
        choices,
        node_size=len(place.nodes[0].devices),
        share=share,
        router=router,
        block_tokens=block_tokens,
        max_model_len=max_model_len,
        tell=partial(progress, "simulating"),
    )


def _telling(served: Callable[..., ServedModel], progress: Progress) -> MakeSplit:
    """A function that makes the model of a split, and tells so."""

    def split(tensor_parallel: int, pipeline_stages: int, data_parallel: int) -> ServedModel:
        what = split_text(tensor_parallel, pipeline_stages, data_parallel)
        progress("planning", f"splitting the model: {what}")
        return served(
            tensor_parallel=tensor_parallel, pipeline_stages=pipeline_stages, data_parallel=data_parallel
        )

    return split


def _requests(given: str | Path | Iterable[TracedRequest]) -> Any:
    """Requests that can be gone through many times."""
    if isinstance(given, str | Path):
        return read_requests(given)
    return tuple(given) if iter(given) is given else given


def _equal_nodes(cluster: Cluster) -> Cluster:
    """Refuse a cluster of unlike devices or nodes."""
    sizes = {len(node.devices) for node in cluster.nodes}
    if len(sizes) > 1 or len({device.name for device in cluster.devices}) > 1:
        raise ServeError(
            f"{cluster.name} has different devices, or nodes of different sizes; give a cluster of equal nodes"
        )
    return cluster
