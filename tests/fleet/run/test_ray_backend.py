"""Trainings as actors of a real Ray cluster, on virtual nodes of this machine."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from backend_trials import (
    check_disturbed,
    check_losses,
    check_lost_node,
    check_recovery,
    check_shares_change,
    check_sharing,
    check_sharing_is_refused,
    check_workload,
    kill_somebody,
    nodes_of,
    rank_processes,
    trial_training,
    wait_for,
)
from gang_trials import check_gangs, check_gangs_of_a_manager, check_resizing
from guide_commands import follow_guide
from own_scripts import check_ddp_on_nodes

from trainyard.fleet.errors import FleetError
from trainyard.fleet.run.backend import BackendOptions, Progress
from trainyard.fleet.run.backends import make_backend
from trainyard.fleet.run.ranks import Ranks
from trainyard.fleet.workload.job import Grant
from trainyard.fleet.workload.training_job import training_job
from trainyard.hardware.cluster import Cluster, Node

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'trainyard-ml[ray]'")
# These need Ray to be imported, and it may be missing above.
nodes = import_module("trainyard.fleet.run.ray_nodes")
ray_backend = import_module("trainyard.fleet.run.ray_backend")


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    """A head without devices, and nodes with three of them and with one."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "num_gpus": 0, "include_dashboard": False}
    ray_cluster = Cluster(initialize_head=True, head_node_args=head)
    for count in (3, 1):
        add_node(ray_cluster, count)
    yield ray_cluster
    ray.shutdown()
    ray_cluster.shutdown()


def add_node(ray_cluster: Any, num_devices: int) -> None:
    ray_cluster.add_node(num_cpus=8, num_gpus=num_devices, resources={"accelerator_type:local": 1})


def lose_node(ray_cluster: Any, number: str) -> None:
    """Its raylet is killed."""
    (its,) = (node for node in ray_cluster.worker_nodes if node.node_id == number)
    ray_cluster.remove_node(its, allow_graceful=False)


@pytest.fixture(scope="module")
def cluster(ray_cluster: Any) -> str:
    """Its address."""
    return str(ray_cluster.address)


