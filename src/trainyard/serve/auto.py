"""Choose the policy, its options, the split, the replicas and the router for given requests, by simulation.

References
----------
Trainyard's own, of no paper. Agrawal et al., "Vidur: A Large-Scale Simulation Framework for LLM Inference", MLSys 2024,
choose a deployment by simulation, too.

1. Every split of the model that fits gets as many replicas as there are devices for.
2. Every policy that the search starts from (by default the whole catalog) serves the requests on each of these
   deployments.
3. A local search improves the best ones: it changes one option of the policy, or the router, and keeps the best change
   as long as there is a better one.

So the result is never worse than a policy of step 2 on the same requests. The choice is made before serving, from the
trace. The chosen policy does not see how long outputs will be.

Fidelity: own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from trainyard.serve.deployment import Deployment
from trainyard.serve.errors import ServeError
from trainyard.serve.policy import BatchPolicy
from trainyard.serve.requests.request import TracedRequest
from trainyard.serve.router import ROUTERS, router_of
from trainyard.serve.simulate_requests import simulate_requests
from trainyard.serve.splits import ExcludedSplit, MakeSplit, no_split_error, possible_splits
from trainyard.serve.summary import Summary

__all__ = ["AutoChoice", "Measure", "PolicyChoice", "Trial", "auto", "better", "tried"]

Measure = Literal["mean e2e", "slo attainment"]
"""Objectives of the search: the mean end-to-end time, or the share of requests that meet their objectives."""

_FIRST_ROUTER = ROUTERS[0].name
_NUM_IMPROVED = 2  # of the best trials of step 2, on different splits


class PolicyChoice(Protocol):
    """A policy that a search may choose; as text it is what a user would type."""

    @property
    def policy(self) -> BatchPolicy:
        """The policy."""
        ...

    def near(self) -> Iterable[PolicyChoice]:
        """The policies that differ in one option."""
        ...


@dataclass(frozen=True)
class Trial:
    """One simulation of a search.

    Attributes
    ----------
    deployment : that served the requests.
    choice : the policy.
    router : its name.
    summary : of the run; None if the policy could not serve.
    why : why the policy could not serve; "" if it could.
    """

    deployment: Deployment
    choice: PolicyChoice
    router: str
    summary: Summary | None
    why: str = ""

    @property
    def policy(self) -> str:
        """The policy as text."""
        return str(self.choice)

    def __str__(self) -> str:
        return f"{self.deployment}, {self.policy}, {self.router}"


@dataclass(frozen=True)
class AutoChoice:
    """Result of `auto`.

    Attributes
    ----------
    best : the best trial.
    start : the best trial among the policies that the search started from.
    trials : all, in the order in which they ran.
    excluded_splits : splits of the model that are not possible, and why.
    """

    best: Trial
    start: Trial
    trials: tuple[Trial, ...]
    excluded_splits: tuple[ExcludedSplit, ...]


def auto(
    requests: Sequence[TracedRequest],
    split: MakeSplit,
    num_devices: int,
    choices: Sequence[PolicyChoice],
    measure: Measure = "mean e2e",
    *,
    node_size: int | None = None,
    tell: Callable[[str], None] | None = None,
) -> AutoChoice:
    """Choose how a model serves these requests on these devices.

    Parameters
    ----------
    requests : in the order of their arrival.
    split : makes the model of a split.
    num_devices : that may be used.
    choices : policies that the search starts from.
    measure : what the search optimizes.
    node_size : devices of a node, within which shards stay; by default all are one node.
    tell : is called with what is simulated next.

    Raises
    ------
    ServeError
        If the model cannot be split so that it fits, or no policy can serve.
    """
    splits, excluded = possible_splits(split, num_devices, node_size or num_devices)
    if not splits:
        raise no_split_error(excluded)
    search = _Search(requests, measure, tell or (lambda what: None))
    for each in splits:
        for choice in choices:
            search.simulate(each.deployment(each.max_replicas), choice, _FIRST_ROUTER)
    start = search.best()
    if start.summary is None:
        raise ServeError(f"no policy can serve: {start}: {start.why}")
    for place in _on_different_splits(search.ranked())[:_NUM_IMPROVED]:
        search.improve(place)
    return AutoChoice(search.best(), start, tuple(search.trials), excluded)


def tried(
    requests: Sequence[TracedRequest],
    deployment: Deployment,
    choice: PolicyChoice,
    router: str = _FIRST_ROUTER,
) -> Trial:
    """Simulate the requests once on a deployment."""
    try:
        deployment = deployment.sized_for([choice.policy])
        results = simulate_requests(
            requests, deployment.instances(choice.policy), deployment.model.step_time, router_of(router)
        )
    except ServeError as error:
        return Trial(deployment, choice, router, None, str(error))
    return Trial(deployment, choice, router, Summary.of(results, deployment.num_replicas))


def better(measure: Measure) -> Callable[[Trial], tuple[float, ...]]:
    """The sort key of trials, best first. A trial that serves fewer requests comes after one that serves more."""

    def key(trial: Trial) -> tuple[float, ...]:
        summary = trial.summary
        if summary is None or not summary.num_served:
            return (float("inf"),) * 3
        e2e_s = summary.e2e.mean_s
        if measure == "slo attainment":
            return (-summary.share_met, -summary.num_served, e2e_s)
        return (-summary.num_served, e2e_s, -summary.share_met)

    return key


class _Search:
    """Trials, none of which is made twice."""

    def __init__(
        self, requests: Sequence[TracedRequest], measure: Measure, tell: Callable[[str], None]
    ) -> None:
        self._requests, self._key, self._tell = requests, better(measure), tell
        self._known: dict[tuple[str, str, str], Trial] = {}

    @property
    def trials(self) -> list[Trial]:
        return list(self._known.values())

    def ranked(self) -> list[Trial]:
        """Best first; of equal ones, the first that was tried."""
        return sorted(self._known.values(), key=self._key)

    def best(self) -> Trial:
        return self.ranked()[0]

    def simulate(self, deployment: Deployment, choice: PolicyChoice, router: str) -> Trial:
        name = (deployment.model.split, str(choice), router)
        if name not in self._known:
            self._tell(f"{deployment}, {choice}, {router}")
            self._known[name] = tried(self._requests, deployment, choice, router)
        return self._known[name]

    def improve(self, trial: Trial) -> None:
        """Step 3."""
        while True:
            near = [self.simulate(trial.deployment, *each) for each in _near(trial)]
            found = min(near, key=self._key)
            if self._key(found) >= self._key(trial):
                return
            trial = found


def _near(trial: Trial) -> Iterator[tuple[PolicyChoice, str]]:
    for choice in trial.choice.near():
        yield choice, trial.router
    for entry in ROUTERS:
        yield trial.choice, entry.name


def _on_different_splits(trials: Iterable[Trial]) -> list[Trial]:
    """The first one of each split."""
    found: dict[str, Trial] = {}
    for each in trials:
        if each.summary is not None:
            found.setdefault(each.deployment.model.split, each)
    return list(found.values())
