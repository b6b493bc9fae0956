"""`scavenger optimize` with `infra: kubernetes`: a search over pods, a drained node, a lost one, and the bill."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from audits import AUDIT_FILE, verify_audit
from cluster_jobs import PRICES, ClusterJob
from machines import Machines
from pod_machines import MachineRunner

from scavenger.store import Store
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubelet import Kubelet, NodeShape, nodes_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NODES = tuple(NodeShape(f"machine-{name}", "zone-1", cpus=8, memory_gib=32) for name in "abcd")
TRAINED, WITHIN_S = 1437, 480.0


@pytest.fixture
def kubelet(plane: ControlPlane, machines: Machines) -> Iterator[Kubelet]:
    with nodes_of(plane, *NODES, runner=MachineRunner(machines)) as found:
        yield found


def test_a_job_searches_trains_through_the_loss_of_a_node_and_a_drain_and_leaves_no_pod(
    plane: ControlPlane, kubelet: Kubelet, machines: Machines, tmp_path: Path
) -> None:
    job = ClusterJob(plane, machines, tmp_path, namespace="training", workers=2)
    try:
        first, second = job.until(job.workers)
        _drain(plane, job.namespace, first)
        job.until(lambda: _replaced(job, {first, second}, other_than=first))
        third = next(name for name in job.workers() if name != second)
        kubelet.delete(plane.core().read_namespaced_pod(third, job.namespace).spec.node_name)
        out, err = job.process.communicate(timeout=WITHIN_S)
    finally:
        job.process.kill()

    assert job.process.returncode in (0, 4), err
    report = json.loads(out)
    assert report["choice"]["vm"] == "2cpu-4gib"
    assert verify_audit(tmp_path / ".scavenger" / report["job"]["id"] / AUDIT_FILE, TRAINED) == []
    per_hour = 2 * PRICES["usd_per_cpu_hour"] + 4 * PRICES["usd_per_gib_hour"]
    most = (report["actual"]["time_s"] + 60) * per_hour * 6 / 3600
    assert 0 < report["actual"]["cost_usd"] < most
    with Store.open(job.store) as opened:
        told = [event.data for event in opened.events(report["job"]["id"]) if event.kind == "worker"]
        assert {intent.state for intent in opened.intents()} == {"GONE"}
    assert any(one["state"] == "preempted" for one in told)
    left = plane.core().list_namespaced_pod(job.namespace).items
    assert [pod.metadata.name for pod in left if pod.status.phase in ("Pending", "Running")] == []


@pytest.mark.long
def test_a_node_whose_pods_keep_dying_gets_none_of_those_that_replace_them(
    plane: ControlPlane, kubelet: Kubelet, machines: Machines, tmp_path: Path
) -> None:
    bad, good = NODES[0].name, NODES[1].name
    for node in NODES[1:]:
        plane.core().patch_node(node.name, {"spec": {"unschedulable": True}})
    goal = {"metric": "val_accuracy", "target": 0.99999, "max_epochs": 5000, "epochs_hint": 10}
    job = ClusterJob(
        plane,
        machines,
        tmp_path,
        namespace="failing",
        workers=3,
        goal=goal,
        elastic={"failures": {"per_host": 3}, "policy": "fixed"},
    )
    try:
        before = job.until(job.workers)
        assert set(before.values()) == {bad}
        plane.core().patch_node(good, {"spec": {"unschedulable": False}})
        for name in before:
            kubelet.pod(name).kill()
        # the scheduler alone would spread them over both nodes
        after = job.until(lambda: _others(job, before), within_s=240.0)
        assert set(after.values()) == {good}
    finally:
        job.close()


def _replaced(job: ClusterJob, before: set[str], *, other_than: str) -> bool:
    found = set(job.workers())
    return bool(found) and other_than not in found and bool(found - before)


def _others(job: ClusterJob, before: dict[str, str]) -> dict[str, str]:
    found = job.workers()
    return {} if set(found) & set(before) else found


def _drain(plane: ControlPlane, namespace: str, pod: str) -> None:
    """As `kubectl drain` does: the node takes no more pods, and the pod is evicted with its grace period."""
    node = plane.core().read_namespaced_pod(pod, namespace).spec.node_name
    plane.core().patch_node(node, {"spec": {"unschedulable": True}})
    body = {"metadata": {"name": pod, "namespace": namespace}}
    plane.core().create_namespaced_pod_eviction(pod, namespace, body)
