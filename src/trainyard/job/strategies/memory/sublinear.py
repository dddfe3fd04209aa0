"""Training with sublinear memory: keep the activations between segments, recompute those inside.

Chen, Xu, Zhang and Guestrin, "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174.

Fidelity: exact for section 4's plans with one level of segments: sqrt(n) equal segments (section 4.3), or
algorithm 3 (memory planning with a budget) with its search over the budget b. The recursive scheme of O(log n)
memory (section 4.4) is left out: a plan recomputes a tensor once. Segments end where only one activation leads
on, which is the paper's set of candidate split points C(v) for networks with skip connections.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import fx

from trainyard.job.plan import Plan, PlanError
from trainyard.job.setting import Setting, Strategy
from trainyard.job.transformer import forward_ops
from trainyard.program.addresses import address
from trainyard.program.program import Program, size_bytes, tensors_of


def sublinear(*, segments: int | None = None, budget_bytes: float | None = None) -> Strategy:
    """Recompute every activation inside a segment; keep the one that enters it.

    For a chain of n equal layers in k segments, memory is O(n / k) + O(k) (equation 1), least at k = sqrt(n);
    the price is one more forward pass.

    Parameters
    ----------
    segments : number of segments k; by default the square root of the number of places to cut.
    budget_bytes : instead, end a segment when its activations exceed this (algorithm 3's b). ``0`` searches
        for the b with the least memory, around sqrt(x y) as section 4.3 does.

    Returns
    -------
    Strategy
        It raises `PlanError` if there are fewer places to cut than segments.

    Raises
    ------
    PlanError
        If both or unusable numbers are given.

    Examples
    --------
    >>> from trainyard.hardware.parse import parse_cluster
    >>> from trainyard.job.planning import make_setting
    >>> from trainyard.job.setting import apply
    >>> from trainyard.job.task import Task
    >>> from trainyard.zoo.registry import build
    >>> setting = make_setting(Task(build("gpt-tiny")), parse_cluster("1x1xA100-80G"))
    >>> plan = apply((("sublinear", sublinear(segments=2)),), setting)
    >>> plan.reasons[-1]
    '2 segments: kept are the activations at blocks.0:add.2; 153 ops are recomputed.'
    """
    if segments is not None and budget_bytes is not None:
        raise PlanError("give sublinear either segments or budget_bytes, not both")
    if (segments is not None and segments < 1) or (budget_bytes is not None and budget_bytes < 0):
        raise PlanError(f"segments count from 1 and a budget from 0, got {segments} and {budget_bytes}")

    def strategy(setting: Setting, plan: Plan) -> Plan:
        program = setting.task.program(plan.rows_per_microbatch)
        chain = Chain.of(program)
        if budget_bytes is None:
            kept = _equal_segments(chain, segments)
        else:
            kept = _within(chain, budget_bytes) if budget_bytes else _searched(chain)
        again = [op for i, op in enumerate(chain.ops) if i not in set(kept)]
        where = ", ".join(address(chain.ops[i]) for i in kept)
        why = (
            f"{len(kept) + 1} segments: kept are the activations at {where or 'no op'}; "
            f"{len(again)} ops are recomputed."
        )
        plan = plan.with_recomputed(program.addresses.shortened(again))
        return replace(plan, reasons=(*plan.reasons, why))

    return strategy


@dataclass(frozen=True, eq=False)
class Chain:
    """A forward pass as a sequence.

    Attributes
    ----------
    ops : in program order.
    sizes : bytes that each op allocates.
    candidates : positions of ops after which their result is the only activation that leads on (the paper's
        C(v)), ascending.
    """

    ops: tuple[fx.Node, ...]
    sizes: tuple[int, ...]
    candidates: tuple[int, ...]

    @classmethod
    def of(cls, program: Program) -> Chain:
        """Read the forward pass of a program."""
        ops = tuple(forward_ops(program))
        position = {n: i for i, n in enumerate(ops)}
        batch = _depends_on_batch(program, ops)
        last_use = {n: max((position[u] for u in n.users if u in position), default=position[n]) for n in ops}
        sizes = tuple(0 if _is_view(n) else sum(size_bytes(t) for t in tensors_of(n)) for n in ops)
        found: list[int] = []
        open_until: list[tuple[int, fx.Node]] = []
        for i, node in enumerate(ops):
            open_until = [(end, n) for end, n in open_until if end > i]
            if node in batch and last_use[node] > i:
                open_until.append((last_use[node], node))
            alone = len(open_until) == 1 and open_until[0][1] is node
            if alone and isinstance(node.meta["val"], torch.Tensor) and not _is_view(node):
                found.append(i)
        return cls(ops, sizes, tuple(found))


def _depends_on_batch(program: Program, ops: Sequence[fx.Node]) -> set[fx.Node]:
    """Ops whose result is an activation, not a constant or a parameter in another shape."""
    found = {program.nodes[i.node] for i in program.inputs if i.kind == "batch"}
    for node in ops:
        if any(a in found for a in node.all_input_nodes):
            found.add(node)
    return found


def _is_view(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    return any(r.alias_info is not None for r in node.target._schema.returns)


def _equal_segments(chain: Chain, segments: int | None) -> tuple[int, ...]:
    """Section 4.3: k segments of about equally many bytes, by default k = sqrt(n)."""
    places = chain.candidates
    count = max(1, round(math.sqrt(len(places) + 1))) if segments is None else segments
    if count > len(places) + 1:
        raise PlanError(
            f"the forward pass can be cut at {len(places)} places and not into {count} segments; use at most "
            f"{len(places) + 1}"
        )
    before = [0]
    for size in chain.sizes:
        before.append(before[-1] + size)
    kept: list[int] = []
    for part in range(1, count):
        # The last places must suffice for the segments still to come.
        usable = places[len(kept) : len(places) - (count - 1 - part)]
        later = [p for p in usable if not kept or p > kept[-1]]
        target = before[-1] * part / count
        kept.append(min(later, key=lambda p: abs(before[p + 1] - target)))
    return tuple(kept)


def _within(chain: Chain, budget_bytes: float) -> tuple[int, ...]:
    """Algorithm 3, memory planning with budget: a segment ends at the first candidate beyond b bytes."""
    candidates = set(chain.candidates)
    kept: list[int] = []
    temp = 0
    for i, size in enumerate(chain.sizes):
        temp += size
        if i in candidates and temp > budget_bytes:
            kept.append(i)
            temp = 0
    return tuple(kept)


def _costs(chain: Chain, kept: tuple[int, ...]) -> tuple[int, int]:
    """Algorithm 3's x, bytes kept between segments, and y, bytes of the largest segment."""
    bounds = [-1, *kept, len(chain.ops) - 1]
    inside = [sum(chain.sizes[a + 1 : b + 1]) for a, b in pairwise(bounds)]
    return sum(chain.sizes[i] for i in kept), max(inside)


def _searched(chain: Chain) -> tuple[int, ...]:
    """Section 4.3: with x and y of the plan for b = 0, try budgets around B = sqrt(x y)."""
    x, y = _costs(chain, _within(chain, 0))
    middle = math.sqrt(max(1, x) * y)
    # The paper searches [B / sqrt(2), sqrt(2) B]; a wider grid costs nothing here.
    grid = [middle * 2 ** (step / 4) for step in range(-8, 9)]
    plans = [_within(chain, b) for b in grid]
    return min(plans, key=lambda kept: sum(_costs(chain, kept)))
