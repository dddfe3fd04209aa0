"""A plan carries the cluster that it was made for, where the cluster's name does not say what it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from trainyard.hardware import Cluster, Node, parse_cluster
from trainyard.hardware.parse import cluster_from_yaml, is_described_by_name
from trainyard.job import planning
from trainyard.job.plan import PlanError, load_plan, parse_plan
from trainyard.program.model import Model

NAME = "1x2xT4"


def small() -> Model:
    batch = {"x": torch.zeros(4, 64)}
    return Model("small", nn.Linear(64, 64), lambda m, b: m(b["x"]).square().mean(), batch)


def edited() -> Cluster:
    """Half the memory, and a tenth of its bandwidth, under the old name."""
    (node, *_) = parse_cluster(NAME).nodes
    device = replace(
        node.devices[0],
        memory_bytes=node.devices[0].memory_bytes // 2,
        memory_bandwidth_bytes_per_s=node.devices[0].memory_bandwidth_bytes_per_s / 10,
    )
    return Cluster(NAME, (Node(node.topology, (device,) * 2),))


def test_an_edited_cluster_that_kept_its_name_is_the_one_that_is_simulated(tmp_path: Path) -> None:
    model = small()
    (tmp_path / "edited.yaml").write_text(edited().to_yaml())
    made = planning.plan(model, str(tmp_path / "edited.yaml"), "data_parallel")
    made.plan.save(tmp_path / "plan.yaml")
    read = load_plan(tmp_path / "plan.yaml")
    assert read == made.plan
    assert read.cluster == NAME
    assert read.place == edited()
    assert f"{NAME} as the plan describes it" in read.explain()
    simulated = planning.simulate(read, model)
    assert simulated.step_s == made.simulation.step_s
    assert simulated.memory_limit_bytes == made.simulation.memory_limit_bytes
    preset = planning.simulate(read, model, NAME)
    assert preset.step_s < simulated.step_s


def test_a_preset_is_written_by_its_name_even_from_a_file() -> None:
    place = cluster_from_yaml(parse_cluster(NAME).to_yaml())
    plan = planning.plan(small(), place, "data_parallel").plan
    assert plan.place is None
    assert f"\ncluster: {NAME}\n" in plan.to_text()
    assert parse_plan(plan.to_text()) == plan


@pytest.mark.parametrize("name", ["my machines", "machines.yaml", "local:2", "1x2xA100-40G"])
def test_names_that_do_not_say_what_a_cluster_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path))  # nothing was measured here
    assert not is_described_by_name(replace(parse_cluster(NAME), name=name))
    assert not list(tmp_path.iterdir())


def test_a_cluster_that_cannot_be_read_is_refused() -> None:
    text = planning.plan(small(), edited(), "data_parallel").plan.to_text()
    for broken in (text.replace("num_devices: 2", "num_devices: 3"), text.replace("devices:", "device:", 1)):
        with pytest.raises(PlanError, match="the plan's cluster cannot be read"):
            parse_plan(broken)
