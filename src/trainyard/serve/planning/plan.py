"""Find the fewest devices on which a model meets the objectives of requests.

1. Every split of the model is examined, fewest devices first. A split is ruled out if it does not fit, or if too many
   requests miss their objectives even when each is served alone.
2. For each split, the search finds the fewest replicas with which any of the policies meets the objectives. A simulation
   stops as soon as too many requests have missed them.
3. Options of policies are changed one at a time: first where that may save a replica, at last to improve the plan.
4. The bottleneck: among the deployments with fewer devices, the one that comes closest is simulated again, each time
   with one part improved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainyard.serve.auto import PolicyChoice, Trial, better
from trainyard.serve.compare import PolicyRun
from trainyard.serve.deployment import Deployment
from trainyard.serve.errors import ServeError
from trainyard.serve.planning.bottlenecks import Bottleneck, bottlenecks_of
from trainyard.serve.planning.frontier import FrontierPoint, steady_states
from trainyard.serve.planning.search import DeploymentSearch, order_of, run_of
from trainyard.serve.requests.request import TracedRequest
from trainyard.serve.results import Results
from trainyard.serve.splits import ExcludedSplit, MakeSplit, PossibleSplit, no_split_error, possible_splits
from trainyard.serve.summary import Summary

__all__ = ["ServingPlan", "plan_serving"]

_MOST_COMPARED = 2  # times the devices of the plan so far; splits that need more are no runners-up
_NUM_RUNS = 4  # of which every request is kept


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
    router: str = "least_requests",
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
    router : as `trainyard.serve.router.router_of` reads it.
    block_tokens : tokens per block of the KV cache.
    max_model_len : the longest sequence; by default that of the model, or what the cache has room for.
    tell : is called with what is simulated next.

    Raises
    ------
    DoesNotFitError
        If the devices have too little memory for the model, however it is split.
    ServeError
        If there are no requests or no objectives, the model cannot be split, or too many prompts exceed its context.
    """
    _check(requests, choices, share)
    splits, excluded = possible_splits(
        split, num_devices, node_size or num_devices, block_tokens=block_tokens, max_model_len=max_model_len
    )
    if not splits:
        raise no_split_error(excluded)
    _check_context(requests, splits[0], share)
    planning = _Planning(DeploymentSearch(requests, choices, share, router, tell), splits, excluded)
    best, runners_up = planning.met() or (planning.closest_of_all(), ())
    is_met = planning.search.is_met(best)
    closest = planning.closest_below(best) if is_met else best
    bottlenecks = bottlenecks_of(closest, requests) if closest is not None else ()
    shown = [best, *_first_of_splits(best, runners_up)][:_NUM_RUNS]
    return ServingPlan(
        best,
        is_met,
        share,
        tuple(run_of(each, requests) for each in shown),
        runners_up,
        closest,
        bottlenecks,
        tuple(planning.excluded_splits),
        tuple(point for each in splits for point in steady_states(each, requests)),
        planning.search.num_trials,
    )


def _check(requests: Sequence[TracedRequest], choices: Sequence[PolicyChoice], share: float) -> None:
    if not requests or not any(each.request.has_objectives for each in requests):
        raise ServeError("no request has an objective; give an objective, such as --ttft 500ms")
    if not 0 < share <= 1:
        raise ServeError(f"share {share}; allowed is a number above 0, up to 1")
    if not choices:
        raise ServeError("there is no policy to choose; give one")


def _check_context(requests: Sequence[TracedRequest], split: PossibleSplit, share: float) -> None:
    """Refuse requests of which too few can be served on any devices, since their prompts are too long for the model."""
    context = split.model.context
    too_long = [each.request.prompt_tokens for each in requests if each.request.prompt_tokens >= context]
    if len(requests) - len(too_long) < share * len(requests) - 1e-9:
        raise ServeError(
            f"{len(too_long):,} of {len(requests):,} requests have prompts of up to {max(too_long):,} tokens; "
            f"{split.model.name} supports sequences of at most {context:,} tokens, prompt and answer together; give "
            "shorter prompts, or a model with a longer context"
        )


