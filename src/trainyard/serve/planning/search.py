"""Simulate deployments with the same requests, none of them twice, and none longer than its result matters.

A simulation stops once a deployment cannot reach the share of requests that a search asks for: the target, or the share
of the best deployment so far where only a better one matters. So what a search chooses is what it would choose if every
simulation went on to its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from trainyard.serve.auto import PolicyChoice, Trial, better, tried
from trainyard.serve.compare import PolicyRun
from trainyard.serve.deployment import Deployment
from trainyard.serve.errors import DoesNotFitError
from trainyard.serve.planning.objectives import Shortfall, results_if_met
from trainyard.serve.policies.token_budget import TokenBudget
from trainyard.serve.requests.request import TracedRequest
from trainyard.serve.results import Results
from trainyard.serve.router import PrefillDecode, router_of
from trainyard.serve.simulate import simulate_requests
from trainyard.serve.splits import PossibleSplit
from trainyard.serve.summary import Summary

__all__ = [
    "DeploymentSearch",
    "answer_tokens",
    "best_of",
    "is_enough",
    "kind_of",
    "num_cut",
    "order_of",
    "pools_of",
    "pools_text",
]

_FAR_APART_S = 1e4  # longer than any request takes alone
_MOST_ROUNDS = 4  # of changes of options, one after the other
_FAR_FROM_MET = 0.5  # below this share of what is wanted, changes of options are not tried
_ROUNDING = 1e-9


def order_of(trial: Trial) -> tuple[float, ...]:
    """The sort key of trials that meet the objectives: fewest devices, then most objectives met, then least time."""
    return (trial.deployment.num_devices, *better("slo attainment")(trial))


def best_of(trials: Iterable[Trial]) -> Trial | None:
    """Return the trial under which most requests meet their objectives, the first of equal ones; None without any."""
    return min(trials, key=better("slo attainment"), default=None)


def pools_of(trial: Trial) -> tuple[int, int] | None:
    """Return the replicas for prompts and those for decodes; None where every replica computes both."""
    router = router_of(trial.router)
    if not isinstance(router, PrefillDecode):
        return None
    num = router.prefill_replicas
    return num, trial.deployment.num_replicas - num


def kind_of(trial: Trial) -> tuple[str, bool]:
    """Return the split of a trial, and whether it has replicas for prompts and others for decodes."""
    return trial.deployment.model.split, pools_of(trial) is not None


def pools_text(pools: tuple[int, int]) -> str:
    """Return the replicas for prompts and those for decodes as text."""
    return f"{pools[0]} prefill + {pools[1]} decode"


def is_enough(trial: Trial, share: float) -> bool:
    """Whether at least this share of the requests met their objectives."""
    return trial.summary is not None and trial.summary.share_met >= share - _ROUNDING


def answer_tokens(traced: TracedRequest) -> int:
    """Return the output tokens of a request's longest sample, as far as its client takes them."""
    return min(traced.max_output_tokens, traced.request.max_tokens)


def num_cut(requests: Iterable[TracedRequest], room: int, longest: int) -> int:
    """Count the requests that are longer, with their answers, than a sequence may be.

    Parameters
    ----------
    room : the longest sequence, in tokens.
    longest : what is longer is cut anyway.
    """
    return sum(min(each.request.prompt_tokens + answer_tokens(each), longest) > room for each in requests)


class _Missed(NamedTuple):
    """A deployment under which fewer requests than this share meet their objectives, and why."""

    share: float
    shortfall: Shortfall


