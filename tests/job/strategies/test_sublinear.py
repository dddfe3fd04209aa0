"""Sublinear memory (arXiv 1604.06174): O(sqrt n) memory for one extra forward pass."""

import math
import sys
from functools import cache

import pytest
import torch
from counting import planned
from torch import nn

from trainyard.job.lower.cut import VIEWS
from trainyard.job.lower.lower import Lowered
from trainyard.program.flops import node_flops
from trainyard.program.model import Model

WIDTH, ROWS = 8, 64
LAYER_BYTES = 2 * WIDTH * ROWS * 4  # a product and a tanh


@cache
def chain(layers: int) -> Model:
    """Equal layers, as in the paper's analysis."""
    parts = [m for _ in range(layers) for m in (nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh())]
    batch = {"x": torch.zeros(ROWS, WIDTH)}
    return Model(f"chain-{layers}", nn.Sequential(*parts), lambda m, b: m(b["x"]).square().mean(), batch)


def peak_bytes(lowered: Lowered) -> int:
    """Most bytes of activations alive during the backward pass."""
    (stage,) = lowered.stages
    nodes = list(stage.segments["B"].graph.nodes)
    paths = {s.name for s in stage.segments["B"].inputs if s.kind == "value"}
    live = {n for n in nodes if n.op == "placeholder" and n.name in paths}
    peak = 0
    for i, node in enumerate(nodes):
        if (
            node.op == "call_function"
            and node.target not in VIEWS
            and isinstance(node.meta["val"], torch.Tensor)
        ):
            live.add(node)
        peak = max(peak, sum(n.meta["val"].numel() * 4 for n in live if n.meta["val"].dim() == 2))
        later = set(nodes[i + 1 :])
        live = {n for n in live if any(u in later for u in n.users)}
    return peak


def test_memory_grows_with_the_square_root() -> None:
    # Section 4.1: O(n / k) + O(k) = O(2 sqrt(n)) at k = sqrt(n).
    plain, ours = {}, {}
    for layers in (16, 64):
        plain[layers] = peak_bytes(planned(chain(layers), "", "1x1xA100-80G")[1])
        ours[layers] = peak_bytes(planned(chain(layers), "sublinear", "1x1xA100-80G")[1])
        bound = 2 * math.sqrt(layers) + 4
        assert ours[layers] <= bound * LAYER_BYTES
    assert plain[64] / plain[16] > 3
    assert ours[64] / ours[16] < 2.4


@pytest.mark.parametrize("options", ["", "segments=4", "budget_bytes=0", "budget_bytes=20000"])
def test_one_extra_forward_pass(options: str) -> None:
    # Section 4.2: "one additional forward pass".
    _, lowered = planned(chain(16), f"sublinear({options})", "1x1xA100-80G")
    segments = lowered.stages[0].segments
    forward = sum(node_flops(n) for n in segments["F"].graph.nodes)
    again = sum(node_flops(n) for n in segments["B"].graph.nodes if n.meta.get("recomputed"))
    assert 0 < again <= forward


def test_budget_bounds_segments() -> None:
    # Algorithm 3: a smaller budget keeps more and has smaller segments.
    kept = []
    for budget in (4, 8, 16):
        plan, _ = planned(chain(32), f"sublinear(budget_bytes={budget * LAYER_BYTES})", "1x1xA100-80G")
        kept.append(int(plan.reasons[-1].split()[0]) - 1)
    assert kept[0] > kept[1] > kept[2] > 0


def test_searched_budget_is_no_worse_than_equal_segments() -> None:
    equal = peak_bytes(planned(chain(48), "sublinear", "1x1xA100-80G")[1])
    searched = peak_bytes(planned(chain(48), "sublinear(budget_bytes=0)", "1x1xA100-80G")[1])
    assert searched <= 1.1 * equal


@pytest.mark.slow
@pytest.mark.long
def test_segments_may_be_longer_than_the_stack() -> None:
    parts = [nn.Linear(WIDTH, WIDTH), *(nn.Tanh() for _ in range(sys.getrecursionlimit()))]
    batch = {"x": torch.zeros(ROWS, WIDTH)}
    model = Model("deep", nn.Sequential(*parts), lambda m, b: m(b["x"]).square().mean(), batch)
    _, lowered = planned(model, "sublinear(segments=1)", "1x1xA100-80G")
    again = [n for n in lowered.stages[0].segments["B"].graph.nodes if n.meta.get("recomputed")]
    assert len(again) >= sys.getrecursionlimit()
