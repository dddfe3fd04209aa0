"""Pollux as its authors' program searches: another way to make children of allocations.

Parents are cut at one job rather than mixed, devices are added where some are free rather than anywhere, and of jobs
that contest devices, those that had least service keep them rather than random ones. The program searches for two
objectives at once, of which it uses one; here is only that one. It finds more than the paper's search: on two of the
authors' workloads (1, 6; 16 nodes of 4 devices) the mean completion time is 20 and 31 % longer under that, with as many
generations of as many.

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021; petuum/adaptdl,
branch osdi21-artifact, ``pollux.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainyard.compiling import only_compiled, only_lean
from trainyard.fleet.policies.pollux.genetic import Allocations, Floats, Problem, search
from trainyard.fleet.policies.pollux.offspring import below, insert, limit, settle
from trainyard.fleet.policies.pollux.policy import Pollux

_CHANCE_OF_TWO_PARENTS = 0.9  # instead of one
_CHANCE_OF_RESET = 0.1  # to what it has now, of every job
_CHANCE_OF_LOSS = 0.1  # that a job loses devices, and of each of its nodes if it does


@dataclass(frozen=True)
class PolluxProgram(Pollux):
    """The policy."""

    def search(self, problem: Problem, start: Allocations, seed: int) -> tuple[Allocations, Floats]:
        return search_of_program(problem, start, seed, self.num_generations, self.population)


def search_of_program(
    problem: Problem, start: Allocations, seed: int, num_generations: int, population: int
) -> tuple[Allocations, Floats]:
    """As `search`."""
    chances = chances_of_hits(len(problem.least))
    return search(problem, start, seed, num_generations, population, make_child, chances)


@only_compiled
def chances_of_hits(num_jobs):  # type: ignore[no-untyped-def]
    """Cumulated chances of 0, 1, ... hits when each job is hit with chance 1 / jobs."""
    p = 1.0 / num_jobs
    term, total, found = (1 - p) ** num_jobs, 0.0, np.ones(16)
    for k in range(16):
        total += term
        found[k] = total
        term *= (num_jobs - k) / (k + 1.0) * (p / (1 - p) if p < 1 else 0.0)
    return found


@only_compiled
def make_child(random, alive, a, b, current, sizes, least, most, chances, child):  # type: ignore[no-untyped-def]
    """A child: jobs before a cut as in one parent, the rest as in the other, or all as in one.

    Devices are added where some are free, and the first jobs keep contested ones.

    Parameters
    ----------
    chances : of `chances_of_hits`.
    """
    firsts, nodes, counts = alive
    one, other = (firsts[a], nodes[a], counts[a]), (firsts[b], nodes[b], counts[b])
    cut = below(random, len(least)) if random.random() < _CHANCE_OF_TWO_PARENTS else len(least)
    num_jobs, room = len(least), len(one[1]) + len(other[1]) + len(current[1])
    first, node, count = np.zeros(num_jobs + 1, np.int32), np.zeros(room, np.int32), np.zeros(room, np.int32)
    used, num_entries = np.zeros_like(sizes), np.zeros_like(sizes)
    end = _cut_and_mutated(random, one, other, cut, current, (first, node, count), used, num_entries)
    _grow(random, node, count, end, used, num_entries, sizes, num_jobs)
    head, after = np.full(num_jobs, -1, np.int32), np.zeros(room, np.int32)
    _spread(random, (first, node, count), end, used, sizes, chances, head, after)
    _repair(random, first, node, count, head, after, sizes, least, most, child)


@only_lean
def _cut_and_mutated(random, one, other, cut, current, entries, used, num_entries):  # type: ignore[no-untyped-def]
    """Jobs as in their parent, or as they are now, some without some of their nodes; returns where the entries end.

    Parameters
    ----------
    entries : what is written to.
    used, num_entries : of every node, devices and entries; what is written is added.
    """
    first, node, count = entries
    n = 0
    for j in range(len(first) - 1):
        source = one if j < cut else other
        if random.random() < _CHANCE_OF_RESET:
            source = current
        loses = random.random() < _CHANCE_OF_LOSS
        for e in range(source[0][j], source[0][j + 1]):
            if loses and random.random() < _CHANCE_OF_LOSS:
                continue
            node[n], count[n] = source[1][e], source[2][e]
            used[node[n]] += count[n]
            num_entries[node[n]] += 1
            n += 1
        first[j + 1] = n
    return n


@only_lean
def _grow(random, node, count, end, used, num_entries, sizes, num_jobs):  # type: ignore[no-untyped-def]
    """Entries on nodes with free devices grow at random."""
    of_all = 1.0 / num_jobs
    for e in range(end):
        m = node[e]
        if used[m] < sizes[m]:
            of_node = 1.0 / num_entries[m]
            if random.random() < of_all + of_node - of_all * of_node:
                count[e] += below(random, sizes[m] + 1 - count[e])


@only_lean
def _spread(random, entries, end, used, sizes, chances, head, after):  # type: ignore[no-untyped-def]
    """Random jobs come to nodes with free devices on which they are not.

    Parameters
    ----------
    entries : to which the new ones are added, from ``end`` on.
    head, after : the new ones as linked lists, which are written: the first one of every job, and after each the next.
    """
    first, node, count = entries
    num_jobs, n = len(head), end
    for m in range(len(sizes)):
        if used[m] >= sizes[m]:
            continue
        hits, draw = 0, random.random()
        while hits < 15 and draw > chances[hits]:
            hits += 1
        for _ in range(hits):
            j, value = below(random, num_jobs), below(random, sizes[m] + 1)
            known = value == 0 or n == len(node) or (head[j] >= 0 and node[head[j]] == m)
            for e in range(first[j], first[j + 1]):
                known |= node[e] == m
            if not known:
                node[n], count[n], after[n] = m, value, head[j]
                head[j] = n
                n += 1


@only_compiled
def _repair(random, first, node, count, head, after, sizes, least, most, child):  # type: ignore[no-untyped-def]
    """Make it possible: one distributed job per node, no job over its most or under its least, no node over its size.

    The first jobs keep what they have.
    """
    left, has_distributed = sizes.copy(), np.zeros(len(sizes), np.bool_)
    row, amount = np.zeros(len(sizes), np.int32), np.zeros(len(sizes), np.int32)
    _, to_node, to_count = child
    end = 0
    for j in range(len(least)):
        n = 0
        for e in range(first[j], first[j + 1]):
            n = insert(row, amount, n, node[e], count[e])
        e = head[j]
        while e >= 0:
            n = insert(row, amount, n, node[e], count[e])
            e = after[e]
        total, is_distributed = 0, n > 1
        for k in range(n):
            m = row[k]
            if is_distributed:
                if has_distributed[m]:
                    amount[k] = 0
                    continue
                has_distributed[m] = True
            total += amount[k]
        if total > most[j]:
            limit(random, amount[:n], most[j])
        begin = end
        for k in range(n):
            m = row[k]
            got = min(amount[k], left[m])
            if got > 0:
                to_node[end], to_count[end] = m, got
                end += 1
        end = settle(child, j, begin, end, least[j], left, has_distributed)
