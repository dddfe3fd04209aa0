"""Manifests for Kubernetes: as the API wants them, and their pods train."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from engine_trials import check_losses, trial_training

from trainyard.fleet.run.home import JobHome
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
    found = documents(manifest(a_job(), Grant((0, 1, 2, 3)), SITE, PODS, gang))
    for document in [*found["Job"], *found["Service"]]:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    (job,) = found["Job"]
    job["spec"]["completionMode"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)


def test_a_pod_for_each_node_that_finds_the_first() -> None:
    """The name of a pod of an Indexed Job is the Job's with its index, below the service that is its subdomain."""
    found = documents(manifest(a_job(), Grant((0, 1, 2, 3)), SITE, PODS, Kueue("research")))
    (job,), (service,) = found["Job"], found["Service"]
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (2, 2)
    template = job["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    service_name = service["metadata"]["name"]
    assert f"--master={job['metadata']['name']}-0.{service_name}:29500" in container["command"][-1]
    assert template["spec"]["subdomain"] == service_name
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert service["spec"]["clusterIP"] == "None"


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
        assert "--world=9 --master=gpt-0-0.gpt:29500" in script
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
    assert "--master=gpt-0.gpt:29500 " in script
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    processes = [
        subprocess.Popen(
            ["/bin/sh", "-c", script.replace("gpt-0.gpt:29500", "127.0.0.1:29517")],
            env=environment | {"JOB_COMPLETION_INDEX": str(index)},
        )
        for index in range(job["spec"]["completions"])
    ]
    assert [process.wait() for process in processes] == [0, 0]
    home = JobHome(tmp_path / "gpt")
    assert home.progress(is_over=True).ended
    check_losses(home, undisturbed, 8)