class _Planning:
    """One search, and what it has found of each split."""

    def __init__(
        self, search: DeploymentSearch, splits: Sequence[PossibleSplit], excluded: Sequence[ExcludedSplit]
    ) -> None:
        self.search, self.splits, self.excluded_splits = search, splits, list(excluded)
        self._found: dict[PossibleSplit, tuple[Trial, ...]] = {}
        self._nearest: dict[PossibleSplit, Trial] = {}
        self._slow: set[PossibleSplit] = set()

    def met(self) -> tuple[Trial, tuple[Trial, ...]] | None:
        """The best plan and the runners-up; None if none meets the objectives."""
        for split in self.splits:
            self._look_at(split)
        if self._fewest_devices is None:
            return None
        while self._saves_devices():
            pass
        first, *others = sorted((each for found in self._found.values() for each in found), key=order_of)
        best = self.search.polished(first)
        return best, tuple(others)

    def closest_of_all(self) -> Trial:
        """With all devices, under which most requests meet their objectives."""
        key, search = better("slo attainment"), self.search
        first = search.choices[0]
        tried = [(split, search.tried(split.deployment(split.max_replicas), first)) for split in self.splits]
        split, best = min(tried, key=lambda each: key(each[1]))
        place = split.deployment(split.max_replicas)
        others = [search.tried(place, choice) for choice in search.choices[1:]]
        found = search.improved(min((best, *others), key=key))
        if found.summary is None:
            raise ServeError(f"no policy can serve: {found}: {found.why}")
        return found

    def closest_below(self, best: Trial) -> Trial | None:
        """Of the splits with as many replicas as take fewer devices than the plan, the best; None if there is none."""
        tried = [
            trial
            for split in self.splits
            if split not in self._slow
            and (trial := self._nearest_below(split, best.deployment.num_devices, best.choice)) is not None
        ]
        return min(tried, key=better("slo attainment"), default=None)

    @property
    def _fewest_devices(self) -> int | None:
        return min((found[0].deployment.num_devices for found in self._found.values()), default=None)

    def _look_at(self, split: PossibleSplit) -> None:
        """Steps 1 and 2."""
        size, fewest = split.model.num_devices, self._fewest_devices
        most = (
            split.max_replicas if fewest is None else min(split.max_replicas, _MOST_COMPARED * fewest // size)
        )
        if most < 1:
            self._rule_out(
                split, f"a replica takes {size} devices, more than {_MOST_COMPARED} times those of the plan"
            )
            return
        alone = self.search.alone(split)
        summary = Summary.of(alone, 1)
        if summary.share_met < self.search.share - 1e-9:
            self._slow.add(split)
            self._rule_out(split, f"even if each request is served alone, {_met(alone, summary)}")
            return
        found = self.search.fewest(split, most)
        if found:
            self._found[split] = found
        else:
            num = most * size
            self._rule_out(
                split,
                f"fewer than {100 * self.search.share:.1f} % meet their objectives on {num} device{'s' * (num > 1)}",
            )

    def _saves_devices(self) -> bool:
        """Step 3: whether changes of options meet the objectives on fewer devices than all else."""
        fewest = self._fewest_devices
        assert fewest is not None
        for split in self.splits:
            if split in self._slow:
                continue
            choice = self._found[split][0].choice if split in self._found else self.search.choices[0]
            trial = self._nearest_below(split, fewest, choice)
            if trial is not None and self.search.is_met(found := self.search.improved(trial)):
                self._found[split] = (found,)
                return True
        return False

    def _nearest_below(self, split: PossibleSplit, num_devices: int, choice: PolicyChoice) -> Trial | None:
        """As many replicas as take fewer devices; None if there is no room for one."""
        num = min(split.max_replicas, (num_devices - 1) // split.model.num_devices)
        if num < 1:
            return None
        known = self._nearest.get(split)
        if known is None or known.deployment.num_replicas != num:
            self._nearest[split] = self.search.tried(split.deployment(num), choice)
        return self._nearest[split]

    def _rule_out(self, split: PossibleSplit, why: str) -> None:
        self.excluded_splits.append(split.excluded(why))


def _met(results: Results, summary: Summary) -> str:
    """How many requests meet their objectives, with the percentiles of TTFT and TPOT."""
    if results.refused_all:
        return results.refused_all
    said = [f"only {100 * summary.share_met:.1f} % of the requests meet their objectives"]
    for name, times in (("TTFT", summary.ttft), ("TPOT", summary.tpot)):
        if times.p50_s == times.p50_s:  # not NaN: some request has such a time
            said.append(f"{name} p50 {1e3 * times.p50_s:.3g} ms, p99 {1e3 * times.p99_s:.3g} ms")
    return "; ".join((*said, f"{summary.num_refused} refused"))


def _first_of_splits(best: Trial, trials: Sequence[Trial]) -> list[Trial]:
    """The first one of each split but that of the plan."""
    found: dict[str, Trial] = {}
    for each in trials:
        model = each.deployment.model
        if model.split != best.deployment.model.split:
            found.setdefault(model.split, each)
    return list(found.values())
