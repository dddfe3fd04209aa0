"""Every catalog entry and variant on every kind of model: what the conformance tests run over."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from trainyard.hardware.parse import parse_cluster
from trainyard.job.catalog import CATALOG, Entry, parse_strategies
from trainyard.job.plan import Plan
from trainyard.job.planning import make_setting
from trainyard.job.setting import Setting, apply
from trainyard.job.task import Task
from trainyard.zoo.registry import build

ROWS = 8

# What each model has of what entries need.
MODELS: dict[str, frozenset[str]] = {
    "gpt-tiny": frozenset({"repeated blocks", "transformer blocks", "attention"}),
    "llama-tiny": frozenset({"repeated blocks", "transformer blocks", "attention"}),
    "moe-tiny": frozenset({"repeated blocks", "transformer blocks", "attention", "experts"}),
    "resnet-tiny": frozenset({"repeated blocks"}),
    "vgg-tiny": frozenset(),
    "dlrm-tiny": frozenset(),
}
_PROVIDED = frozenset({"several devices", "tensor axis"})


@dataclass(frozen=True)
class Case:
    """One entry with the options of one variant on one model."""

    entry: Entry
    variant: str
    model: str

    @property
    def strategies(self) -> str:
        """Text form, after what the entry needs before it."""
        options = self.entry.variants.get(self.variant, {})
        own = f"{self.entry.name}({', '.join(f'{k}={v!r}' for k, v in options.items())})"
        return f"{self.entry.after} + {own}" if self.entry.after else own

    @property
    def cluster(self) -> str:
        """Two devices, or as many as the variant asks for."""
        asked = self.entry.variants.get(self.variant, {})
        sizes = [asked.get(axis, 1) for axis in ("tensor", "pipeline", "data")]
        return f"1x{max(2, math.prod(sizes))}xA100-80G"

    @property
    def is_feasible(self) -> bool:
        """Whether the model has all that the entry needs."""
        return set(self.entry.needs) <= MODELS[self.model] | _PROVIDED

    @property
    def is_slow(self) -> bool:
        """Whether it takes seconds: a search tries many plans."""
        return self.entry.family == "search" and self.model not in ("vgg-tiny", "dlrm-tiny")

    def __str__(self) -> str:
        return f"{self.entry.name}-{self.variant or 'default'}-{self.model}".replace(" ", "_")


CASES = [
    Case(entry, variant, model) for entry in CATALOG for variant in ("", *entry.variants) for model in MODELS
]


def params(cases: Iterable[Case]) -> list[Any]:
    """Cases as parameters of a test, those that take seconds among the slow ones."""
    return [pytest.param(c, id=str(c), marks=[pytest.mark.slow] if c.is_slow else []) for c in cases]


@cache
def task(model: str, rows: int = ROWS) -> Task:
    """A task, whose programs are captured once."""
    return Task(build(model, rows))


def plan_of(strategies: str, model: str, cluster: str) -> tuple[Setting, Plan]:
    """The plan that strategies make, and the setting it was made in."""
    setting = make_setting(task(model), parse_cluster(cluster))
    return setting, apply(parse_strategies(strategies), setting)
