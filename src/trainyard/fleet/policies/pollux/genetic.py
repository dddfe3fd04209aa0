"""Genetic search for allocations: how many devices of which node every job should have.

An allocation is a matrix of jobs and nodes that is nearly empty: no more entries than devices. It is kept as rows of
(node, count), so that one step of the search takes time in jobs and devices, not in jobs times nodes.

References
----------
A. Qiao et al., "Pollux", OSDI 2021, section 4.2.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.compiling import only_compiled, only_lean
from trainyard.fleet.policies.pollux.offspring import below, make_child

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]

_NO_TABLES = np.zeros(0)
_IDLE = 4e-3  # speedup of a job without devices: more than none, so that a mean exists


class Allocations(NamedTuple):
    """Several allocations, as rows of entries.

    Attributes
    ----------
    first : [allocation, job + 1]: where the entries of each job begin.
    node, devices : [allocation, entry]: how many of which node; nodes of a job ascend.
    """

    first: Ints
    node: Ints
    devices: Ints

    def rows(self, which: int) -> list[list[tuple[int, int]]]:
        """Return the (node, count) pairs of each job in one allocation."""
        first, node, count = (part[which].tolist() for part in self)
        pairs = list(zip(node, count, strict=True))
        return [pairs[a:b] for a, b in pairwise(first)]


@dataclass(frozen=True, eq=False)
class Problem:
    """Objective of the search for an allocation. Jobs are in the order in which they keep contested devices.

    Attributes
    ----------
    sizes : devices of every node.
    current : one allocation: what jobs have now.
    speedup : [job, on several nodes, number of devices].
    realloc_factor : on the speedup of a job whose devices change (``REALLOC_FACTOR``).
    least, most : devices of every job, if it has any.
    fairness : power p of the mean of speedups; the smaller, the fairer; not 0.
    """

    sizes: Ints
    current: Allocations
    speedup: Floats
    realloc_factor: Floats
    least: Ints
    most: Ints
    fairness: float


def allocations(rows: list[list[tuple[int, int]]], num_entries: int) -> Allocations:
    """Make an allocation from the (node, count) pairs of each job, with room for ``num_entries``."""
    first = np.cumsum([0, *(len(row) for row in rows)]).astype(np.int32)
    flat = np.zeros((2, 1, num_entries), np.int32)
    flat[:, 0, : first[-1]] = np.array([pair for row in rows for pair in row], np.int32).reshape(-1, 2).T
    return Allocations(first[None], flat[0], flat[1])


def carried_over(before: Allocations, place: Ints) -> Allocations:
    """Allocations of former jobs, for the present ones.

    Parameters
    ----------
    place : of every present job among the former ones; -1 if it was not there.
    """
    return Allocations(*_carried_over(*before, place))


def search(
    problem: Problem,
    start: Allocations,
    seed: int,
    num_generations: int,
    population: int,
    make: Callable[..., None] = make_child,
    tables: Floats = _NO_TABLES,
) -> tuple[Allocations, Floats]:
    """Allocations after some generations, best first, and the fitness of each.

    Parameters
    ----------
    make : makes children, a compiled function such as `make_child`.
    tables : what it is given besides.
    """
    p = problem
    found = _search(
        np.random.Generator(np.random.SFC64(seed)),
        *start,
        *p.current,
        p.sizes,
        p.speedup,
        p.realloc_factor,
        p.least,
        p.most,
        p.fairness,
        num_generations,
        population,
        make,
        tables,
    )
    return Allocations(*found[:3]), found[3]


@only_compiled
def _carried_over(first, node, count, place):  # type: ignore[no-untyped-def]
    num, num_jobs = len(first), len(place)
    to_first = np.zeros((num, num_jobs + 1), np.int32)
    to_node, to_count = np.zeros_like(node), np.zeros_like(count)
    for i in range(num):
        n = 0
        for j in range(num_jobs):
            if place[j] >= 0:
                for e in range(first[i, place[j]], first[i, place[j] + 1]):
                    to_node[i, n], to_count[i, n] = node[i, e], count[i, e]
                    n += 1
            to_first[i, j + 1] = n
    return to_first, to_node, to_count


@only_compiled
def _search(  # type: ignore[no-untyped-def]
    random, first0, node0, count0, now_first, now_node, now_count, sizes, speedup, realloc_factor, least, most, fairness,
    num_generations, population, make, tables,
):  # fmt: skip
    num_jobs, num_entries, num = now_first.shape[1] - 1, node0.shape[1], len(first0)
    first = np.zeros((2 * population, num_jobs + 1), np.int32)
    node = np.zeros((2 * population, num_entries), np.int32)
    count = np.zeros((2 * population, num_entries), np.int32)
    first[:num], node[:num], count[:num] = first0, node0, count0
    current = (now_first[0], now_node[0], now_count[0])
    fitness, ranked = np.full(2 * population, -np.inf), np.arange(2 * population)
    for i in range(num):
        fitness[i] = _fitness(first[i], node[i], count[i], current, speedup, realloc_factor, fairness)
    # Numbers of the allocations, the fittest first; what comes after those that live is room for their children.
    ranked = ranked[np.argsort(-fitness[ranked])]
    for _ in range(num_generations):
        end = num
        for _ in range(population):
            a, b = (
                _tournament_winner(random, fitness, ranked, num),
                _tournament_winner(random, fitness, ranked, num),
            )
            c = ranked[end]
            child = (first[c], node[c], count[c])
            make(random, (first, node, count), a, b, current, sizes, least, most, tables, child)
            fitness[c] = _fitness(first[c], node[c], count[c], current, speedup, realloc_factor, fairness)
            if not _is_duplicate(first, node, count, fitness, ranked[:end], c):
                end += 1
        if end == num:
            break  # there is nothing new near to these
        for i in range(end, 2 * population):
            fitness[ranked[i]] = -np.inf
        ranked = ranked[np.argsort(-fitness[ranked])]
        num = min(end, population)
    living = ranked[:num]
    return first[living], node[living], count[living], fitness[living]


@only_lean
def _tournament_winner(random, fitness, ranked, num):  # type: ignore[no-untyped-def]
    """The fitter of two random ones of those that live, of which there are ``num``."""
    a, b = ranked[below(random, num)], ranked[below(random, num)]
    return a if fitness[a] >= fitness[b] else b


@only_lean
def _is_duplicate(first, node, count, fitness, others, s):  # type: ignore[no-untyped-def]
    """Whether the allocation is already there."""
    end = first[s, -1]
    for o in others:
        same = fitness[o] == fitness[s] and first[o, -1] == end
        e = 0
        while same and e < end:
            same = node[o, e] == node[s, e] and count[o, e] == count[s, e]
            e += 1
        j = 0
        while same and j < first.shape[1]:
            same = first[o, j] == first[s, j]
            j += 1
        if same:
            return True
    return False


@only_lean
def _fitness(first, node, count, current, speedup, realloc_factor, fairness):  # type: ignore[no-untyped-def]
    """Power mean of the speedups of all jobs; with a power of minus infinity that is the least of them."""
    total, least, num_jobs, num_idle = 0.0, np.inf, len(realloc_factor), 0
    for j in range(num_jobs):
        begin, end = first[j], first[j + 1]
        if begin == end:
            num_idle += 1
            continue
        devices = 0
        for e in range(begin, end):
            devices += count[e]
        found = speedup[j, int(end - begin > 1), devices]
        if not _is_current(first, node, count, current, j):
            found *= realloc_factor[j]
        found += _IDLE
        least = min(least, found)
        total += 1.0 / found if fairness == -1.0 else found**fairness
    if fairness == -np.inf:
        return _IDLE if num_idle else least
    total += num_idle * _IDLE**fairness
    return (total / num_jobs) ** (1.0 / fairness)


@only_lean
def _is_current(first, node, count, current, j):  # type: ignore[no-untyped-def]
    """Whether a job has what it has now."""
    now_first, now_node, now_count = current
    length = first[j + 1] - first[j]
    if now_first[j + 1] - now_first[j] != length:
        return False
    a, b = first[j], now_first[j]
    same = True
    for k in range(length):
        same &= node[a + k] == now_node[b + k] and count[a + k] == now_count[b + k]
    return same
