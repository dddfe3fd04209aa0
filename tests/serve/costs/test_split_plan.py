"""How models are split over the devices that serve them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from trainyard.hardware.parse import parse_cluster
from trainyard.job.plan import PlanError
from trainyard.job.plan.read import parse_plan
from trainyard.job.planning import load_model
from trainyard.program.patterns import is_like
from trainyard.program.placement import Shard
from trainyard.program.program import tensor_of
from trainyard.serve.costs.forward_graph import forward_program
from trainyard.serve.costs.split_plan import split_plan, tensor_shards
from trainyard.serve.deploy import deploy
from trainyard.serve.errors import ServeError
from trainyard.serve.placement import Replica


@pytest.fixture(scope="module")
def gpt():
    with torch.device("meta"):
        return forward_program(load_model("gpt-tiny"))


def test_one_device_has_all(gpt):
    plan = split_plan(gpt)
    assert (plan.num_ranks, plan.placements, plan.stage_starts) == (1, {}, ())


def test_products_are_cut_by_columns_then_rows(gpt):
    plan = split_plan(gpt, tensor_parallel=2, pipeline_stages=2)
    assert plan.mesh_text == "2 pipeline x 2 tensor"
    assert {lies["tensor"].dim for lies in plan.placements.values()} == {0, 1}
    assert not any("norm" in path for path in plan.placements)
    part = tensor_shards(gpt, plan).program
    for whole, cut in zip(gpt.params, part.params, strict=True):
        factor = 2 if any(is_like(path, whole.path) for path in plan.placements) else 1
        assert tensor_of(gpt.nodes[whole.node]).numel() == factor * tensor_of(part.nodes[cut.node]).numel()


def test_plans_that_differ_in_stages_only_share_the_cut(gpt):
    whole, staged = split_plan(gpt, tensor_parallel=2), split_plan(gpt, tensor_parallel=2, pipeline_stages=2)
    assert tensor_shards(gpt, staged) is tensor_shards(gpt, whole)
    for other in (split_plan(gpt, tensor_parallel=4), replace(whole, placements={})):
        assert tensor_shards(gpt, other) is not tensor_shards(gpt, whole)


def test_stages_have_as_many_layers_as_can_be(gpt):
    num_layers = 2
    plan = split_plan(gpt, pipeline_stages=num_layers)
    (start,) = plan.stage_starts
    assert ".1." in start
    with pytest.raises(ServeError, match="3 stages of gpt-tiny, which has 2 layers"):
        split_plan(gpt, pipeline_stages=num_layers + 1)


def test_what_trains_refuses_it(gpt):
    with pytest.raises(PlanError, match="no backward"):
        parse_plan(split_plan(gpt, pipeline_stages=2).to_text())


def test_every_replica_of_a_deployment_has_it():
    found = deploy("llama3-8b", parse_cluster("8xh100"), tensor_parallel=2, pipeline_stages=2)
    groups = found.placement().groups
    assert [group.devices for group in groups] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    plan = groups[0].replicas[0].plan
    assert plan is not None
    assert plan.cluster == "8xh100"
    assert plan.placements["blocks.*.attention.out.weight"] == {"tensor": Shard(1)}
    assert plan.stage_starts[0].startswith("blocks.16.")


def test_shards_of_a_replica_are_in_one_node():
    found = deploy("llama3-8b", parse_cluster("2x3xh100"), tensor_parallel=2)
    assert [group.devices for group in found.placement().groups] == [(0, 1), (3, 4)]
    with pytest.raises(ServeError, match="3 replicas of 2 devices; allowed is 1 to 2"):
        deploy("llama3-8b", parse_cluster("2x3xh100"), tensor_parallel=2, num_replicas=3)
    staged = deploy("llama3-8b", parse_cluster("2x3xh100"), tensor_parallel=2, pipeline_stages=2)
    assert [group.devices for group in staged.placement().groups] == [(0, 1, 3, 4)]


def test_a_plan_for_other_devices_is_refused(gpt):
    with pytest.raises(ServeError, match="its plan is for 2 devices"):
        Replica("gpt-tiny", 1, 4, split_plan(gpt, tensor_parallel=2))
