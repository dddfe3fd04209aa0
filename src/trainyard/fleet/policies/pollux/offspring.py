"""Children of allocations in a genetic search: of two parents, mutated, and repaired until they are possible.

An allocation is kept as `trainyard.fleet.policies.pollux.genetic` says: `first` [job + 1], `node` and `devices` [entry].

References
----------
A. Qiao et al., "Pollux", OSDI 2021, section 4.2.1.
"""

from __future__ import annotations

import numpy as np

from trainyard.compiling import only_compiled


@only_compiled
def make_child(random, alive, one, other, current, sizes, least, most, tables, child):  # type: ignore[no-untyped-def]
    """A child: rows of both parents at random, elements mutated, and random ones taken back.

    Parameters
    ----------
    alive : several allocations; ``one`` and ``other`` are the numbers of the parents among them.
    current, tables : what jobs have now, and what was computed before; not used here.
    child : what is written to.
    """
    first, node, count, owner = _mixed_and_mutated(random, alive, one, other, sizes)
    # The repair of the paper: no two distributed jobs on a node, no job over its most, no node over its size.
    on_node, after = _by_node(node, len(sizes))
    _avoid_interference(random, first, count, owner, on_node, after)
    total = np.zeros(len(least), np.int32)
    for e in range(len(count)):
        total[owner[e]] += count[e]
    for j in range(len(least)):
        if total[j] > most[j]:
            limit(random, count[first[j] : first[j + 1]], most[j])
    left = np.zeros_like(sizes)
    for m in range(len(sizes)):
        left[m] = _fit_node(random, count, on_node[m], after, sizes[m])
    _write_child(first, node, count, left, least, child)


@only_compiled
def _mixed_and_mutated(random, alive, one, other, sizes):  # type: ignore[no-untyped-def]
    """Every job as in either parent; with chance 1 / nodes an element is set to any number of the node's devices.

    Returns
    -------
    Where the entries of every job begin, and of each entry its node, devices and job.
    """
    from_first, from_node, from_count = alive
    num_jobs, num_nodes = from_first.shape[1] - 1, len(sizes)
    room = from_first[one, -1] + from_first[other, -1] + 2 * num_jobs + 64
    first, node, count = np.zeros(num_jobs + 1, np.int32), np.empty(room, np.int32), np.empty(room, np.int32)
    owner = np.empty(room, np.int32)
    # How many elements are passed by before one is hit is geometric: the whole part of an exponential number.
    passed = -1.0 / np.log1p(-1.0 / num_nodes) if num_nodes > 1 else 0.0
    hit, n = int(random.standard_exponential() * passed), 0
    for j in range(num_jobs):
        source = one if random.random() < 0.5 else other
        e, end = from_first[source, j], from_first[source, j + 1]
        while True:
            while e < end and n < room and from_node[source, e] < hit:
                node[n], count[n], owner[n] = from_node[source, e], from_count[source, e], j
                e += 1
                n += 1
            if hit >= num_nodes:
                break
            e += e < end and from_node[source, e] == hit
            value = below(random, sizes[hit] + 1)
            if value and n < room:
                node[n], count[n], owner[n] = hit, value, j
                n += 1
            hit += 1 + int(random.standard_exponential() * passed)
        hit -= num_nodes
        first[j + 1] = n
    return first, node[:n], count[:n], owner[:n]


@only_compiled
def below(random, end):  # type: ignore[no-untyped-def]
    """A whole number from 0 to below ``end``; the generator's own way takes five times as long."""
    return int(random.random() * end)


@only_compiled
def _by_node(node, num_nodes):  # type: ignore[no-untyped-def]
    """Entries of each node, as linked lists: the first one, and after each the next; -1 for none."""
    on_node, after = np.full(num_nodes, -1, np.int32), np.zeros(len(node), np.int32)
    for e in range(len(node)):
        after[e] = on_node[node[e]]
        on_node[node[e]] = e
    return on_node, after


@only_compiled
def _avoid_interference(random, first, count, owner, on_node, after):  # type: ignore[no-untyped-def]
    """Random jobs that are distributed, on several nodes, leave a node until there is only one of them."""
    length, distributed = np.diff(first), np.empty(len(owner), np.int32)
    for m in range(len(on_node)):
        num, e = 0, on_node[m]
        while e >= 0:
            distributed[num] = e
            num += length[owner[e]] > 1
            e = after[e]
        stays = below(random, num) if num > 1 else 0
        for k in range(num):
            if k != stays:
                count[distributed[k]] = 0
                length[owner[distributed[k]]] -= 1


