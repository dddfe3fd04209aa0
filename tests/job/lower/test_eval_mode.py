"""Models that are not training lower to no more communication than there is something to communicate."""

from __future__ import annotations

import torch
from torch import nn

from trainyard.hardware.parse import parse_cluster
from trainyard.job.catalog import parse_strategies
from trainyard.job.lower.lower import lower
from trainyard.job.planning import make_setting
from trainyard.job.setting import apply
from trainyard.job.task import Task
from trainyard.program import spmd
from trainyard.program.model import Model


def test_batch_norm_takes_no_statistics() -> None:
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3)).eval()
    batch = {"x": torch.zeros(4, 3, 8, 8)}
    model = Model("still", layers, lambda m, b: m(b["x"]).square().mean(), batch)
    setting = make_setting(Task(model), parse_cluster("1x2xA100-80G"))
    plan = apply(parse_strategies("data_parallel"), setting)
    (stage,) = lower(setting.task.program(plan.rows_per_microbatch), plan).stages
    nodes = [node for segment in stage.segments.values() for node in segment.graph.nodes]
    assert any(node.target is torch.ops.aten.native_batch_norm_backward.default for node in nodes)
    reduced = [node for node in nodes if node.target in spmd.STARTS.values()]
    assert [node.meta["moved_from"] for node in reduced] == [("mean",)]  # the loss
