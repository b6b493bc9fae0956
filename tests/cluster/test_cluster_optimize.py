"""`scavenger optimize` with `infra: kubernetes`: a search over pods, a drained node, a lost one, and the bill."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from machines import AGENT, ROOT, Machines, unavailable
from pod_machines import MachineRunner
from ruamel.yaml import YAML

from scavenger.control.training.audit import AUDIT_FILE, verify_audit
from scavenger.store import Store
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubelet import Kubelet, NodeShape, nodes_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

NODES = tuple(NodeShape(f"machine-{name}", "zone-1", cpus=4, memory_gib=16) for name in "abcd")
EXAMPLE = ROOT / "examples" / "digits"
TRAINED, WITHIN_S = 1437, 240.0
PRICES = {"usd_per_cpu_hour": 0.03, "usd_per_gib_hour": 0.004}


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    if reason := unavailable():
        pytest.skip(reason)
    with Machines(AGENT) as found:
        yield found


@pytest.fixture
def kubelet(plane: ControlPlane, machines: Machines) -> Iterator[Kubelet]:
    with nodes_of(plane, *NODES, runner=MachineRunner(machines)) as found:
        yield found
    for node in NODES:
        with contextlib.suppress(ApiException):  # the test has deleted one
            plane.core().delete_node(node.name)


def test_a_job_searches_trains_through_the_loss_of_a_node_and_a_drain_and_leaves_no_pod(
    plane: ControlPlane, kubelet: Kubelet, machines: Machines, tmp_path: Path
) -> None:
    plane.core().create_namespace({"metadata": {"name": "training"}})
    spec = YAML(typ="safe").load((EXAMPLE / "job.yaml").read_text())
    spec |= {
        "infra": {"at": "kubernetes/tests", "namespace": "training", "image": "scavenger:tests", **PRICES},
        "resources": {"cpus": 2, "memory": 4},
        "search": {"strategy": "full", "workers": [2], "batch_size": [32]},
        "goal": {"metric": "val_accuracy", "target": 0.9999, "max_epochs": 30, "epochs_hint": 10},
        "profile": {"steps": 8},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(spec))
    shutil.copy(EXAMPLE / "train.py", tmp_path)
    store = f"sqlite:///{tmp_path}/jobs.db"  # in the job's folder, where it must not be packed
    driver = _started(plane, machines, tmp_path, store)
    try:
        first, second = _eventually(lambda: _workers(plane, store), driver)
        _drain(plane, first)
        _eventually(lambda: _replaced(plane, store, {first, second}, other_than=first), driver)
        third = next(name for name in _workers(plane, store) if name != second)
        kubelet.delete(plane.core().read_namespaced_pod(third, "training").spec.node_name)
        out, err = driver.communicate(timeout=WITHIN_S)
    finally:
        driver.kill()

    assert driver.returncode in (0, 4), err
    report = json.loads(out)
    assert report["choice"]["vm"] == "2cpu-4gib"
    assert verify_audit(tmp_path / ".scavenger" / report["job"]["id"] / AUDIT_FILE, TRAINED) == []
    per_hour = 2 * PRICES["usd_per_cpu_hour"] + 4 * PRICES["usd_per_gib_hour"]
    most = (report["actual"]["time_s"] + 60) * per_hour * 6 / 3600
    assert 0 < report["actual"]["cost_usd"] < most
    with Store.open(store) as opened:
        told = [event.data for event in opened.events(report["job"]["id"]) if event.kind == "worker"]
        assert {intent.state for intent in opened.intents()} == {"GONE"}
    assert any(one["state"] == "preempted" for one in told)
    left = plane.core().list_namespaced_pod("training").items
    assert [pod.metadata.name for pod in left if pod.status.phase in ("Pending", "Running")] == []


def _started(plane: ControlPlane, machines: Machines, folder: Path, store: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        **{f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")},
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}",
        "SCAVENGER_ADDRESS": machines.address,
        "KUBECONFIG": str(plane.kubeconfig()),
    }
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "scavenger_cli", "optimize", str(folder / "job.yaml")),
            *("--yes", "--audit", "-o", "json", "--store", store),
        ],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _workers(plane: ControlPlane, store: str) -> list[str]:
    """The pods of workers that train, once there are two and the job runs."""
    try:
        with Store.open(store) as opened:
            jobs = [job for job in opened.jobs(limit=1) if job.phase == "running"]
            hosts = {
                one.host
                for job in jobs
                for one in opened.processes(job.id)
                if (one.role, one.state) == ("worker", "training")
            }
    except Exception:  # noqa: BLE001 - the store is not there yet
        return []
    pods = plane.core().list_namespaced_pod("training").items
    found = [
        pod.metadata.name for pod in pods if pod.status.pod_ip in hosts and pod.status.phase == "Running"
    ]
    return found if len(found) == 2 else []


def _replaced(plane: ControlPlane, store: str, before: set[str], *, other_than: str) -> bool:
    found = set(_workers(plane, store))
    return bool(found) and other_than not in found and bool(found - before)


def _drain(plane: ControlPlane, pod: str) -> None:
    """As `kubectl drain` does: the node takes no more pods, and the pod is evicted with its grace period."""
    node = plane.core().read_namespaced_pod(pod, "training").spec.node_name
    plane.core().patch_node(node, {"spec": {"unschedulable": True}})
    body = {"metadata": {"name": pod, "namespace": "training"}}
    plane.core().create_namespaced_pod_eviction(pod, "training", body)


def _eventually(what: Callable[[], Any], process: subprocess.Popen[str], within_s: float = 120.0) -> Any:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if found := what():
            return found
        if process.poll() is not None:
            raise AssertionError(f"it ended first, {process.returncode}: {process.communicate()}")
        time.sleep(0.2)
    process.kill()
    raise AssertionError(f"it did not happen within {within_s} s: {process.communicate()}")
