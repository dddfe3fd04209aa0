"""Reuse writes over what dies, and never over what is still needed."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from trainyard.job.lower.in_place import apply_writes, write_over_operands


def _traced(function, *shapes):
    inputs = [torch.randn(shape) for shape in shapes]
    module = make_fx(function, tracing_mode="fake")(*inputs)
    return module, inputs


def _check(function, expected, *shapes):
    module, inputs = _traced(function, *shapes)
    kept = [x.clone() for x in inputs]
    before = module(*inputs)
    assert write_over_operands(module.graph) == expected
    apply_writes(module, lambda bucket, place: torch.empty(0))
    module.recompile()
    after = module(*inputs)
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    for x, same in zip(inputs, kept, strict=True):
        assert torch.equal(x, same)


def test_a_dying_operand_is_written_over():
    _check(lambda x, y: x + torch.mm(x, y).view(3, 3), 1, (3, 3), (3, 3))
    _check(lambda x, y: (torch.mm(x, y) + x) * y - x, 3, (3, 3), (3, 3))


def test_what_is_needed_later_is_not():
    def saved(x, y):
        z = torch.mm(x, y)
        return z + x, z

    def viewed(x, y):
        z = torch.mm(x, y)
        return z.t() + x, z.sum(0)

    _check(saved, 0, (3, 3), (3, 3))
    _check(viewed, 0, (3, 3), (3, 3))
    _check(lambda x, y: x + y, 0, (3, 3), (3, 3))


def test_results_of_another_shape_or_layout_are_not():
    _check(lambda x, y: torch.relu(x) + y, 0, (3,), (3, 3))
    _check(lambda x, y: torch.relu(x).expand(3, 3) + y, 0, (3,), (3, 3))
    _check(lambda x, y: y - torch.relu(x), 0, (3, 3), (3, 3))
    _check(lambda x, y: y + torch.relu(x).t(), 0, (3, 3), (3, 3))
