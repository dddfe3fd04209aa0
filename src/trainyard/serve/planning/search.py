"""For each split of a model, the fewest replicas that meet the objectives, by simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from trainyard.serve.auto import PolicyChoice, Trial, better, tried
from trainyard.serve.compare import PolicyRun
from trainyard.serve.deployment import Deployment
from trainyard.serve.errors import DoesNotFitError
from trainyard.serve.planning.objectives import results_if_met
from trainyard.serve.policies.token_budget import TokenBudget
from trainyard.serve.requests.request import TracedRequest
from trainyard.serve.results import Results
from trainyard.serve.router import router_of
from trainyard.serve.simulate import simulate_requests
from trainyard.serve.splits import PossibleSplit
from trainyard.serve.summary import Summary

__all__ = ["DeploymentSearch", "order_of", "run_of"]

_FAR_APART_S = 1e4  # longer than any request takes alone
_MOST_ROUNDS = 4  # of changes of options, one after the other
_FAR_FROM_MET = 0.5  # below this share of what is wanted, changes of options are not tried


def order_of(trial: Trial) -> tuple[float, ...]:
    """The sort key of trials that meet the objectives: fewest devices, then most objectives met, then least time."""
    return (trial.deployment.num_devices, *better("slo attainment")(trial))


def run_of(trial: Trial, requests: Sequence[TracedRequest]) -> PolicyRun:
    """A trial with what became of every request."""
    place, policy = trial.deployment, trial.choice.policy
    results = simulate_requests(
        requests, place.instances(policy), place.model.step_time, router_of(trial.router)
    )
    summary = Summary.of(results, place.num_replicas)
    return PolicyRun(f"{place}, {trial.choice}", policy, results, summary)


class DeploymentSearch:
    """Simulates deployments with the same requests, none of them twice.

    Parameters
    ----------
    requests : with their objectives.
    choices : policies that a search starts from.
    share : target share of the requests that meet their objectives.
    router : name of the router.
    tell : is called with what is simulated next.
    """

    def __init__(
        self,
        requests: Sequence[TracedRequest],
        choices: Sequence[PolicyChoice],
        share: float,
        router: str,
        tell: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.requests, self.choices, self.share = requests, choices, share
        self._router, self._tell = router, tell
        self._trials: dict[
            tuple[str, int, str], Trial | None
        ] = {}  # of a split, so many replicas and a policy

    @property
    def num_trials(self) -> int:
        """How many deployments were simulated, with how many policies each."""
        return len(self._trials)

    def alone(self, split: PossibleSplit) -> Results:
        """What becomes of requests that are each served alone: no policy and no number of replicas does better."""
        self._tell(f"{split}, each request alone")
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

    def fewest(self, split: PossibleSplit, most: int) -> tuple[Trial, ...]:
        """All choices that meet the objectives with the fewest replicas of a split, best first.

        More replicas are assumed to be no worse than fewer. At most ``most`` are tried.
        """
        found: list[Trial] = []
        for choice in self.choices:
            if not found:
                trial = self._first_met(split, choice, most)
                found = [trial] if trial is not None else []
                continue
            num = found[0].deployment.num_replicas
            if (trial := self._fewer(split, choice, num - 1)) is not None:
                found = [trial]
            elif (trial := self.met(split.deployment(num), choice)) is not None:
                found.append(trial)
        return tuple(sorted(found, key=order_of))

    def met(self, place: Deployment, choice: PolicyChoice) -> Trial | None:
        """The trial, if it meets the objectives; None otherwise."""
        key = (place.model.split, place.num_replicas, str(choice))
        if key not in self._trials:
            self._trials[key] = self._if_met(place, choice)
        trial = self._trials[key]
        return trial if trial is not None and self.is_met(trial) else None

    def tried(self, place: Deployment, choice: PolicyChoice) -> Trial:
        """The trial, simulated to its end, whether it meets the objectives or not."""
        key = (place.model.split, place.num_replicas, str(choice))
        trial = self._trials.get(key)
        if trial is None:
            self._tell(f"{place}, {choice}")
            trial = self._trials[key] = tried(self.requests, place, choice, self._router)
        return trial

    def is_met(self, trial: Trial) -> bool:
        """Whether enough requests met their objectives."""
        return trial.summary is not None and trial.summary.share_met >= self.share - 1e-9

    def improved(self, trial: Trial) -> Trial:
        """Change one option of the policy at a time until the objectives are met or no change helps."""
        key = better("slo attainment")
        for _ in range(_MOST_ROUNDS):
            is_hopeless = trial.summary is None or trial.summary.share_met < _FAR_FROM_MET * self.share
            if is_hopeless or self.is_met(trial):
                break
            near = [self.tried(trial.deployment, each) for each in trial.choice.near()]
            best = min((trial, *near), key=key)
            if best is trial:
                break
            trial = best
        return trial

    def polished(self, trial: Trial) -> Trial:
        """The best of a trial that meets the objectives and the trials that differ from it in one option."""
        near = [self.met(trial.deployment, each) for each in trial.choice.near()]
        return min((trial, *(each for each in near if each is not None)), key=order_of)

    def _if_met(self, place: Deployment, choice: PolicyChoice) -> Trial | None:
        self._tell(f"{place}, {choice}")
        try:
            place = place.sized_for([choice.policy])
        except DoesNotFitError:  # its largest step leaves no memory
            return None
        router = router_of(self._router)
        results = results_if_met(self.requests, place, choice.policy, self.share, router)
        summary = Summary.of(results, place.num_replicas) if results else None
        return Trial(place, choice, self._router, summary) if results else None

    def _first_met(self, split: PossibleSplit, choice: PolicyChoice, most: int) -> Trial | None:
        """Doubles the number of replicas until the objectives are met, then bisects."""
        num, failed = 1, 0
        while (trial := self.met(split.deployment(num), choice)) is None:
            if num == most:
                return None
            num, failed = min(2 * num, most), num
        return self._between(split, choice, failed, trial)

    def _fewer(self, split: PossibleSplit, choice: PolicyChoice, most: int) -> Trial | None:
        if most < 1 or (trial := self.met(split.deployment(most), choice)) is None:
            return None
        return self._between(split, choice, 0, trial)

    def _between(self, split: PossibleSplit, choice: PolicyChoice, failed: int, trial: Trial) -> Trial:
        while trial.deployment.num_replicas - failed > 1:
            num = (trial.deployment.num_replicas + failed) // 2
            found = self.met(split.deployment(num), choice)
            trial, failed = (trial, num) if found is None else (found, failed)
        return trial
