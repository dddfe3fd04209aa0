"""Find the fewest devices on which a model meets the objectives of requests.

1. Every split of the model is examined, fewest devices first. A split is ruled out if it does not fit, or if too many
   requests miss their objectives even when each is served alone.
2. For each split, the search finds the fewest replicas with which any of the policies meets the objectives. A split that
   needs more devices than another is a runner-up: for it, the first policy that meets them is enough.
3. The same with separate replicas for prompts and for decodes, as far as these take no more devices.
4. Options of policies are changed one at a time: first where that may save a replica, at last to improve the plan.
5. The bottleneck: among the deployments with fewer devices, the one that comes closest is simulated again, each time
   with one part improved.

A simulation stops as soon as too many requests have missed their objectives, or more than under the deployment with
which it is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainyard.serve.auto import PolicyChoice, Trial
from trainyard.serve.compare import PolicyRun
from trainyard.serve.deployment import Deployment
from trainyard.serve.errors import ServeError
from trainyard.serve.planning.bottlenecks import Bottleneck, bottlenecks_of
from trainyard.serve.planning.frontier import FrontierPoint, steady_states
from trainyard.serve.planning.plan_search import PlanSearch
from trainyard.serve.planning.reasons import check_context
from trainyard.serve.planning.search import DeploymentSearch, kind_of
from trainyard.serve.requests.request import TracedRequest
from trainyard.serve.splits import ExcludedSplit, MakeSplit, no_split_error, possible_splits
from trainyard.serve.summary import Summary

__all__ = ["ServingPlan", "plan_serving"]

_NUM_RUNS = 4  # of which every request is kept
_ROUTER = "least_requests"


@dataclass(frozen=True, eq=False)
class ServingPlan:
    """The result of `plan_serving`.

    Attributes
    ----------
    best : the plan; where nothing meets the objectives, what comes closest.
    is_met : whether enough requests meet their objectives under it.
    share : target share of the requests that meet them.
    runs : the plan, then the best deployments of other splits, with every request.
    runners_up : other deployments that meet the objectives, best first.
    closest : of the deployments with fewer devices that were simulated, the one under which most requests meet their
        objectives; None if there is none. Where the objectives are not met, the plan itself.
    bottlenecks : of that deployment, the one whose improvement helps most first.
    excluded_splits : splits that do not fit or do not meet the objectives, and why.
    points : steady states of all splits that fit, for their `frontier`.
    num_trials : how many deployments were simulated.
    """

    best: Trial
    is_met: bool
    share: float
    runs: tuple[PolicyRun, ...]
    runners_up: tuple[Trial, ...]
    closest: Trial | None
    bottlenecks: tuple[Bottleneck, ...]
    excluded_splits: tuple[ExcludedSplit, ...]
    points: tuple[FrontierPoint, ...]
    num_trials: int

    @property
    def deployment(self) -> Deployment:
        """Of the plan."""
        return self.best.deployment

    @property
    def policy(self) -> str:
        """Of the plan, as `trainyard.serve.catalog.parse_policies` reads it."""
        return self.best.policy

    @property
    def bottleneck(self) -> Bottleneck | None:
        """The change of the closest deployment that helps most; None if none of them helps."""
        reached = self.closest.summary if self.closest is not None else None
        first = self.bottlenecks[0] if self.bottlenecks else None
        helps = first is not None and first.slo_attainment > (
            reached.share_met if reached is not None else 0.0
        )
        return first if helps else None

    @property
    def summary(self) -> Summary:
        """Of the plan."""
        return self.runs[0].summary


def plan_serving(
    requests: Sequence[TracedRequest],
    split: MakeSplit,
    num_devices: int,
    choices: Sequence[PolicyChoice],
    *,
    node_size: int | None = None,
    share: float = 0.99,
    router: str | None = None,
    block_tokens: int = 16,
    max_model_len: int | None = None,
    tell: Callable[[str], None] = lambda what: None,
) -> ServingPlan:
    """Find the fewest devices that meet the objectives.

    Parameters
    ----------
    requests : in the order of their arrival, with their objectives.
    split : makes the model of a split.
    num_devices : that may be used.
    choices : policies that the search starts from.
    node_size : devices of a node, within which shards stay; by default all are one node.
    share : target share of all requests, refused ones included, that meet their objectives.
    router : as `trainyard.serve.router.router_of` reads it; by default ``least_requests``, and beside it every ratio of
        replicas for prompts to replicas for decodes.
    block_tokens : tokens per block of the KV cache.
    max_model_len : the longest sequence; by default that of the model, or what the cache has room for.
    tell : is called with what is simulated next.

    Raises
    ------
    DoesNotFitError
        If the devices have too little memory for the model, however it is split.
    ServeError
        If there are no requests or no objectives, the model cannot be split, or too many requests exceed its context.
    """
    _check(requests, choices, share)
    splits, excluded = possible_splits(
        split, num_devices, node_size or num_devices, block_tokens=block_tokens, max_model_len=max_model_len
    )
    if not splits:
        raise no_split_error(excluded)
    check_context(requests, splits[0].model, share)
    longest = min(max_model_len or splits[0].model.context, splits[0].model.context)
    search = DeploymentSearch(requests, choices, share, router or _ROUTER, longest, tell)
    return _planned(PlanSearch(search, splits, excluded, with_pools=router is None), tell)


def _planned(planning: PlanSearch, tell: Callable[[str], None]) -> ServingPlan:
    """Search, then find what keeps fewer devices from the objectives."""
    search = planning.search
    met = planning.met()
    is_met = met is not None
    best, runners_up = met or (planning.closest_of_all(), ())
    closest = planning.closest_below(best) if is_met else best
    tell(f"what keeps {closest or best} from the objectives")
    shown = [best, *_first_of_kinds(best, runners_up)][:_NUM_RUNS]
    return ServingPlan(
        best,
        is_met,
        search.share,
        tuple(search.run(each) for each in shown),
        runners_up,
        closest,
        bottlenecks_of(closest, search.requests) if closest is not None else (),
        tuple(planning.excluded_splits),
        tuple(point for each in planning.splits for point in steady_states(each, search.requests)),
        search.num_trials,
    )


def _check(requests: Sequence[TracedRequest], choices: Sequence[PolicyChoice], share: float) -> None:
    if not requests or not any(each.request.has_objectives for each in requests):
        raise ServeError("no request has an objective; give an objective, such as --ttft 500ms")
    if not 0 < share <= 1:
        raise ServeError(f"share {share}; allowed is a number above 0, up to 1")
    if not choices:
        raise ServeError("there is no policy to choose; give one")


def _first_of_kinds(best: Trial, trials: Sequence[Trial]) -> list[Trial]:
    """The first trial of each split but that of the plan, with replicas that are alike and with two kinds of them."""
    first: dict[tuple[str, bool], Trial] = {}
    for each in trials:
        if kind_of(each) != kind_of(best):
            first.setdefault(kind_of(each), each)
    return list(first.values())
