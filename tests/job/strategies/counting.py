"""Counts over lowered plans that several claim tests need."""

from __future__ import annotations

from collections import Counter
from functools import cache

from captured import task_of

from trainyard.hardware.parse import parse_cluster
from trainyard.job.catalog import parse_strategies
from trainyard.job.lower.lower import Lowered, lower
from trainyard.job.plan import Plan
from trainyard.job.planning import make_setting
from trainyard.job.setting import apply
from trainyard.program import spmd
from trainyard.program.model import Model
from trainyard.zoo import gpt


@cache
def small_gpt(layers: int, rows: int = 2, context: int = 64, hidden: int = 128, heads: int = 4) -> Model:
    """A GPT whose sizes are far enough apart to tell them in a count."""
    config = gpt.GPTConfig(vocab=512, context=context, layers=layers, hidden=hidden, heads=heads)
    return gpt.build(f"gpt-{layers}", config, rows)


def planned(model: Model, strategies: str, cluster: str, dtype: str = "float32") -> tuple[Plan, Lowered]:
    """The plan that strategies make, and what is run."""
    setting = make_setting(task_of(model, dtype), parse_cluster(cluster))
    plan = apply(parse_strategies(strategies) if strategies else (), setting)
    return plan, lower(setting.task.program(plan.rows_per_microbatch), plan)


def collectives(lowered: Lowered, axis: str, at_least: int = 0) -> Counter[tuple[str, str]]:
    """Collectives on one axis by name and kind of action, of results with at least that many elements."""
    return Counter(
        (node.target.__name__.removeprefix("start_"), kind)
        for stage in lowered.stages
        for kind, segment in stage.segments.items()
        for node in segment.graph.nodes
        if node.target in spmd.STARTS.values()
        and node.args[1] == axis
        and node.meta["val"].numel() >= at_least
    )
