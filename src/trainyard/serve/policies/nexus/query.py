"""How the objective of a query is split over a tree of models, by dynamic programming (section 6.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Stage", "split_objective"]

_NONE = 1e10  # GPUs where no batch keeps the objective


@dataclass(frozen=True)
class Stage:
    """A model of a query and those that go on from its output.

    Attributes
    ----------
    model : its name; no other stage has it.
    rate_per_s : requests of it.
    throughput : requests per second of a GPU within so many seconds; 0 if no batch keeps them.
    children : follow it.
    """

    model: str
    rate_per_s: float
    throughput: Callable[[float], float]
    children: tuple[Stage, ...] = ()


def split_objective(root: Stage, objective_s: float, segments: int) -> tuple[float, dict[str, float]]:
    """The fewest GPUs that a query needs, and the seconds that each of its models has for that.

    Parameters
    ----------
    segments : equal steps in which the objective is split.
    """
    step_s = objective_s / segments
    tables: dict[str, list[tuple[float, int]]] = {}

    def fill(stage: Stage) -> None:
        for child in stage.children:
            fill(child)
        rates = [stage.throughput(k * step_s) for k in range(segments + 1)]
        table = tables[stage.model] = [(_NONE, 0)]
        for t in range(1, segments + 1):
            best = table[t - 1]
            for k in range(1, t + 1 if not stage.children else t):
                gpus = stage.rate_per_s / rates[k] if rates[k] > 0 else _NONE
                gpus += sum(tables[child.model][t - k][0] for child in stage.children)
                best = (gpus, k) if gpus < best[0] else best
            table.append(best)

    def read(stage: Stage, t: int) -> dict[str, float]:
        k = tables[stage.model][t][1]
        found = {stage.model: k * step_s}
        for child in stage.children:
            found |= read(child, t - k)
        return found

    fill(root)
    return tables[root.model][segments][0], read(root, segments)
