"""A HorizontalPodAutoscaler before a real API server and controllers: it sets `replicas`, and the job follows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from custom_metrics import CustomMetrics, custom_metrics
from elastic_world import DEPLOY, ElasticWorld, PodRunner, until
from kubernetes import client
from machines import ROOT, Machines
from ruamel.yaml import YAML

from scavenger.domain.elastic_job import GROUP, KIND, PLURAL, VERSION
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubelet import NodeShape, nodes_of

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

NODES = tuple(NodeShape(f"scaled-{name}", "zone-1", cpus=6, memory_gib=32) for name in "ab")
SPEC: dict[str, Any] = {
    "job": {
        "train": "train:job",
        "resources": {"cpus": 2, "memory": 4},
        "search": {"strategy": "full", "workers": "1..3", "batch_size": [32]},
        "goal": {"metric": "val_accuracy", "target": 0.99999, "max_epochs": 1000, "epochs_hint": 10},
        "profile": {"steps": 4},
    },
    "code": {"configMap": "digits"},
    "store": {"claim": "digits"},
    "replicas": 1,
}


@pytest.fixture
def world(plane: ControlPlane, machines: Machines, tmp_path: Path) -> Iterator[ElasticWorld]:
    with nodes_of(plane, *NODES, runner=PodRunner(plane, machines, tmp_path)):
        found = ElasticWorld(plane, tmp_path, "scaled")
        found.add_code("digits", ROOT / "examples" / "digits" / "train.py")
        found.add_claim("digits")
        yield found
        found.close()


@pytest.fixture
def metrics(plane: ControlPlane) -> Iterator[CustomMetrics]:
    with custom_metrics(plane, f"{PLURAL}.{GROUP}", (KIND, f"{GROUP}/{VERSION}")) as found:
        yield found


def test_an_autoscaler_sets_replicas_by_a_metric_and_the_job_follows(
    world: ElasticWorld, metrics: CustomMetrics
) -> None:
    metric = (world.namespace, "digits", "workers_affordable")
    metrics.values[metric] = 1.0
    world.start_operator()
    world.add("digits", SPEC)
    until(lambda: world.status("digits").get("phase") == "Running", 240.0, what="it runs")

    scaler = YAML(typ="safe").load((DEPLOY / "autoscaler.yaml").read_text())
    scaler["apiVersion"] = "autoscaling/v2beta2"  # of Kubernetes 1.20, with the same keys
    autoscaling = client.CustomObjectsApi(world.core.api_client)
    place = ("autoscaling", "v2beta2", world.namespace, "horizontalpodautoscalers")
    autoscaling.create_namespaced_custom_object(*place, scaler)
    until(lambda: metrics.asked > 0, 90.0, what="the autoscaler asks for the metric")
    assert world.job("digits")["spec"]["replicas"] == 1

    metrics.values[metric] = 2.0
    until(lambda: world.job("digits")["spec"]["replicas"] == 2, 60.0, what="it asks for two")
    until(lambda: world.status("digits").get("replicas") == 2, 240.0, what="two workers train")

    metrics.values[metric] = 9.0
    until(lambda: world.job("digits")["spec"]["replicas"] == 3, 60.0, what="it asks for no more than three")
    metrics.values[metric] = 1.0
    until(lambda: world.job("digits")["spec"]["replicas"] == 1, 60.0, what="it asks for one")
    until(lambda: world.status("digits").get("replicas") == 1, 240.0, what="one worker trains on")
    assert world.status("digits")["phase"] == "Running"
