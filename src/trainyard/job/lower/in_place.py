"""Gradients that are computed where they are kept, without a copy: matrix products go into the buffer of their bucket."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

from trainyard.job.lower.buckets import Bucket, is_sharded
from trainyard.job.plan import Plan
from trainyard.program import spmd
from trainyard.program.program import tensor_of


def products_in_place(
    graph: fx.Graph, plan: Plan, buckets: Iterable[Bucket]
) -> dict[fx.Node, tuple[str, int]]:
    """Products that are the whole gradient of a parameter, and nothing else, in a step.

    Only where there is one microbatch, so that nothing is added up, in float32, as gradients are kept, and unless they
    are kept in parts.

    Returns
    -------
    The bucket of each, by name, and its place there.
    """
    if plan.num_microbatches > 1 or plan.dtype != "float32":
        return {}
    by_name = {bucket.name: bucket for bucket in buckets}
    found: dict[fx.Node, tuple[str, int]] = {}
    for node in graph.nodes:
        if node.target is not spmd.accumulate_grads:
            continue
        name, grads = node.args
        bucket = by_name[str(name)]
        if is_sharded(plan, bucket):
            continue
        for place, (grad, shape) in enumerate(zip(grads, bucket.shapes, strict=True)):
            if grad.target is torch.ops.aten.mm.default and len(grad.users) == 1 and grads.count(grad) == 1:
                assert tuple(tensor_of(grad).shape) == shape
                found[grad] = (bucket.name, place)
    return found


def write_in_place(bound: fx.GraphModule, views: dict[str, torch.Tensor]) -> None:
    """Let products of a graph write into views of the buckets.

    Parameters
    ----------
    bound : changed and compiled again.
    views : by the name of the product.
    """
    for node in list(bound.graph.nodes):
        if node.name in views:
            target = f"grad_of_{node.name}"
            bound.register_buffer(target, views[node.name], persistent=False)
            with bound.graph.inserting_before(node):
                node.kwargs = {"out": bound.graph.get_attr(target)}
            node.target = torch.ops.aten.mm.out
    bound.recompile()
