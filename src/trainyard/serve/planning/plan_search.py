"""The steps of a search for a plan; see `trainyard.serve.planning.plan`."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.serve.auto import PolicyChoice, Trial
from trainyard.serve.errors import ServeError
from trainyard.serve.planning.fewest import fewest_in_pools, fewest_replicas, first_that_meets
from trainyard.serve.planning.reasons import alone_text, cache_text
from trainyard.serve.planning.search import DeploymentSearch, best_of, order_of
from trainyard.serve.splits import ExcludedSplit, PossibleSplit
from trainyard.serve.summary import Summary

__all__ = ["PlanSearch"]

_MOST_COMPARED = 2  # times the devices of the plan so far; splits that need more are no runners-up


class PlanSearch:
    """One search, and what it has found of each split."""

    def __init__(
        self,
        search: DeploymentSearch,
        splits: Sequence[PossibleSplit],
        excluded: Sequence[ExcludedSplit],
        with_pools: bool,
    ) -> None:
        self.search, self.splits, self.excluded_splits = search, splits, list(excluded)
        self._with_pools = with_pools
        self._found: dict[PossibleSplit, tuple[Trial, ...]] = {}
        self._in_pools: dict[PossibleSplit, tuple[Trial, ...]] = {}
        self._nearest: dict[PossibleSplit, tuple[int, Trial | None]] = {}
        self._possible = list[PossibleSplit]()

    def met(self) -> tuple[Trial, tuple[Trial, ...]] | None:
        """The best plan and the runners-up; None if none meets the objectives."""
        for split in self.splits:
            self._scout(split)
        for split in self.splits:
            self._look_at(split)
        if self._with_pools:
            self._look_at_pools()
        for split in self.splits:
            self._compare(split)
        if self._fewest_devices is None:
            return None
        while self._saves_devices():
            pass
        first, *others = self._ranked
        best = self.search.polished(first)
        return best, tuple(others)

    def closest_of_all(self) -> Trial:
        """With all devices, under which most requests meet their objectives."""
        search, first = self.search, self.search.choices[0]
        best = search.best((split.deployment(split.max_replicas), first) for split in self.splits)
        if best is not None:
            best = search.best(((best.deployment, choice) for choice in search.choices[1:]), best)
        if best is None:
            failed = search.tried(self.splits[0].deployment(self.splits[0].max_replicas), first)
            raise ServeError(f"no policy can serve: {failed}: {failed.why}")
        return search.improved(best)

    def closest_below(self, best: Trial) -> Trial | None:
        """The best deployment with fewer devices than the plan, with as many replicas as fit; None if there is none."""
        num, smaller = best.deployment.num_devices, self._smaller(best.deployment.num_devices)
        nearest = [self._nearest_below(split, num) for split in smaller]
        if any(nearest):
            return best_of(trial for trial in nearest if trial is not None)
        places = [split.deployment(self._num_replicas(split, num - 1)) for split in smaller]
        return self.search.best((place, best.choice) for place in places)

    @property
    def _ranked(self) -> list[Trial]:
        """All deployments found that meet the objectives, best first."""
        trials = [
            each for some in (self._found, self._in_pools) for trials in some.values() for each in trials
        ]
        return sorted(trials, key=order_of)

    @property
    def _fewest_devices(self) -> int | None:
        return self._ranked[0].deployment.num_devices if self._ranked else None

    def _scout(self, split: PossibleSplit) -> None:
        """Step 1: the fewest replicas with one policy, the first that met the objectives on any split.

        What it finds bounds the replicas that are of use, before other policies are simulated.
        """
        fewest = self._fewest_devices
        most = self._num_replicas(split, fewest)
        likely = self._likely_choices if fewest is None else self._likely_choices[:1]
        trial = first_that_meets(self.search, split, likely, 0, most)
        if trial is not None:
            self._found[split] = (trial,)

    def _look_at(self, split: PossibleSplit) -> None:
        """Step 2: the fewest replicas with any policy, where these may be as few devices as the best so far."""
        most = self._num_replicas(split, self._fewest_devices)
        found = fewest_replicas(self.search, split, most) if most else ()
        if found:
            self._found[split] = found

    def _look_at_pools(self) -> None:
        """Step 3: prompts on some replicas, decodes on others, where these may be as few devices as the best so far."""
        for split in self.splits:
            if split.model.data_parallel > 1:  # its ranks do not hand requests over
                continue
            most = self._num_replicas(split, self._fewest_devices)
            tied = [each for each in self._ranked if each.deployment.num_devices == self._fewest_devices]
            found = fewest_in_pools(self.search, split, self._likely_choices, most, tied)
            if found:
                self._in_pools[split] = found

    def _compare(self, split: PossibleSplit) -> None:
        """Step 4: a split that takes more devices is a runner-up with the first policy that meets the objectives."""
        fewest, size = self._fewest_devices, split.model.num_devices
        tied = self._num_replicas(split, fewest)
        most = tied if fewest is None else self._num_replicas(split, _MOST_COMPARED * fewest)
        found = self._found.get(split)
        if found is not None and found[0].deployment.num_replicas <= most:
            self._possible.append(split)
            return
        self._found.pop(split, None)
        if most < 1:
            self._rule_out(
                split, f"a replica takes {size} devices, more than {_MOST_COMPARED} times those of the plan"
            )
            return
        trial = first_that_meets(self.search, split, self._likely_choices, tied, most)
        if trial is not None:
            self._found[split] = (trial,)
            self._possible.append(split)
        elif split in self._in_pools:
            self._possible.append(split)
        elif why := self._why_impossible(split):
            self._rule_out(split, why)
        else:
            self._rule_out(split, self._why_unmet(split, most))
            self._possible.append(split)

    def _num_replicas(self, split: PossibleSplit, num_devices: int | None) -> int:
        """Replicas for which there is room on so many devices, or on all."""
        num = split.max_replicas
        return num if num_devices is None else min(num, num_devices // split.model.num_devices)

    def _why_impossible(self, split: PossibleSplit) -> str:
        """Why no number of replicas meets the objectives, or "" if some may."""
        alone = self.search.alone(split)
        summary = Summary.of(alone, 1)
        if summary.share_met < self.search.share - 1e-9:
            return f"even if each request is served alone, {alone_text(alone, summary)}"
        return ""

    def _why_unmet(self, split: PossibleSplit, most: int) -> str:
        """Why no policy meets the objectives on so many replicas."""
        if why := cache_text(self.search, split):
            return why
        num = most * split.model.num_devices
        return f"fewer than {100 * self.search.share:.1f} % meet their objectives on {num} device{'s' * (num > 1)}"

    @property
    def _likely_choices(self) -> list[PolicyChoice]:
        """The policies, that of the best deployment so far first."""
        choices, ranked = list(self.search.choices), self._ranked
        if ranked:
            choices.sort(key=lambda each: each != ranked[0].choice)
        return choices

    def _saves_devices(self) -> bool:
        """Step 5: whether changes of options meet the objectives on fewer devices than all else."""
        fewest = self._fewest_devices
        assert fewest is not None
        for split in self._smaller(fewest):
            trial = self._nearest_below(split, fewest)
            if trial is not None and self.search.is_met(found := self.search.improved(trial)):
                self._found[split] = (found,)
                return True
        return False

    def _nearest_below(self, split: PossibleSplit, num_devices: int) -> Trial | None:
        """The best policy of those that met the objectives anywhere, on fewer devices; None if it is far from them."""
        num = self._num_replicas(split, num_devices - 1)
        if self._nearest.get(split, (0, None))[0] != num:
            trials = (*self._found.get(split, ()), *self._ranked)
            choices = {str(each.choice): each.choice for each in trials}
            places = ((split.deployment(num), choice) for choice in choices.values())
            self._nearest[split] = num, self.search.best(places, at_least=self.search.share_far_from_met)
        return self._nearest[split][1]

    def _smaller(self, num_devices: int) -> list[PossibleSplit]:
        """The splits of which a replica takes fewer devices."""
        return [each for each in self._possible if each.model.num_devices < num_devices]

    def _rule_out(self, split: PossibleSplit, why: str) -> None:
        self.excluded_splits.append(split.excluded(why))
