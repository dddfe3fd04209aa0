"""Manifests for Kubernetes: as the API wants them, and their pods train."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from backend_trials import check_losses, trial_training

from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.kubernetes import Kueue, Pods, Volcano, manifest
from trainyard.fleet.site import FleetError, Site
from trainyard.fleet.workload.job import Grant, Job
from trainyard.fleet.workload.training import Training, training_job

PODS = Pods("registry.example/trainyard:1", "shared", PurePosixPath("/jobs"))
SITE = Site.of_pools([("A100-80G", 2, 2)])
UNEVEN = Site.of_pools([("A100-80G", 1, 1), ("A100-80G", 2, 4)])


def a_job(name: str = "gpt", num_devices: int = 4) -> Job:
    return training_job(name, 0.0, num_devices, trial_training(8))


def documents(text: str) -> dict[str, list[dict[str, Any]]]:
    """Those of a manifest, by kind."""
    found: dict[str, list[dict[str, Any]]] = {}
    for document in yaml.safe_load_all(text):
        found.setdefault(document["kind"], []).append(document)
    return found


@pytest.mark.parametrize("gang", [Kueue("research"), Volcano("research")])
def test_the_api_takes_it(gang: Kueue | Volcano) -> None:
    kubernetes_validate = pytest.importorskip(
        "kubernetes_validate", reason="schemas are missing: pip install kubernetes-validate"
    )
    job = training_job("gpt", 0.0, 4, trial_training(8), cpus=6.0, memory_bytes=64e9)
    pods = replace(PODS, node_labels={"A100-80G": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}})
    found = documents(manifest(job, Grant((0, 1, 2, 3)), SITE, pods, gang))
    for document in [*found["Job"], *found["Service"]]:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    (one,) = found["Job"]
    one["spec"]["completionMode"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)


def test_volcano_takes_its_group() -> None:
    """By what its definition says of a PodGroup; a field with another name would be dropped, and with it the gang."""
    jsonschema = pytest.importorskip("jsonschema", reason="pip install kubernetes-validate")
    schema = yaml.safe_load(Path(__file__).with_name("podgroup_schema.yaml").read_text())
    (group,) = documents(manifest(a_job(), Grant((0, 1, 2, 3)), SITE, PODS, Volcano("research")))["PodGroup"]
    jsonschema.validate(group, schema)
    for change in ({"minMembers": 2}, {"minMember": "2"}, {"queue": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(group | {"spec": group["spec"] | change}, schema)


def test_a_pod_for_each_node_that_finds_the_first() -> None:
    """The name of a pod of an Indexed Job is the Job's with its index, below the service that is its subdomain."""
    found = documents(manifest(a_job(), Grant((0, 1, 2, 3)), SITE, PODS, Kueue("research")))
    (job,), (service,) = found["Job"], found["Service"]
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (2, 2)
    template = job["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    service_name = service["metadata"]["name"]
    assert f"--meeting={job['metadata']['name']}-0.{service_name}:29500" in container["command"][-1]
    assert template["spec"]["subdomain"] == service_name
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert service["spec"]["clusterIP"] == "None"


def test_a_pod_has_its_part_of_what_the_job_asks_for() -> None:
    """Six processors and 100 bytes for four devices, two of which each pod has."""
    job = training_job("gpt", 0.0, 4, trial_training(8), cpus=6.0, memory_bytes=100.0)
    expected = {"nvidia.com/gpu": "2", "cpu": "3000m", "memory": "50"}
    assert resources(job, Grant((0, 1, 2, 3)), SITE) == expected
    assert resources(job, Grant((0, 1)), SITE) == expected  # half of the job
    decided = Grant((0, 1, 2, 3), cpus=9.0)
    assert resources(job, decided, SITE) == {"nvidia.com/gpu": "2", "cpu": "4500m"}
    places = Site.uniform(2, 2, "local")
    assert resources(a_job(), Grant((0, 1, 2, 3)), places) == {"cpu": "2000m"}
    assert resources(job, Grant((0, 1, 2, 3)), places) == {"cpu": "3000m", "memory": "50"}


def resources(job: Job, grant: Grant, site: Site) -> dict[str, str]:
    """What a pod of a job asks for."""
    (found,) = documents(manifest(job, grant, site, PODS, Kueue("research")))["Job"]
    (container,) = found["spec"]["template"]["spec"]["containers"]
    requests: dict[str, str] = container["resources"]["requests"]
    assert container["resources"]["limits"] == requests
    return requests


def test_pods_come_to_nodes_of_their_type() -> None:
    mixed = Site.of_pools([("A100-80G", 1, 2), ("H100", 1, 2)])
    product = {"A100-80G": "NVIDIA-A100-SXM4-80GB", "H100": "NVIDIA-H100-80GB-HBM3"}
    labels = {kind: {"nvidia.com/gpu.product": name} for kind, name in product.items()}
    pods = replace(PODS, node_labels=labels)
    found = documents(manifest(a_job(), Grant((0, 1, 2, 3)), mixed, pods, Volcano()))["Job"]
    selectors = [job["spec"]["template"]["spec"]["nodeSelector"] for job in found]
    assert selectors == [labels["H100"], labels["A100-80G"]]
    clusters = [job["spec"]["template"]["spec"]["containers"][0]["command"][-1] for job in found]
    assert all("--cluster=1x2xH100+1x2xA100-80G" in script for script in clusters)  # ranks in the same order
    with pytest.raises(
        FleetError, match=r"has A100-80G, H100, and pods ask for devices of any type; say which labels nodes"
    ):
        manifest(a_job(), Grant((0, 1, 2, 3)), mixed, PODS, Volcano())


def test_kueue_admits_the_job() -> None:
    """It wants the queue as a label of the Job, not of its pods, a Job that does not run yet, and requests."""
    (job,) = documents(manifest(a_job(), Grant((0, 1, 2, 3)), SITE, PODS, Kueue("research")))["Job"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert job["spec"]["suspend"] is True
    assert "schedulerName" not in job["spec"]["template"]["spec"]
    assert all(c["resources"]["requests"] for c in job["spec"]["template"]["spec"]["containers"])


def test_volcano_takes_all_pods_or_none() -> None:
    """Nodes of 4, 4 and 1 devices: two Jobs in one group, with the ranks of the wide nodes first."""
    everything = Grant(tuple(range(9)))
    nine = training_job("gpt", 0.0, 9, Training("gpt-tiny", 9, 8))
    found = documents(manifest(nine, everything, UNEVEN, PODS, Volcano("research")))
    (group,), (wide, narrow) = found["PodGroup"], found["Job"]
    assert group["spec"] == {"minMember": 3, "queue": "research"}
    assert [job["spec"]["completions"] for job in (wide, narrow)] == [2, 1]
    scripts = []
    for job in (wide, narrow):
        template = job["spec"]["template"]
        assert template["spec"]["schedulerName"] == "volcano"
        assert template["metadata"]["annotations"] == {
            "scheduling.k8s.io/group-name": group["metadata"]["name"]
        }
        assert "suspend" not in job["spec"]
        scripts.append(template["spec"]["containers"][0]["command"][-1])
    assert "--first=$((0 + 4 * JOB_COMPLETION_INDEX))" in scripts[0]
    assert "--first=$((8 + 1 * JOB_COMPLETION_INDEX))" in scripts[1]
    for script in scripts:
        assert "--world=9 --meeting=gpt-0-0.gpt:29500" in script
        assert "--cluster=1x4xA100-80G+1x4xA100-80G+1x1xA100-80G" in script


def test_what_kubernetes_cannot_do() -> None:
    with pytest.raises(FleetError, match=r"has 2 and 1 devices on its nodes; Kueue .* or take Volcano"):
        manifest(a_job(), Grant((0, 1, 2)), SITE, PODS, Kueue("research"))
    with pytest.raises(FleetError, match="'Big Job': names in Kubernetes are"):
        manifest(a_job("Big Job"), Grant((0,)), SITE, PODS, Volcano())
    with pytest.raises(FleetError, match="Kubernetes gives whole devices"):
        manifest(a_job(), Grant((0,), share=0.5), SITE, PODS, Volcano())
    with pytest.raises(FleetError, match=r"is given device 99; the devices of cluster .* are 0 to"):
        manifest(a_job(), Grant((0, 99)), SITE, PODS, Volcano())


@pytest.mark.slow
def test_the_pods_train(tmp_path: Path, undisturbed: dict[int, float]) -> None:
    """What the pods of two nodes would run, on this machine, where they find each other by another name."""
    site = Site.uniform(2, 2, "local")
    pods = Pods("any", "any", PurePosixPath(tmp_path))
    (job,) = documents(manifest(a_job(), Grant((0, 1, 2, 3)), site, pods, Kueue("research")))["Job"]
    script = job["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    assert "--meeting=gpt-0.gpt:29500 " in script
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    processes = [
        subprocess.Popen(
            ["/bin/sh", "-c", script.replace("gpt-0.gpt:29500", "127.0.0.1:29517")],
            env=environment | {"JOB_COMPLETION_INDEX": str(index)},
        )
        for index in range(job["spec"]["completions"])
    ]
    assert [process.wait() for process in processes] == [0, 0]
    directory = JobDirectory(tmp_path / "gpt")
    assert directory.progress(is_over=True).ended
    check_losses(directory, undisturbed, 8)