@pytest.mark.slow
@pytest.mark.long
def test_five_jobs_end_with_the_losses_of_undisturbed_ones(
    cluster: str, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    check_workload(ray_backend.RayBackend(nodes.ray_cluster(cluster), tmp_path), undisturbed)
    wait_for(lambda: _free_gpus() == 4)


@pytest.mark.slow
def test_a_job_that_is_killed_goes_on_from_its_checkpoint(
    cluster: str, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    cluster = nodes.ray_cluster(cluster)
    check_recovery(
        ray_backend.RayBackend(cluster, tmp_path),
        lambda: ray_backend.RayBackend(cluster, tmp_path),
        undisturbed,
    )
    wait_for(lambda: _free_gpus() == 4)


@pytest.mark.slow
def test_a_script_of_ones_own_on_two_nodes(cluster: str, tmp_path: Path) -> None:
    check_ddp_on_nodes(ray_backend.RayBackend(nodes.ray_cluster(cluster), tmp_path / "jobs"), tmp_path)
    wait_for(lambda: _free_gpus() == 4)


@pytest.mark.slow
@pytest.mark.long
def test_a_job_outlives_its_driver(cluster: str, tmp_path: Path, undisturbed: dict[int, float]) -> None:
    """The one that started it disconnects; the next one finds it, and kills it as it is too slow to leave."""
    cluster = nodes.ray_cluster(cluster)
    job, grant = training_job("a", 0.0, 4, trial_training(400)), Grant((0, 1, 2, 3))
    ray_backend.RayBackend(cluster, tmp_path).start(job, grant)
    ray.shutdown()
    backend = ray_backend.RayBackend(cluster, tmp_path, BackendOptions(patience_s=0.0), address=cluster)
    assert backend.adopt(job, grant)
    wait_for(lambda: backend.directory("a").saved_steps() >= 4)
    backend.stop(["a"])
    assert not rank_processes(backend.directory("a"))
    assert backend.progress("a").failure is None
    check_losses(backend.directory("a"), undisturbed, 4)
    wait_for(lambda: _free_gpus() == 4)


@pytest.mark.slow
@pytest.mark.long
def test_a_job_that_ray_has_not_placed_leaves_at_once(cluster: str, tmp_path: Path) -> None:
    """Another has its device; the driver is not to wait for the time in which running jobs write their checkpoints."""
    cluster = nodes.ray_cluster(cluster)
    blocker, waiting = (ray_backend.RayBackend(cluster, tmp_path / name) for name in "ab")
    grant = Grant((int(cluster.first_device[int(cluster.devices_per_node.argmin())]),))
    blocker.start(training_job("first", 0.0, 1, trial_training(400)), grant)
    wait_for(lambda: _free_gpus() == 3)
    waiting.start(training_job("second", 0.0, 1, trial_training(8)), grant)
    time.sleep(2.0)
    assert not waiting.is_over("second")
    began_s = time.monotonic()
    waiting.stop(["second"])
    assert time.monotonic() - began_s < waiting.patience_s / 6
    assert waiting.is_over("second")
    assert waiting.progress("second") == Progress(0)
    waiting.start(training_job("second", 0.0, 1, trial_training(8)), grant)
    blocker.close()
    wait_for(lambda: waiting.progress("second").ended)
    wait_for(lambda: _free_gpus() == 4)


@pytest.mark.slow
@pytest.mark.long
def test_a_node_is_lost_and_comes_back(
    ray_cluster: Any, cluster: str, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    """Its raylet is killed; the one that is started for it is another node to Ray."""
    cluster = nodes.ray_cluster(cluster)
    sizes = cluster.devices_per_node.tolist()
    numbers = [node.number for node in nodes.ray_nodes()]
    backend = ray_backend.RayBackend(cluster, tmp_path)
    check_lost_node(
        backend,
        undisturbed,
        lambda node: lose_node(ray_cluster, numbers[node]),
        lambda node: add_node(ray_cluster, sizes[node]),
    )
    wait_for(lambda: _free_gpus() == 4)


@pytest.mark.slow
@pytest.mark.long
def test_daemons_of_nodes_are_killed_and_come_back(
    ray_cluster: Any, cluster: str, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    backend = ray_backend.RayBackend(nodes.ray_cluster(cluster), tmp_path)

    def disturb(chance: random.Random) -> bool:
        there = {
            node.node_id for node in ray_cluster.worker_nodes
        }  # Ray lists others, too, until it misses them
        its = chance.choice([node for node in nodes.present_nodes() if node.number in there])
        lose_node(ray_cluster, its.number)
        add_node(ray_cluster, its.host.num_devices)
        return True

    check_disturbed(backend, undisturbed, disturb, times=10)
    wait_for(lambda: _free_gpus() == 4)


@pytest.mark.slow
def test_a_backend_that_starts_while_a_node_is_away_waits_for_it(
    ray_cluster: Any, cluster: str, tmp_path: Path
) -> None:
    """Nodes keep their numbers: grants that were kept say them."""
    cluster = nodes.ray_cluster(cluster)
    ray_backend.RayBackend(cluster, tmp_path)
    lose_node(ray_cluster, nodes.ray_nodes()[0].number)
    wait_for(lambda: len(nodes.present_nodes()) == 1)
    backend = ray_backend.RayBackend(cluster, tmp_path)
    assert backend.away() == {0}
    with pytest.raises(FleetError, match="Ray has"):
        ray_backend.RayBackend(cluster, tmp_path / "of another cluster")
    add_node(ray_cluster, cluster.nodes[0].num_devices)
    wait_for(lambda: not backend.away())
    wait_for(lambda: _free_gpus() == 4)


def test_a_node_that_is_started_again_has_the_number_that_it_had(tmp_path: Path) -> None:
    first, second, wide = _node("x", "10.0.0.1", 2), _node("y", "10.0.0.2", 2), _node("z", "10.0.0.2", 4)
    memory = nodes.RayMemory(tmp_path / "nodes.json")
    known = memory.renewed((), (first, second, wide))
    # Both are gone; at the address of the second there is one again, and one with as much at another.
    elsewhere, again = _node("a", "10.0.0.3", 2), _node("b", "10.0.0.2", 2)
    assert memory.renewed(known, (elsewhere, again, wide)) == (elsewhere, again, wide)
    assert memory.renewed(known, (again, wide)) == (first, again, wide)
    assert memory.renewed(known, ()) == known
    assert memory.renewed(known, (*known, elsewhere)) == (*known, elsewhere)


def _node(number: str, address: str, num_devices: int) -> Any:
    return nodes.RayNode(number, address, Node.named("local", num_devices))


@pytest.mark.slow
@pytest.mark.long
def test_a_job_grows_and_shrinks(cluster: str, tmp_path: Path, undisturbed: dict[int, float]) -> None:
    check_resizing(ray_backend.RayBackend(nodes.ray_cluster(cluster), tmp_path), undisturbed)
    wait_for(lambda: _free_gpus() == 4)


@pytest.mark.long
@pytest.mark.slow
def test_gangs_have_all_their_devices_or_none(
    cluster: str, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    check_gangs(ray_backend.RayBackend(nodes.ray_cluster(cluster), tmp_path), undisturbed)
    wait_for(lambda: _free_gpus() == 4)


@pytest.mark.long
@pytest.mark.slow
def test_gangs_in_the_queue_have_all_their_devices_or_none(
    cluster: str, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    check_gangs_of_a_manager(
        ray_backend.RayBackend(nodes.ray_cluster(cluster), tmp_path), undisturbed, _free_gpus
    )
    wait_for(lambda: _free_gpus() == 4)


@pytest.mark.slow
@pytest.mark.long
def test_jobs_are_killed_ten_times(cluster: str, tmp_path: Path, undisturbed: dict[int, float]) -> None:
    backend = ray_backend.RayBackend(nodes.ray_cluster(cluster), tmp_path)
    check_disturbed(backend, undisturbed, partial(kill_somebody, backend.folder), times=10)
    wait_for(lambda: _free_gpus() == 4)


@pytest.mark.slow
@pytest.mark.long
def test_two_jobs_share_a_device(cluster: str, tmp_path: Path, undisturbed: dict[int, float]) -> None:
    check_sharing(
        ray_backend.RayBackend(nodes.ray_cluster(cluster), tmp_path, BackendOptions(shares=True)), undisturbed
    )
    wait_for(lambda: _free_gpus() == 4)


@pytest.mark.slow
@pytest.mark.long
def test_a_share_changes_while_its_job_runs(
    cluster: str, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    nodes.connect(cluster)
    check_shares_change(
        ray_backend.RayBackend(nodes_of(1), tmp_path, BackendOptions(shares=True)), undisturbed
    )
    wait_for(lambda: _free_gpus() == 4)


@pytest.mark.slow
@pytest.mark.long
def test_the_command_of_the_guide(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    sizes = nodes.ray_cluster(cluster).devices_per_node.tolist()
    text = "+".join(f"1x{size}xlocal" for size in sizes)
    assert "off by" in follow_guide("ray", text, tmp_path)
    wait_for(lambda: _free_gpus() == 4)


def test_a_job_has_the_memory_that_it_asks_for() -> None:
    """A gang has the devices of a node in one bundle, or in a half for each where devices are shared."""
    own = Node.named("A100-80G", 2, 6.5, 2.5e9)
    whole, shared = Ranks(0, 2, 2, "", ""), Ranks(0, 2, 2, "", "", "0,1")
    assert ray_backend._bundles(whole, own) == [{"GPU": 2.0, "CPU": 6.0, "memory": 2.5e9}]
    assert ray_backend._bundles(shared, own) == [{"GPU": 0.5, "CPU": 6.0, "memory": 2.5e9}, {"GPU": 0.5}]
    assert ray_backend._bundles(whole, replace(own, cpus=0.5, memory_bytes=0.0)) == [{"GPU": 2.0}]


@pytest.mark.slow
@pytest.mark.long
def test_memory_is_counted_where_a_job_asks_for_it(cluster: str, tmp_path: Path) -> None:
    cluster = nodes.ray_cluster(cluster)
    backend = ray_backend.RayBackend(cluster, tmp_path)
    before_bytes = ray.available_resources()["memory"]
    job = training_job("a", 0.0, 1, trial_training(400), memory_bytes=1e8)
    backend.start(job, Grant((0,), memory_bytes=1e8))
    wait_for(lambda: _free_gpus() == 3)
    assert before_bytes - ray.available_resources()["memory"] == 1e8
    backend.close()
    assert backend.own(0, 1, Grant((0,))).memory_bytes == 0.0
    wait_for(lambda: _free_gpus() == 4)


@pytest.mark.slow
def test_nodes_and_limits(cluster: str, tmp_path: Path) -> None:
    cluster = nodes.ray_cluster(cluster)
    assert sorted((h.device_type, h.num_devices, h.cpus) for h in cluster.nodes) == [
        ("local", 1, 8.0),
        ("local", 3, 8.0),
    ]
    assert {node.host.device_type for node in nodes.ray_nodes({"local": "H100"})} == {"H100"}
    with pytest.raises(FleetError, match="3 devices on node 2, Ray has 0 there"):
        ray_backend.RayBackend(Cluster.of_pools([("local", 2, 1), ("local", 1, 3)]), tmp_path)
    check_sharing_is_refused(ray_backend.RayBackend(cluster, tmp_path))


@pytest.mark.parametrize(
    ("on_node", "devices"),
    [(None, "0,2"), ("", "0,2"), ("4,5,6,7", "4,6"), ("GPU-a,GPU-b,GPU-c", "GPU-a,GPU-c")],
)
def test_devices_are_among_those_that_ray_was_given(
    on_node: str | None, devices: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if on_node is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", on_node)
    assert ray_backend._visible("0,2") == devices
    assert ray_backend._visible("") == ""


def test_without_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ray says it; whether there is one on this machine is not for this test to say."""

    def init(**_: object) -> None:
        raise ConnectionError("no running instance")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(
        FleetError, match=r"no Ray cluster at 'auto'; start one with: ray start --head.*no running"
    ):
        ray_backend.RayBackend(nodes_of(2, 2), tmp_path)


def test_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, ray_backend.__name__)
    with pytest.raises(
        FleetError, match=r"needs 'ray', which is not installed: pip install 'trainyard-ml\[ray\]'"
    ):
        make_backend("ray", nodes_of(2, 2), tmp_path)


def _free_gpus() -> float:
    return float(ray.available_resources().get("GPU", 0))
