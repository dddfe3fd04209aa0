"""The probes of a search: costs of every block of the model, under every sharding and recomputation asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from torch import fx

from trainyard.cost.collectives import collective_cost
from trainyard.cost.ops import OpSeconds
from trainyard.job.auto.build import build_sharding, has_experts, recomputed
from trainyard.job.auto.estimate import Stages, cut_stages
from trainyard.job.auto.probe import BlockCost, probe
from trainyard.job.auto.space import RECOMPUTES, Recompute, Sharding
from trainyard.job.footprint import node_bytes
from trainyard.job.lower.axes import shard_axes
from trainyard.job.plan import DATA, PlanError
from trainyard.job.task import Setting, Task
from trainyard.program import spmd
from trainyard.program.blocks import blocks
from trainyard.program.truncate import truncate

_KINDS: dict[Any, str] = {
    spmd.all_reduce: "all_reduce",
    spmd.all_gather: "all_gather",
    spmd.reduce_scatter: "reduce_scatter",
    spmd.all_to_all: "all_to_all",
}
Costs = dict[tuple[Sharding, Recompute], tuple[BlockCost, ...] | None]
"""Costs of all blocks of the whole model; None where it cannot be sharded or recomputed so."""

_T = TypeVar("_T")


class Probes:
    """Costs of blocks, probed on a model with two of its repeated blocks."""

    def __init__(self, setting: Setting, seconds: OpSeconds) -> None:
        self.setting, self.seconds = setting, seconds
        self.truncated = truncate(setting.task.model)
        self.task = Task(self.truncated.model, setting.task.dtype)
        self._known: Costs = {}
        self._collective_s: dict[tuple[str, int, int, int], float] = {}
        self._stages: dict[tuple[Sharding, Recompute, int], Stages | None] = {}
        program = self.task.program(setting.task.num_rows)
        self.has_experts = has_experts(program)
        paths = [b.path for b in blocks(program)]
        self.num_blocks = len(self._expanded(paths, paths))

    def groups(self, shardings: Iterable[Sharding]) -> list[list[Sharding]]:
        """Shardings of one captured program each; the largest first, so that nobody is left alone with it at the end."""
        found: dict[int, list[Sharding]] = {}
        for sharding in shardings:
            found.setdefault(sharding.rows * sharding.data, []).append(sharding)
        return sorted(found.values(), key=len, reverse=True)

    def probe(self, shardings: Iterable[Sharding]) -> None:
        """Learn the costs of all blocks under some shardings."""
        for sharding in shardings:
            self._known |= self._probe(sharding)

    def stages(self, sharding: Sharding, recompute: Recompute, num_stages: int) -> Stages | None:
        """The model cut into stages; None if it cannot be sharded so or has too few blocks."""
        key = (sharding, recompute, num_stages)
        if key not in self._stages:
            costs = self.blocks(sharding, recompute)
            fits = costs is not None and num_stages <= len(costs)
            self._stages[key] = cut_stages(costs, num_stages) if fits and costs is not None else None
        return self._stages[key]

    def blocks(self, sharding: Sharding, recompute: Recompute) -> tuple[BlockCost, ...] | None:
        """Costs of all blocks of the whole model; None if it cannot be sharded or recomputed so."""
        return self._known[sharding, recompute]

    def _probe(self, sharding: Sharding) -> Costs:
        found: Costs = {(sharding, kind): None for kind in RECOMPUTES}
        try:
            plan = build_sharding(Setting(self.task, self.setting.cluster), sharding)
            program = self.task.program(plan.rows_per_microbatch)
            local, _, _ = shard_axes(program, plan)
        except PlanError:
            return found
        for kind in RECOMPUTES:
            again = recomputed(program, kind)
            if again or kind == "none":
                costs = probe(local, again, lambda node: self._node_s(node, sharding))
                whole = self._expanded(costs, [c.path for c in costs])
                found[sharding, kind] = tuple(whole)
        return found

    def _node_s(self, node: fx.Node, sharding: Sharding) -> float:
        cluster = self.setting.cluster
        kind = _KINDS.get(node.target)
        if kind is None:
            return self.seconds(node, cluster.device(0))
        stride, size = (sharding.tensor, sharding.data) if node.args[1] == DATA else (1, sharding.tensor)
        whole = node if kind in ("all_reduce", "all_gather") else node.all_input_nodes[0]
        key = (kind, stride, size, node_bytes(whole))
        if key not in self._collective_s:
            ranks = tuple(range(0, stride * size, stride))
            self._collective_s[key] = collective_cost(cluster, kind, ranks, node_bytes(whole)).seconds
        return self._collective_s[key]

    def _expanded(self, items: Sequence[_T], paths: Sequence[str]) -> list[_T]:
        """The items of a truncated model's blocks for those of the whole: the second repeats."""
        found: list[_T] = []
        for item, path in zip(items, paths, strict=True):
            found.append(item)
            if path == f"{self.truncated.path}.{self.truncated.kept - 1}":
                for index in range(self.truncated.kept, self.truncated.count):
                    named = f"{self.truncated.path}.{index}"
                    again = replace(item, path=named) if isinstance(item, BlockCost) else named
                    found.append(again)  # type: ignore[arg-type]
        return found
