"""Algorithm 2: which groups there are, all alike, by enumeration; and placements on single devices to compare with."""

from __future__ import annotations

from trainyard.serve.policies.alpaserve.greedy import greedy_selection
from trainyard.serve.policies.alpaserve.problem import Layout, ParallelConfig, PlacementProblem
from trainyard.serve.policies.alpaserve.simulate import simulate

__all__ = ["replication", "uniform_candidates", "uniform_search", "uniform_shapes"]


def replication(problem: PlacementProblem) -> Layout:
    """Groups of one device, as systems without model parallelism have them (simple replication)."""
    return greedy_selection(problem, (ParallelConfig(1),) * problem.num_devices)


def uniform_shapes(problem: PlacementProblem, shape: ParallelConfig) -> tuple[ParallelConfig, ...]:
    """Return as many groups of a shape as fit on the devices; remaining devices make pipelines of powers of two."""
    count, rest = divmod(problem.num_devices, shape.num_devices)
    return (shape,) * count + tuple(
        ParallelConfig(1 << bit) for bit in range(rest.bit_length()) if rest >> bit & 1
    )


def uniform_candidates(problem: PlacementProblem) -> list[Layout]:
    """Yield the groups with their models, for each size of groups, a power of two, and each shape of this size."""
    by_size = sorted(problem.shapes, key=lambda s: (s.num_devices, s))
    even = [s for s in by_size if s.num_devices & (s.num_devices - 1) == 0]
    candidates = [uniform_shapes(problem, shape) for shape in even]
    return [
        greedy_selection(problem, tuple(s for s in shapes if s in problem.shapes)) for shapes in candidates
    ]


def uniform_search(problem: PlacementProblem) -> Layout:
    """The best of the candidates; the first of those that are equally good. No group if no shape was measured."""
    return max(
        uniform_candidates(problem),
        key=lambda layout: simulate(problem, layout).score,
        default=Layout((), ()),
    )
