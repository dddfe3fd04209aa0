"""Estimates of all points of the space: what is probed for them, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from trainyard.job.auto.estimate import Balance, Estimate, estimate
from trainyard.job.auto.forked import can_differentiate, map_forked
from trainyard.job.auto.probes import Probes
from trainyard.job.auto.space import (
    RECOMPUTES,
    SCHEDULES,
    Point,
    Recompute,
    Sharding,
    degrees,
    microbatch_rows,
)
from trainyard.job.schedule import MOST_ACTIONS
from trainyard.job.setting import Setting

_MAX_TENSOR = 16


@dataclass(frozen=True)
class Estimates:
    """Estimates of the points of the space.

    Attributes
    ----------
    points : all that were estimated.
    left_out : what the space does not have and why, a sentence each.
    """

    points: tuple[Estimate, ...]
    left_out: tuple[str, ...]


def estimate_all(setting: Setting, probes: Probes, capacity: int) -> Estimates:
    """Probe what is needed, and estimate every point.

    Parameters
    ----------
    capacity : bytes that a plan may use on a device, by the estimate.
    """
    return _Points(setting, probes, capacity).run()


def least_estimate(setting: Setting, probes: Probes) -> Estimate | None:
    """Estimate the plan with the least memory from what was probed already; None if nothing is known of any.

    Parameters
    ----------
    probes : of another setting, whose cluster may have fewer nodes.
    """
    space = _Points(setting, probes, 0)
    return min(space.leanest(), key=lambda e: e.memory_bytes, default=None)


class _Points:
    def __init__(self, setting: Setting, probes: Probes, capacity: int) -> None:
        self.setting, self.probes, self.capacity = setting, probes, capacity
        self.coupling = None if probes.short.task.splits else probes.short.task.coupling
        self.meshes: dict[Sharding, list[tuple[int, int]]] = {}
        self.meshes_of_kind: dict[Sharding, set[tuple[int, int]]] = {}
        for pipeline, data, sharding in self._grid():
            self.meshes.setdefault(sharding, []).append((pipeline, data))
            self.meshes_of_kind.setdefault(_kind(sharding), set()).add((pipeline, data))

    def run(self) -> Estimates:
        self._probe()
        failed = {s: why for s in self.meshes if (why := self.probes.failure(s))}
        able = [s for s in self.meshes if s not in failed]
        fitting = [s for s in able if self._can_fit(s)]
        # Where nothing fits, the estimates say what is short.
        kept = set(fitting or able)
        found: list[Estimate] = []
        self.setting.progress("estimating plans", "")
        for pipeline, data, sharding in self._grid():
            if sharding in kept:
                found += self._estimates(pipeline, data, sharding)
        return Estimates(tuple(found), tuple(self._left_out(failed, len(able) - len(kept))))

    def leanest(self) -> Iterator[Estimate]:
        """Estimate every mesh as it needs least memory, with each recomputation and balance."""
        for pipeline, data, sharding in self._grid():
            for recompute in RECOMPUTES:
                for balance in get_args(Balance):
                    leanest = self._leanest_point(pipeline, data, sharding, recompute, balance)
                    if leanest is not None:
                        yield leanest

    def _leanest_point(
        self, pipeline: int, data: int, sharding: Sharding, recompute: Recompute, balance: Balance = "time"
    ) -> Estimate | None:
        """Estimate a mesh as it needs least memory: one microbatch in flight on a rank, all divided that can be."""
        stages = self.probes.stages(sharding, recompute, pipeline, balance)
        if stages is None:
            return None
        count = max(1, self.setting.task.num_rows // (data * sharding.rows))
        point = Point(sharding, pipeline, data, count, "one_f_one_b", 1, recompute, self._most_zero(data))
        return estimate(point, stages, self.setting.cluster, self.setting.task)

    def _most_zero(self, data: int) -> int:
        """The highest stage of ZeRO that divides what the optimizer's update allows to be divided."""
        return 3 if data > 1 and self.setting.task.optimizer.divides else 0

    def _grid(self) -> Iterator[tuple[int, int, Sharding]]:
        cluster, task = self.setting.cluster, self.setting.task
        most = min(_MAX_TENSOR, cluster.num_devices // cluster.num_nodes)
        for pipeline, data, tensor in degrees(cluster.num_devices, most, self.probes.num_blocks):
            if not self._is_allowed(pipeline, tensor):
                continue
            for rows in microbatch_rows(task.num_rows, data)[-1 if self.coupling else 0 :]:
                experts = self.probes.has_experts and data > 1 and task.optimizer.divides
                for expert in (False, True) if experts else (False,):
                    for sequence in (False, True) if tensor > 1 else (False,):
                        along = data if expert or self.coupling else 1
                        yield pipeline, data, Sharding(tensor, sequence, expert, along, rows)

    def _is_allowed(self, pipeline: int, tensor: int) -> bool:
        """Whether the optimizer's update allows for parameters in several parts, and on several ranks of a pipeline."""
        optimizer = self.setting.task.optimizer
        return (tensor == 1 or optimizer.divides) and (pipeline == 1 or optimizer.updates_parameters_alone)

    def _probe(self) -> None:
        """Probe the lowest rungs of every ladder and the highest, then those between that can fit."""
        most: dict[Sharding, int] = {}
        for sharding in self.meshes:
            most[_kind(sharding)] = max(most.get(_kind(sharding), 1), sharding.rows)
        first: list[Sharding] = []
        between: list[Sharding] = []
        for kind, rows in most.items():
            rungs = [rows] if self.coupling else self.probes.ladder(kind, rows)
            shardings = [replace(kind, rows=r) for r in rungs]
            first += [*shardings[:2], *shardings[2:][-1:]]
            between += shardings[2:-1]
        self._probe_in_parallel(first)
        self._probe_in_parallel([s for s in between if self._can_fit(s)])

    def _probe_in_parallel(self, shardings: Sequence[Sharding]) -> None:
        """Processes share the work by what they capture."""
        groups = self.probes.groups(shardings)
        self.setting.progress("probing the blocks of the model", f"0 of {len(groups)}")
        parts = (
            map_forked(self.probes.probe, groups, self.setting.load)
            if can_differentiate()
            else map(self.probes.probe, groups)
        )
        for i, part in enumerate(parts, 1):
            self.probes.learn(part)
            self.setting.progress("probing the blocks of the model", f"{i} of {len(groups)}")

    def _can_fit(self, sharding: Sharding) -> bool:
        """Return whether some mesh has the memory for such microbatches, with all ways to save memory."""
        meshes = sorted(self.meshes_of_kind[_kind(sharding)], reverse=True)
        leanest = (
            self._leanest_point(pipeline, data, sharding, recompute)
            for pipeline, data in meshes
            for recompute in reversed(RECOMPUTES)
        )
        return any(e is not None and e.mean_memory_bytes <= self.capacity for e in leanest)

    def _estimates(self, pipeline: int, data: int, sharding: Sharding) -> list[Estimate]:
        found = []
        count = self.setting.task.num_rows // (data * sharding.rows)
        for recompute in RECOMPUTES:
            for schedule, per_rank in SCHEDULES if pipeline > 1 else SCHEDULES[:1]:
                if (per_rank > 1 and count % pipeline) or 2 * pipeline * per_rank * count > MOST_ACTIONS:
                    continue
                for zero_stage in range(self._most_zero(data) + 1):
                    point = Point(sharding, pipeline, data, count, schedule, per_rank, recompute, zero_stage)
                    estimated = self._estimate(point)
                    if estimated is not None:
                        found.append(estimated)
        return found

    def _estimate(self, point: Point) -> Estimate | None:
        """Estimate with stages as fast as possible, or as small as possible if these do not fit and the total would."""
        num_stages = point.pipeline * point.stages_per_rank
        stages = self.probes.stages(point.sharding, point.recompute, num_stages)
        if stages is None:
            return None
        found = estimate(point, stages, self.setting.cluster, self.setting.task)
        if found.memory_bytes <= self.capacity or found.mean_memory_bytes > self.capacity:
            return found
        stages = self.probes.stages(point.sharding, point.recompute, num_stages, "memory")
        assert stages is not None
        smaller = estimate(point, stages, self.setting.cluster, self.setting.task)
        return smaller if smaller.memory_bytes <= self.capacity else found

    def _left_out(self, failed: dict[Sharding, str], num_too_large: int) -> Iterator[str]:
        total = len(self.meshes)
        optimizer = self.setting.task.optimizer
        if not optimizer.divides:
            yield f"Only plans that divide no parameter and no optimizer state, as {optimizer.known_traits.name} needs."
        if self.coupling:
            yield f"Only plans with one microbatch: {self.coupling.rstrip('.')}."
        if num_too_large:
            yield f"Left out: {num_too_large} of {total} combinations of rows and sharding, which fit on no mesh."
        if failed:
            where, why = next(iter(failed.items()))
            yield (
                f"Left out: {len(failed)} of {total} combinations of rows and sharding, which cannot run; the first, "
                f"{where.rows} rows on a rank and tensor {where.tensor}: {why.rstrip('.')}."
            )


def _kind(sharding: Sharding) -> Sharding:
    """Return a key that is equal for shardings that differ only in their rows."""
    return replace(sharding, rows=1)