class DeploymentSearch:
    """Simulates deployments with the same requests.

    Parameters
    ----------
    requests : with their objectives.
    choices : policies that a search starts from.
    share : target share of the requests that meet their objectives.
    router : name of the router, where no other is given.
    longest : the longest sequence that is served, in tokens, if there is room for it.
    tell : is called with what is simulated next.
    """

    def __init__(
        self,
        requests: Sequence[TracedRequest],
        choices: Sequence[PolicyChoice],
        share: float,
        router: str,
        longest: int,
        tell: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.requests, self.choices, self.share, self.router = requests, choices, share, router
        self.longest, self._tell = longest, tell
        self._known: dict[tuple[str, int, str, str], Trial | _Missed] = {}
        self._num_simulated = 0
        self._fewest: Trial | None = None
        self._best_of_kinds: dict[tuple[str, bool], tuple[Trial, Results]] = {}

    @property
    def num_trials(self) -> int:
        """Deployments that were simulated, each with a policy and a router."""
        return len(self._known)

    def alone(self, split: PossibleSplit) -> Results:
        """What becomes of requests that are each served alone: no policy and no number of replicas does better."""
        self._say(f"{split}, each request alone")
        apart, num = [], 0
        for each in self.requests:
            if not each.request.parent:
                each = each._replace(request=replace(each.request, arrival_s=num * _FAR_APART_S))
                num += 1
            apart.append(each)
        whole_prompts = TokenBudget(split.max_model_len, 1)
        # One that is alone is in one stage at a time, on one rank; so decodes are simulated many at once.
        place = replace(split.deployment(1), model=replace(split.model, pipeline_stages=1, data_parallel=1))
        return simulate_requests(apart, place.instances(whole_prompts), place.model.step_time)

    def met(
        self, place: Deployment, choice: PolicyChoice, router: str = "", at_least: float = 0.0
    ) -> Trial | None:
        """Return the trial if it meets the objectives of the target share; None otherwise.

        Parameters
        ----------
        at_least : share of the requests below which a trial is of no use, though it meets the objectives.
        """
        found = self.judged(place, choice, router, max(self.share, at_least))
        return found if isinstance(found, Trial) else None

    def judged(
        self,
        place: Deployment,
        choice: PolicyChoice,
        router: str = "",
        share: float | None = None,
        *,
        names_cause: bool = False,
    ) -> Trial | Shortfall:
        """Return the trial if enough requests meet their objectives, or why too few do.

        Parameters
        ----------
        share : that is enough; by default the target.
        names_cause : as of `results_if_met`.
        """
        router, share = router or self.router, self.share if share is None else share
        key = (place.model.split, place.num_replicas, str(choice), router)
        known = self._known.get(key)
        if known is None or (isinstance(known, _Missed) and known.share > share):
            known = self._known[key] = self._simulated(place, choice, router, share, names_cause)
        if isinstance(known, _Missed):
            return known.shortfall
        return known if is_enough(known, share) else Shortfall.REQUESTS

    def tried(self, place: Deployment, choice: PolicyChoice) -> Trial:
        """Return the trial, simulated to its end, whether it meets the objectives or not."""
        key = (place.model.split, place.num_replicas, str(choice), self.router)
        trial = self._known.get(key)
        if not isinstance(trial, Trial):
            self._say(f"{place}, {choice}")
            trial = self._known[key] = tried(self.requests, place, choice, self.router)
        return trial

    @property
    def share_far_from_met(self) -> float:
        """Share of requests below which changes of options are not tried."""
        return _FAR_FROM_MET * self.share

    def cuts_too_many(self, place: Deployment, share: float) -> bool:
        """Whether the KV cache cuts more requests short than may miss their objectives."""
        most = len(self.requests) - math.ceil(share * len(self.requests) - _ROUNDING)
        return num_cut(self.requests, place.max_model_len, self.longest) > most

    def run(self, trial: Trial) -> PolicyRun:
        """Return a trial with what became of every request."""
        place, policy = trial.deployment, trial.choice.policy
        kept, results = self._best_of_kinds.get(kind_of(trial), (None, None))
        if kept is not trial or results is None:
            results = simulate_requests(
                self.requests, place.instances(policy), place.model.step_time, router_of(trial.router)
            )
        pools = pools_of(trial)
        split_up = f" ({pools_text(pools)})" if pools is not None else ""
        summary = Summary.of(results, place.num_replicas)
        return PolicyRun(f"{place}{split_up}, {trial.choice}", policy, results, summary)

    def is_met(self, trial: Trial) -> bool:
        """Whether enough requests met their objectives."""
        return is_enough(trial, self.share)

    def best(
        self,
        others: Iterable[tuple[Deployment, PolicyChoice]],
        best: Trial | None = None,
        at_least: float = 0.0,
    ) -> Trial | None:
        """Return the best of a trial and others; a simulation stops once it can be no better than the best so far.

        Parameters
        ----------
        others : deployments and policies; their router is that of the trial.
        best : the trial; by default there is none.
        at_least : share of the requests that have to meet their objectives for one of the others to count.
        """
        for place, choice in others:
            reached = 0.0 if best is None or best.summary is None else best.summary.share_met
            router = self.router if best is None else best.router
            found = self.judged(place, choice, router, max(reached, at_least))
            if isinstance(found, Trial):
                best = best_of((found,) if best is None else (best, found))
        return best

    def improved(self, trial: Trial) -> Trial:
        """Change one option of the policy at a time until the objectives are met or no change helps."""
        for _ in range(_MOST_ROUNDS):
            if not is_enough(trial, self.share_far_from_met) or self.is_met(trial):
                break
            better_one = self.best(((trial.deployment, each) for each in trial.choice.near()), trial)
            if better_one is trial or better_one is None:
                break
            trial = better_one
        return trial

    def polished(self, trial: Trial) -> Trial:
        """The best of a trial that meets the objectives and the trials that differ from it in one option."""
        return self.best(((trial.deployment, each) for each in trial.choice.near()), trial) or trial

    def _simulated(
        self, place: Deployment, choice: PolicyChoice, router: str, share: float, names_cause: bool
    ) -> Trial | _Missed:
        pools = f", {router}" if router != self.router else ""
        self._say(f"{place}, {choice}{pools}")
        try:
            place = place.sized_for([choice.policy])
        except DoesNotFitError:  # its largest step leaves no memory
            return _Missed(0.0, Shortfall.POLICY)
        if self.cuts_too_many(place, share):
            return _Missed(share, Shortfall.POLICY)
        results = results_if_met(
            self.requests, place, choice.policy, share, router_of(router), names_cause=names_cause
        )
        if isinstance(results, Shortfall):
            return _Missed(0.0 if results is Shortfall.POLICY else share, results)
        trial = Trial(place, choice, router, Summary.of(results, place.num_replicas))
        if self.is_met(trial):
            self._keep(trial, results)
        return trial

    def _keep(self, trial: Trial, results: Results) -> None:
        """Remember the best trial, and what became of every request under the best of its kind."""
        if self._fewest is None or order_of(trial) < order_of(self._fewest):
            self._fewest = trial
        kept = self._best_of_kinds.get(kind_of(trial))
        if kept is None or order_of(trial) < order_of(kept[0]):
            self._best_of_kinds[kind_of(trial)] = trial, results

    def _say(self, what: str) -> None:
        """Tell what is simulated next, how many simulations there were, and the best deployment so far."""
        best = self._fewest
        if best is None:
            reached = "none meets the objectives so far"
        else:
            reached = f"best so far: {best.deployment.num_devices} devices, {best}"
        self._tell(f"{self._num_simulated:,} done; {what}; {reached}")
        self._num_simulated += 1
