"""Beyond Algorithm 2: groups of different shapes, and models exchanged between groups, by local search.

It starts from the best placement with groups that are all alike, and so is never worse on the arrivals that it is given.
"""

from __future__ import annotations

import random

from trainyard.serve.errors import ServeError
from trainyard.serve.policies.alpaserve.enumeration import uniform_candidates
from trainyard.serve.policies.alpaserve.greedy import beam_selection
from trainyard.serve.policies.alpaserve.problem import Layout, ParallelConfig, PlacementProblem
from trainyard.serve.policies.alpaserve.simulate import simulate

__all__ = ["exchanged", "mixed_search", "reshaped", "thinned"]


def mixed_search(
    problem: PlacementProblem, num_shapes: int = 12, num_moves: int = 2000, seed: int = 0
) -> Layout:
    """The best layout that is found.

    1. Layouts of groups that are all alike, as Algorithm 2 has them.
    2. From the best, one group after another is cut, joined with another or reshaped, and models are placed anew.
    3. In the best of every step 2, models are moved and exchanged between groups.

    Parameters
    ----------
    num_shapes : sets of shapes that are tried in step 2.
    num_moves : layouts that are tried for each set of shapes in step 3.
    seed : of the order in which they are tried.

    Raises
    ------
    ServeError
        If a number is below 0.
    """
    if min(num_shapes, num_moves) < 0:
        raise ServeError(f"num_shapes is {num_shapes}, num_moves {num_moves}; allowed is 0 or more")
    rng = random.Random(seed)
    found = {tuple(sorted(layout.shapes)): layout for layout in uniform_candidates(problem)}
    expanded: set[tuple[ParallelConfig, ...]] = set()
    while num_shapes > 0 and len(expanded) < len(found):
        base = max((s for s in found if s not in expanded), key=lambda s: simulate(problem, found[s]).score)
        expanded.add(base)
        for shapes in neighbours(problem, base):
            if shapes not in found and num_shapes > 0:
                found[shapes] = beam_selection(problem, shapes)
                num_shapes -= 1
    improved = [_exchanged(problem, layout, num_moves, rng) for layout in found.values()]
    return max((*found.values(), *improved), key=lambda c: simulate(problem, c).score, default=Layout((), ()))


def neighbours(
    problem: PlacementProblem, shapes: tuple[ParallelConfig, ...]
) -> list[tuple[ParallelConfig, ...]]:
    """Shapes with one group or two replaced by others on as many devices, at most two."""
    known = problem.shapes
    ways = [(s,) for s in known] + [(a, b) for a in known for b in known if a <= b]
    found: set[tuple[ParallelConfig, ...]] = set()
    for old in {(s,) for s in shapes} | {(a, b) for i, a in enumerate(shapes) for b in shapes[i + 1 :]}:
        rest = list(shapes)
        for shape in old:
            rest.remove(shape)
        size = sum(s.num_devices for s in old)
        found |= {tuple(sorted((*rest, *new))) for new in ways if sum(s.num_devices for s in new) == size}
    return sorted(found - {tuple(sorted(shapes))})


def exchanged(problem: PlacementProblem, layout: Layout, rng: random.Random) -> Layout:
    """A layout with one model to three put on groups, in the place of others where there is no room."""
    models = [set(each) for each in layout.models]
    for _ in range(rng.choice((1, 1, 2, 3))):
        g = rng.randrange(len(models))
        absent = [m for m in range(len(problem.models)) if m not in models[g]]
        if not absent:
            continue
        models[g].add(rng.choice(absent))
        while not problem.fits(layout.shapes[g], tuple(models[g])):
            models[g].remove(rng.choice(sorted(models[g])))
    return Layout(layout.shapes, tuple(tuple(sorted(each)) for each in models))


def reshaped(problem: PlacementProblem, layout: Layout, rng: random.Random) -> Layout:
    """A layout with one group or two replaced by others on as many devices, which get the same models where they fit.

    Where there is room for more models then, others are put there.
    """
    candidates = neighbours(problem, layout.shapes)
    if not candidates:
        return layout
    new = list(rng.choice(candidates))
    kept: list[tuple[ParallelConfig, tuple[int, ...]]] = []
    pool: list[int] = []
    for group in rng.sample(list(zip(layout.shapes, layout.models, strict=True)), len(layout.shapes)):
        if group[0] in new:
            new.remove(group[0])
            kept.append(group)
        else:
            pool += group[1]
    numbers = range(len(problem.models))
    for shape in new:
        models: tuple[int, ...] = ()
        for m in (*rng.sample(pool, len(pool)), *rng.sample(numbers, len(numbers))):
            if m not in models and problem.fits(shape, (*models, m)):
                models = (*models, m)
        kept.append((shape, tuple(sorted(models))))
    return Layout(tuple(shape for shape, _ in kept), tuple(models for _, models in kept))


def thinned(layout: Layout, rng: random.Random) -> Layout:
    """A layout with one model off a group that has others, too: those no longer wait for its requests."""
    models = list(layout.models)
    g = rng.randrange(len(models))
    if len(models[g]) > 1:
        gone = rng.choice(models[g])
        models[g] = tuple(m for m in models[g] if m != gone)
    return layout._replace(models=tuple(models))


def _exchanged(problem: PlacementProblem, layout: Layout, num_moves: int, rng: random.Random) -> Layout:
    """A layout after moves of models, each of which made it no worse."""
    score = simulate(problem, layout).score
    for _ in range(num_moves if layout.shapes else 0):
        other = exchanged(problem, layout, rng)
        if other != layout and (other_score := simulate(problem, other).score) >= score:
            layout, score = other, other_score
    return layout
