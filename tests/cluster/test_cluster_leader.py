"""`leader: vm` on Kubernetes: a job that is led by a pod, which is reached through the API server alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_jobs import EXAMPLE, PRICES
from elastic_world import PodRunner
from machines import ROOT, Machines
from ruamel.yaml import YAML
from waiting import wait_for

from tests.cluster.control_plane import ControlPlane
from tests.cluster.installation import as_leader
from tests.cluster.kubelet import Kubelet, NodeShape, nodes_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

NODES = tuple(NodeShape(f"place-{name}", "zone-1", cpus=8, memory_gib=32) for name in "ab")


@pytest.fixture
def kubelet(plane: ControlPlane, machines: Machines, tmp_path: Path) -> Iterator[Kubelet]:
    volumes = tmp_path / "volumes"
    volumes.mkdir()
    with nodes_of(plane, *NODES, runner=PodRunner(plane, machines, volumes)) as found:
        yield found


@pytest.fixture
def namespace() -> str:
    """Of this try of the test."""
    return f"led-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def command(
    plane: ControlPlane, tmp_path: Path, namespace: str
) -> Callable[..., subprocess.CompletedProcess[str]]:
    plane.core().create_namespace({"metadata": {"name": namespace}})
    account = {"metadata": {"name": "scavenger-leader"}}
    plane.core().create_namespaced_service_account(namespace, account)
    as_leader(plane, namespace)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "SCAVENGER_ADDRESS"},
        **{f"XDG_{kind}_HOME": str(tmp_path / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")},
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}",
        "SCAVENGER_STORE": f"sqlite:///{tmp_path}/store/jobs.db",
        "KUBECONFIG": str(plane.kubeconfig()),
    }
    (tmp_path / "store").mkdir()

    def run(*words: str, within_s: float = 200.0, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "scavenger_cli", *words],
            env={**environment, **more},
            capture_output=True,
            text=True,
            timeout=within_s,
        )

    return run


def test_a_job_is_led_by_a_pod_shown_through_the_api_server_and_its_result_is_fetched(
    plane: ControlPlane, kubelet: Kubelet, tmp_path: Path, command: Any, namespace: str
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    written = YAML(typ="safe").load((EXAMPLE / "job.yaml").read_text())
    where = {"at": "kubernetes/tests", "namespace": namespace, "image": "scavenger:tests", **PRICES}
    written |= {
        "infra": {**where, "leader_service_account": "scavenger-leader"},
        "resources": {"cpus": 2, "memory": 4},
        "search": {"strategy": "full", "workers": [1], "batch_size": [32]},
        "goal": {"metric": "val_accuracy", "target": 0.9999, "max_epochs": 2, "epochs_hint": 2},
        "profile": {"steps": 4},
    }
    (folder / "job.yaml").write_text(json.dumps(written))
    shutil.copy(EXAMPLE / "train.py", folder)

    begun = command("optimize", str(folder / "job.yaml"), "--yes", "--detach")
    assert begun.returncode == 0, begun.stderr
    leaders = json.loads(command("leader", "list", "-o", "json").stdout)["leaders"]
    assert [(one["name"], one["state"], one["namespace"]) for one in leaders] == [
        (written["name"], "there", namespace)
    ]

    followed = command("leader", "follow", written["name"], "-o", "json", within_s=240.0)
    assert followed.returncode in (0, 4), followed.stderr
    told = json.loads(followed.stdout)
    assert (Path(told["folder"]) / "record.json").is_file()
    assert list(Path(told["folder"]).rglob("*.keras"))
    assert told["state"] == "target_missed"
    wait_for(lambda: not plane.core().list_namespaced_pod(namespace).items)
    wait_for(lambda: not _secrets(plane, namespace))


def _secrets(plane: ControlPlane, namespace: str) -> list[str]:
    """Secrets of the namespace that are not the cluster's own."""
    found = plane.core().list_namespaced_secret(namespace).items
    return [one.metadata.name for one in found if one.type == "Opaque"]
