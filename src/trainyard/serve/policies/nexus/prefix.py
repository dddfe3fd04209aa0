"""Prefix batching: models that differ in their last layers only are one session, whose first layers are batched over all.

Section 6.3. Transfer learning makes a model a special one by training its last layers anew. The first ones, the prefix,
are the same in all models made so, and are computed at once for the requests of all of them; the last ones, the suffixes,
are computed one model after the other. Memory holds the prefix once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainyard.serve.errors import ServeError
from trainyard.serve.policies.nexus.packing import Session
from trainyard.serve.policies.nexus.profile import BatchingProfile

__all__ = ["SharedPrefix", "Suffix"]


@dataclass(frozen=True)
class Suffix:
    """The last layers of a model that shares its first ones with others.

    Attributes
    ----------
    model : its name.
    profile : of the last layers alone.
    objective_s : longest latency of a request for the model.
    rate_per_s : requests for the model.
    weight_bytes : of the last layers.
    """

    model: str
    profile: BatchingProfile
    objective_s: float
    rate_per_s: float
    weight_bytes: float = 0.0


@dataclass(frozen=True)
class SharedPrefix:
    """Models that share their first layers, to be packed as one session.

    Attributes
    ----------
    name : of the session.
    profile : of the first layers alone.
    suffixes : of all models.
    weight_bytes : of the first layers.

    Raises
    ------
    ServeError
        If there is no suffix, two have one model, or one has no requests.
    """

    name: str
    profile: BatchingProfile
    suffixes: tuple[Suffix, ...]
    weight_bytes: float = 0.0

    def __post_init__(self) -> None:
        models = [suffix.model for suffix in self.suffixes]
        if not models or len(set(models)) < len(models):
            raise ServeError(
                f"prefix {self.name!r} of models {models}: give one model or more, with different names"
            )
        for suffix in self.suffixes:
            if not 0 < suffix.rate_per_s < math.inf:
                raise ServeError(
                    f"model {suffix.model!r} of prefix {self.name!r}: rate_per_s is {suffix.rate_per_s}; allowed is "
                    "above 0"
                )

    @property
    def session(self) -> Session:
        """All models as one session, for `pack`: its rate is that of all, its objective the shortest of all."""
        return Session(
            self.name,
            self.combined_profile,
            min(suffix.objective_s for suffix in self.suffixes),
            sum(suffix.rate_per_s for suffix in self.suffixes),
            self.weight_bytes + sum(suffix.weight_bytes for suffix in self.suffixes),
        )

    @property
    def combined_profile(self) -> BatchingProfile:
        """Latency of a batch over all models: the prefix of the whole batch, then the suffix of each model's part."""
        batches = self.profile.batches
        latency_s = tuple(self.profile.latency(size) + self._suffixes_s(size) for size in batches)
        outside_s = self.profile.outside_s + sum(each.profile.outside_s for each in self.suffixes)
        return BatchingProfile(batches, latency_s, outside_s)

    def parts(self, batch: int) -> dict[str, int]:
        """Requests of each model in a batch, as their rates are; parts of a request are rounded up."""
        rate = sum(suffix.rate_per_s for suffix in self.suffixes)
        return {suffix.model: math.ceil(batch * suffix.rate_per_s / rate - 1e-9) for suffix in self.suffixes}

    def _suffixes_s(self, batch: int) -> float:
        """Seconds of the suffixes of a batch: it has requests of as many models as it has requests, at most."""
        parts = self.parts(batch)
        each_s = sorted(
            (suffix.profile.latency(parts[suffix.model]) for suffix in self.suffixes), reverse=True
        )
        return sum(each_s[:batch])
