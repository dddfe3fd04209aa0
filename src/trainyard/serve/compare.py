"""Compare policies on the same requests and the same deployment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from trainyard.reading import listed
from trainyard.serve.catalog import is_own, parse_policies
from trainyard.serve.checked_instance import CheckedInstance
from trainyard.serve.deployment import Deployment
from trainyard.serve.errors import ServeError
from trainyard.serve.instance import Instance
from trainyard.serve.load_over_time import Load, LoadOverTime, LoadRecordingInstance
from trainyard.serve.policy import BatchPolicy
from trainyard.serve.request_timeline import RequestSteps, RequestTimeline, TimelineRecordingInstance
from trainyard.serve.requests.request import TracedRequest
from trainyard.serve.results import Results, Served
from trainyard.serve.router import Router, round_robin
from trainyard.serve.simulate_requests import simulate_requests
from trainyard.serve.summary import Summary
from trainyard.shown import Shown

__all__ = [
    "CannotRun",
    "PolicyRun",
    "baseline_run",
    "compare_policies",
    "follow_request",
    "ranked_policies",
    "request_to_follow",
    "require_request",
]


@dataclass(frozen=True, eq=False, repr=False)
class PolicyRun(Shown):
    """A simulated run of one policy.

    Attributes
    ----------
    name : name of the policy, with its options.
    policy : the policy.
    results : results of every request.
    summary : the run in a few numbers.
    load : load of the replicas over time; None if it was not recorded.
    """

    name: str
    policy: BatchPolicy
    results: Results
    summary: Summary
    load: Load | None = None


@dataclass(frozen=True)
class CannotRun:
    """A policy that cannot serve these requests on this deployment, and why."""

    name: str
    why: str


def compare_policies(
    policies: str,
    requests: Iterable[TracedRequest],
    deployment: Deployment,
    router: Router = round_robin,
    tell: Callable[[str, int], None] = lambda name, num: None,
    *,
    records_load: bool = False,
) -> tuple[tuple[PolicyRun, ...], tuple[CannotRun, ...]]:
    """Simulate the same requests under each policy. Of a policy of the user's own, every batch is checked before.

    Parameters
    ----------
    policies : as `parse_policies` reads them.
    requests : in the order of their arrival, as `simulate_requests` takes them. They are gone through once for each
        policy, and once more for one of the user's own, and none is held that has ended.
    router : chooses the replica of a request.
    tell : is called with the name of the policy and the number of requests that have arrived.
    records_load : whether the load over time is recorded.

    Returns
    -------
    The runs, in the order of the text, and the policies that could not serve.

    Raises
    ------
    ServeError
        If the text does not name policies, or requests can be gone through only once.
    """
    if iter(requests) is requests:
        raise ServeError(
            "requests are an iterator, which only the first policy would see; give a sequence, or what begins anew"
        )
    runs, cannot = [], []
    for name, policy in parse_policies(policies):
        load = LoadOverTime(deployment.num_blocks) if records_load else None
        make: Callable[..., Instance] = Instance if load is None else partial(LoadRecordingInstance, load)
        coming = _told(requests, partial(tell, name))
        try:
            if is_own(name):
                _simulated(requests, deployment, policy, router, CheckedInstance)
            results = _simulated(coming, deployment, policy, router, make)
        except ServeError as error:
            cannot.append(CannotRun(name, str(error)))
        else:
            summary = Summary.of(results, deployment.num_replicas)
            runs.append(PolicyRun(name, policy, results, summary, load.load() if load else None))
    return tuple(runs), tuple(cannot)


def ranked_policies(runs: Sequence[PolicyRun]) -> tuple[PolicyRun, ...]:
    """Sort by mean end-to-end time; a policy that served fewer requests comes after those that served more."""
    return tuple(sorted(runs, key=lambda run: (-run.summary.num_served, run.summary.e2e.mean_s)))


def baseline_run(policies: str, runs: Sequence[PolicyRun], baseline: str | None) -> PolicyRun | None:
    """The run of the baseline; None if there is none, or it could not serve.

    Raises
    ------
    ServeError
        If it is none of the policies.
    """
    names = [name for name, _ in parse_policies(policies)]
    if baseline is not None and baseline not in names:
        raise ServeError(
            f"baseline {baseline!r} is not among the policies: {', '.join(names)}; name one of them"
        )
    return next((run for run in runs if run.name == baseline), None)


def require_request(name: str, requests: Iterable[TracedRequest]) -> None:
    """Check that a request to follow exists.

    Raises
    ------
    ServeError
        If it does not; the message names some that do.
    """
    if all(traced.request.name != name for traced in requests):
        names = listed(traced.request.name for traced in requests)
        raise ServeError(f"there is no request {name!r} to follow; there are {names}")


def request_to_follow(runs: Sequence[PolicyRun]) -> str:
    """The name of the slowest preempted request, or of the slowest of all if none was preempted.

    Raises
    ------
    ServeError
        If no request was served.
    """
    served = [each for run in runs for each in run.results.served]
    if not served:
        raise ServeError("no request was served, so none can be followed")
    return max(served, key=lambda each: (each.num_preemptions > 0, each.e2e_s)).request.name


def follow_request(
    name: str,
    runs: Sequence[PolicyRun],
    requests: Iterable[TracedRequest],
    deployment: Deployment,
    router: Router = round_robin,
) -> Mapping[str, RequestTimeline]:
    """The timeline of one request under each policy that served it, by policy.

    Each policy is simulated again up to the end of that request; it decides the same as before.

    Parameters
    ----------
    name : of the request.
    runs : of `compare_policies` on the same requests, deployment and router.

    Raises
    ------
    ServeError
        If there is no such request.
    """
    require_request(name, requests)
    found = {}
    for run in runs:
        served = next((each for each in run.results.served if each.request.name == name), None)
        if served is not None:
            steps = RequestSteps(name)
            coming = _up_to(requests, served)
            _simulated(coming, deployment, run.policy, router, partial(TimelineRecordingInstance, steps))
            found[run.name] = RequestTimeline(
                served,
                tuple(steps.spans),
                tuple(steps.preempted_s),
                tuple(steps.wait_reasons),
                tuple(steps.moved_s),
            )
    return found


def _simulated(
    requests: Iterable[TracedRequest],
    deployment: Deployment,
    policy: BatchPolicy,
    router: Router,
    make: Callable[..., Instance],
) -> Results:
    instances = deployment.instances(policy, make)
    return simulate_requests(requests, instances, deployment.model.step_time, router)


def _told(requests: Iterable[TracedRequest], tell: Callable[[int], None]) -> Iterator[TracedRequest]:
    for num, traced in enumerate(requests):
        tell(num)
        yield traced


def _up_to(requests: Iterable[TracedRequest], served: Served) -> Iterator[TracedRequest]:
    """The requests that come before one ends, with those that continue them."""
    for traced in requests:
        if not traced.request.parent and traced.request.arrival_s > served.finished_s:
            return
        yield traced
