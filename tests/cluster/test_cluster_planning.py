"""What a real cluster says of sizes and prices before a pod is started."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from cluster_world import NODES, Interceptor, KubernetesWorld, worlds

from scavenger.cloud.kubernetes.prices import PodCatalog
from scavenger.cloud.kubernetes.provider import KubernetesProvider
from scavenger.domain.vm_settings import KubernetesSettings
from scavenger.errors import ConfigurationError
from scavenger.testing.provider_conformance import make_request
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubelet import Kubelet, NodeShape, nodes_of

pytestmark = pytest.mark.slow

SPOT = NodeShape("node-spot", "tests-a", cpus=16, memory_gib=64, labels=(("spot", "true"),))
TAINTED = NodeShape(
    "node-large", "tests-b", cpus=96, memory_gib=384, taints=(("team", "vision", "NoSchedule"),)
)


@pytest.fixture(scope="module")
def kubelet(plane: ControlPlane) -> Iterator[Kubelet]:
    with nodes_of(plane, *NODES, SPOT, TAINTED) as found:
        yield found


@pytest.fixture(scope="module")
def between(plane: ControlPlane) -> Iterator[Interceptor]:
    found = Interceptor(plane)
    yield found
    found.close()


@pytest.fixture
def cluster(plane: ControlPlane, kubelet: Kubelet, between: Interceptor) -> Iterator[KubernetesWorld]:
    yield from worlds(plane, kubelet, between)


def provider_of(cluster: KubernetesWorld, **settings: Any) -> KubernetesProvider:
    own = cluster.provider
    return KubernetesProvider(
        "tests",
        settings=replace(own.settings, **settings),
        environment=own._environment,
        room_within_s=1.5,
    )


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max": {"cpu": "1"}}, "maximum cpu usage per Container is 1"),
        ({"min": {"memory": "8Gi"}}, "minimum memory usage per Container is 8Gi"),
        ({"max": {"cpu": "1", "memory": "64Gi"}}, "maximum cpu usage"),
    ],
)
def test_a_size_that_a_limit_range_does_not_admit_is_known_before_anything_is_started(
    cluster: KubernetesWorld, limits: dict[str, Any], words: str
) -> None:
    assert cluster.provider.refusal("2cpu-4gib", spot=False) == ""
    spec = {"limits": [{"type": "Container", **limits}]}
    body = {"metadata": {"name": "sizes"}, "spec": spec}
    cluster.core.create_namespaced_limit_range(cluster.namespace, body)

    assert words in cluster.provider.refusal("2cpu-4gib", spot=False)
    assert cluster.truth() == ()


def test_a_full_quota_is_no_lasting_refusal(cluster: KubernetesWorld) -> None:
    cluster.limit(0)
    assert cluster.provider.refusal("2cpu-4gib", spot=False) == ""


def test_a_size_that_fits_no_node_it_may_be_on_is_refused_unless_nodes_are_added(
    cluster: KubernetesWorld,
) -> None:
    vision: tuple[dict[str, str], ...] = ({"key": "team", "operator": "Equal", "value": "vision"},)

    assert "no node of the cluster" in cluster.provider.refusal("80cpu-4gib", spot=False)
    assert provider_of(cluster, tolerations=vision).refusal("80cpu-4gib", spot=False) == ""
    assert provider_of(cluster, autoscaled=True).refusal("80cpu-4gib", spot=False) == ""
    status = {"metadata": {"name": "cluster-autoscaler-status"}}
    cluster.core.create_namespaced_config_map("kube-system", status)
    try:
        assert cluster.provider.refusal("80cpu-4gib", spot=False) == ""
        assert cluster.provider.zones("80cpu-4gib") == (cluster.provider.region,)
    finally:
        cluster.core.delete_namespaced_config_map(status["metadata"]["name"], "kube-system")
    with pytest.raises(ConfigurationError, match="has room for '80cpu-4gib'"):
        cluster.provider.zones("80cpu-4gib")


def test_pods_that_must_not_be_interrupted_are_on_no_node_that_the_cloud_may_take_back(
    cluster: KubernetesWorld,
) -> None:
    provider = provider_of(cluster, spot_labels=(("spot", "true"),))
    names = {
        spot: [node.name for node in provider.nodes(spot=spot) if node.name.startswith("node-")]
        for spot in (False, True)
    }
    assert names == {False: ["node-a", "node-b"], True: ["node-spot"]}
    assert "no node of the cluster" in provider.refusal("32cpu-4gib", spot=True)
    for node in NODES:
        cluster.core.patch_node(node.name, {"spec": {"unschedulable": True}})
    request = make_request(cluster)
    with pytest.raises(Exception, match="nodes are available"):
        provider.launch(request)
    again = replace(request, spot=True, zone="tests-a", tags=replace(request.tags, token="0" * 8))
    pod: Any = cluster.core.read_namespaced_pod(provider.launch(again).instance_id, cluster.namespace)
    assert pod.spec.node_name == "node-spot"


def test_a_label_of_nodes_is_the_price_of_pods(cluster: KubernetesWorld) -> None:
    catalog = PodCatalog(
        KubernetesSettings(),
        "tests",
        today=date(2026, 11, 23),
        nodes=lambda spot: cluster.provider.nodes(spot=spot),
    )
    names = [node.name for node in cluster.provider.nodes(spot=False)]
    for name in names:
        cluster.core.patch_node(name, {"metadata": {"annotations": {"scavenger/usd-per-hour": "3.2"}}})
    cluster.core.patch_node("node-b", {"metadata": {"labels": {"scavenger/usd-per-hour": "6.4"}}})
    try:
        assert catalog.price("kubernetes", "tests", "32cpu-4gib").usd_per_hour == pytest.approx(3.2)
    finally:
        for name in names:
            gone = {kind: {"scavenger/usd-per-hour": None} for kind in ("labels", "annotations")}
            cluster.core.patch_node(name, {"metadata": gone})
