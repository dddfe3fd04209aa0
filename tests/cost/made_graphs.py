"""Small graphs of operands that have no memory, and their traces."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from trainyard.cost.trace import trace_graph


def fake_graph(function, *operands):
    return make_fx(function, tracing_mode="fake")(*operands).graph


def small_graph():
    return fake_graph(lambda x, w: (torch.relu(x @ w.t()),), torch.empty(64, 32), torch.empty(16, 32))


def small_trace():
    return trace_graph(small_graph(), ["x", "w"], ["y"])
