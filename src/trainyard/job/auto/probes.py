"""The probes of a search: costs of every layer of the model, under every sharding and recomputation asked for.

A layer's costs grow by as much with each row of a microbatch, nearly. So few row counts are probed, the ladder, and what
lies between two of them is taken from the line through both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainyard.job.auto.build import build_sharding, has_experts, recomputed
from trainyard.job.auto.estimate import Balance, Stages, cut_stages
from trainyard.job.auto.space import RECOMPUTES, Recompute, Sharding
from trainyard.job.model_state import state_of
from trainyard.job.setting import Setting
from trainyard.job.tables import COLUMNS, LayerTable
from trainyard.program.blocks import blocks
from trainyard.program.truncate import truncate

_RUNG = 4  # each row count of the ladder over the one before


@dataclass(frozen=True)
class ProbeResult:
    """The results of one probe.

    Attributes
    ----------
    costs : of the layers of the shorter model, by recomputation; without those that it does not allow.
    failure : why the model cannot run so; empty where it can.
    """

    costs: Mapping[Recompute, LayerTable]
    failure: str = ""


class Probes:
    """Costs of layers, probed on a model with three of its repeated blocks.

    The second stands for all between the first, which follows what is no block, and the last, which the loss follows. So
    a model of any depth is probed in the time of a shallow one, and the whole model is captured only for the plan that is
    chosen.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.truncated = truncate(setting.task.model)
        # Where nothing repeats, what is captured here is what strategies use, too.
        self.short = setting.of_model(self.truncated.model) if self.truncated.count else setting
        self._known: dict[Sharding, ProbeResult] = {}
        self._stages: dict[tuple[Sharding, Recompute, int, Balance], Stages | None] = {}
        program = self.short.task.program(setting.task.num_rows)
        self.has_experts = has_experts(program)
        self.num_blocks = len(self._expanded([b.path for b in blocks(program)])[0])

    def ladder(self, kind: Sharding, most: int) -> list[int]:
        """Rows to probe a sharding with, whatever its own: 1, about 4, 16, ... until ``most``, and those of the batch.

        All divide the batch, whose program is known already.
        """
        top = self.setting.task.num_rows // kind.data
        divisors = [d for d in range(1, top + 1) if top % d == 0]
        found = [1]
        while found[-1] < most:
            further = [d for d in divisors if found[-1] < d <= _RUNG * found[-1]]
            further = further[-1:] or [d for d in divisors if d > found[-1]][:1]
            if not further or 2 * further[0] > top:
                break
            found += further
        return found if top == 1 else [*found, top]

    def groups(self, shardings: Iterable[Sharding]) -> list[list[Sharding]]:
        """Shardings of one captured program each; the largest first, so that nobody is left alone with it at the end."""
        found: dict[int, list[Sharding]] = {}
        for sharding in shardings:
            found.setdefault(sharding.rows * sharding.data, []).append(sharding)
        return sorted(found.values(), key=len, reverse=True)

    def probe(self, shardings: Iterable[Sharding]) -> dict[Sharding, ProbeResult]:
        """Learn the costs of all layers under some shardings, and return them for another process to learn."""
        found = {sharding: self._probe(sharding) for sharding in shardings}
        self.learn(found)
        return found

    def learn(self, found: Mapping[Sharding, ProbeResult]) -> None:
        """Take over what was probed elsewhere."""
        self._known |= found

    def failure(self, sharding: Sharding) -> str:
        """Why the model cannot run under a sharding; empty where nothing speaks against it."""
        known = self._known.get(sharding)
        if known is not None:
            return known.failure
        ladder = self._ladder_of(sharding)
        return "" if len(ladder) > 1 else next(iter(p.failure for p in self._same(sharding).values()), "")

    def stages(
        self, sharding: Sharding, recompute: Recompute, num_stages: int, balance: Balance = "time"
    ) -> Stages | None:
        """The model cut into stages; None if it cannot be sharded so or has too few blocks."""
        key = (sharding, recompute, num_stages, balance)
        if key not in self._stages:
            costs = self.layers(sharding, recompute)
            state = state_of(self.setting.task.weight_types, self.setting.task.optimizer)
            fits = costs is not None and num_stages <= len(costs)
            self._stages[key] = (
                cut_stages(costs, num_stages, state, balance) if fits and costs is not None else None
            )
        return self._stages[key]

    def layers(self, sharding: Sharding, recompute: Recompute) -> LayerTable | None:
        """Costs of all layers of the whole model; None if it cannot be sharded or recomputed so."""
        known = self._known.get(sharding)
        costs = self._interpolated(sharding, recompute) if known is None else known.costs.get(recompute)
        return None if costs is None else costs.take(*self._expanded(costs.paths))

    def _same(self, sharding: Sharding) -> dict[int, ProbeResult]:
        """Return the known probes of a sharding with other rows, by rows."""
        return {s.rows: p for s, p in self._known.items() if replace(s, rows=sharding.rows) == sharding}

    def _ladder_of(self, sharding: Sharding) -> dict[int, ProbeResult]:
        return {rows: p for rows, p in sorted(self._same(sharding).items()) if not p.failure}

    def _interpolated(self, sharding: Sharding, recompute: Recompute) -> LayerTable | None:
        """Interpolate between the probes next to these rows; None if there are not two."""
        ladder = self._ladder_of(sharding)
        below = [rows for rows in ladder if rows < sharding.rows]
        above = [rows for rows in ladder if rows > sharding.rows]
        ends = (below[-1:] + above[:1]) if below and above else (below[-2:] or above[:2])
        if len(ends) < 2:
            return None
        low, high = (ladder[rows].costs.get(recompute) for rows in ends)
        if low is None or high is None or low.paths != high.paths:
            return None
        return _between(low, high, (sharding.rows - ends[0]) / (ends[1] - ends[0]))

    def _probe(self, sharding: Sharding) -> ProbeResult:
        try:
            # The model is the user's, and may say in any way that it does not take so few rows.
            program = self.short.task.program(sharding.rows * sharding.data)
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            return ProbeResult({}, f"with {sharding.rows * sharding.data} rows {reason}")
        found: dict[Recompute, LayerTable] = {}
        try:
            plan = build_sharding(self.short, sharding)
            for kind in RECOMPUTES:
                again = recomputed(program, kind)
                if again or kind == "none":
                    found[kind] = self.short.rank_layer_table(plan.with_recomputed(again))
        except ValueError as error:
            return ProbeResult({}, str(error))
        return ProbeResult(found)

    def _expanded(self, paths: Sequence[str]) -> tuple[list[int], list[str]]:
        """Map layers of the truncated model to those of the whole model, and their paths: the last but one repeats."""
        short = self.truncated
        if not short.count:
            return list(range(len(paths))), list(paths)
        found: list[tuple[int, str]] = []
        for layer, path in enumerate(paths):
            if path == short.block(short.kept - 2):
                found += [(layer, short.block(i)) for i in range(short.kept - 2, short.count - 1)]
            elif path == short.block(short.kept - 1):
                found.append((layer, short.block(short.count - 1)))
            else:
                found.append((layer, path))
        return [layer for layer, _ in found], [path for _, path in found]


def _between(low: LayerTable, high: LayerTable, share: float) -> LayerTable:
    """The costs of layers at some rows from those at two others: a line through both, as long as it is not negative.

    Seconds and bytes of an op grow by as much with each row as long as the same rate limits it; parameters stay.
    """
    line = {n: getattr(low, n) + (getattr(high, n) - getattr(low, n)) * share for n in COLUMNS}
    return replace(low, **{name: np.maximum(0.0, values) for name, values in line.items()})