@only_compiled
def _fit_node(random, count, head, after, size):  # type: ignore[no-untyped-def]
    """Random elements of a node are decremented until it has room for all; returns the devices that are left."""
    total, num = 0, 0
    e = head
    while e >= 0:
        total += count[e]
        num += 1
        e = after[e]
    if total <= size:
        return size - total
    some = np.empty(num, np.int32)
    num, e = 0, head
    while e >= 0:
        if count[e]:
            some[num] = e
            num += 1
        e = after[e]
    for _ in range(total - size):
        k = below(random, num)
        count[some[k]] -= 1
        if not count[some[k]]:
            num -= 1
            some[k] = some[num]
    return 0


@only_compiled
def _write_child(first, node, count, left, least, child):  # type: ignore[no-untyped-def]
    """Without empty elements, and with what is missing for jobs that cannot run on so few."""
    to_first, to_node, to_count = child
    has_distributed = (
        np.zeros(0, np.bool_) if least.max() <= 1 else _distributed_on(first, node, count, len(left))
    )
    end = 0
    for j in range(len(least)):
        begin = end
        for e in range(first[j], first[j + 1]):
            if count[e]:
                to_node[end], to_count[end] = node[e], count[e]
                end += 1
        if least[j] > 1:
            for e in range(begin, end):
                left[to_node[e]] += to_count[e]
            end = settle(child, j, begin, end, least[j], left, has_distributed)
        to_first[j + 1] = end


@only_compiled
def _distributed_on(first, node, count, num_nodes):  # type: ignore[no-untyped-def]
    """Tell for each node whether it has part of a distributed job, which is on other nodes, too."""
    has_distributed = np.zeros(num_nodes, np.bool_)
    for j in range(len(first) - 1):
        length = 0
        for e in range(first[j], first[j + 1]):
            length += count[e] > 0
        if length > 1:
            for e in range(first[j], first[j + 1]):
                has_distributed[node[e]] |= count[e] > 0
    return has_distributed


@only_compiled
def settle(child, j, begin, end, least, left, has_distributed):  # type: ignore[no-untyped-def]
    """Let a job have its entries, and what it lacks, or nothing; returns where its entries end."""
    first, node, count = child
    total = count[begin:end].sum()
    if 0 < total < least:
        end = _top_up(node, count, begin, end, least - total, left, has_distributed)
    for e in range(begin, end):
        left[node[e]] -= count[e]
    first[j + 1] = end
    return end


@only_compiled
def _top_up(node, count, begin, end, wanted, left, has_distributed):  # type: ignore[no-untyped-def]
    """More devices for a job that cannot run on so few, from any nodes; if there are none, it gets nothing."""
    # On a node that another distributed job is on, it cannot become one.
    stays = end - begin == 1 and has_distributed[node[begin]]
    for m in range(len(left)):
        at = begin
        while at < end and node[at] < m:
            at += 1
        there = at < end and node[at] == m
        more = min(wanted, left[m] - count[at] if there else left[m])
        if more <= 0 or (not there and (stays or has_distributed[m])):
            continue
        if there:
            count[at] += more
        else:
            end = begin + insert(node[begin:], count[begin:], end - begin, m, more)
        wanted -= more
    if wanted > 0:
        return begin
    if end - begin > 1:
        has_distributed[node[begin:end]] = True
    return end


@only_compiled
def insert(row, amount, n, m, value):  # type: ignore[no-untyped-def]
    """Insert an entry by its node."""
    k = n
    while k > 0 and row[k - 1] > m:
        row[k], amount[k] = row[k - 1], amount[k - 1]
        k -= 1
    row[k], amount[k] = m, value
    return n + 1


@only_compiled
def limit(random, amount, most):  # type: ignore[no-untyped-def]
    """Take entries in random order until the job has all that it may have."""
    order = np.arange(len(amount))
    for k in range(len(amount)):
        drawn = k + below(random, len(amount) - k)
        e, order[drawn] = order[drawn], order[k]
        amount[e] = min(amount[e], most)
        most -= amount[e]
