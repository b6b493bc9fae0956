"""Kubernetes through its client library, before a real control plane."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from cluster_world import NODES, Interceptor, KubernetesWorld, worlds
from conformance import OWNER, ProviderConformance, World, make_request

from scavenger.errors import ConfigurationError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubelet import Kubelet, nodes_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kubelet(plane: ControlPlane) -> Iterator[Kubelet]:
    with nodes_of(plane, *NODES) as found:
        yield found


@pytest.fixture(scope="module")
def between(plane: ControlPlane) -> Iterator[Interceptor]:
    found = Interceptor(plane)
    yield found
    found.close()


@pytest.fixture
def cluster(plane: ControlPlane, kubelet: Kubelet, between: Interceptor) -> Iterator[KubernetesWorld]:
    yield from worlds(plane, kubelet, between)


class TestKubernetesProvider(ProviderConformance):
    @pytest.fixture
    def world(self, cluster: KubernetesWorld) -> World:
        return cluster

    def test_a_young_vm_is_known_by_its_id_and_ends_when_asked_though_no_list_shows_it(
        self, world: World
    ) -> None:
        """Here, lists show a pod at once."""
        launched = world.provider.launch(make_request(world))
        assert [seen.instance_id for seen in world.provider.list_owned(OWNER)] == [launched.instance_id]


def test_a_pod_may_do_nothing_that_it_does_not_need_and_its_key_is_in_a_secret_that_owns_it(
    cluster: KubernetesWorld,
) -> None:
    seen = cluster.provider.launch(make_request(cluster, user_data="#!/bin/sh\necho the-key\n"))
    pod: Any = cluster.core.read_namespaced_pod(seen.instance_id, cluster.namespace)
    (container,) = pod.spec.containers
    (owner,) = pod.metadata.owner_references

    assert pod.spec.security_context.run_as_non_root
    assert container.security_context.read_only_root_filesystem
    assert container.security_context.allow_privilege_escalation is False
    assert container.security_context.capabilities.drop == ["ALL"]
    assert pod.spec.automount_service_account_token is False
    assert pod.spec.restart_policy == "Never"
    assert container.resources.requests == container.resources.limits == {"cpu": "2", "memory": "4Gi"}
    assert "the-key" not in str(pod)
    assert (owner.kind, owner.name) == ("Secret", seen.instance_id)

    cluster.core.delete_namespaced_secret(seen.instance_id, cluster.namespace)
    cluster._until(lambda: cluster.core.list_namespaced_pod(cluster.namespace).items == [])


def test_what_admission_refuses_is_the_requests_own_fault_and_leaves_nothing(
    cluster: KubernetesWorld,
) -> None:
    body = {
        "metadata": {"name": "small"},
        "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]},
    }
    cluster.core.create_namespaced_limit_range(cluster.namespace, body)

    with pytest.raises(ConfigurationError, match="maximum cpu usage per Container is 1"):
        cluster.provider.launch(make_request(cluster))

    assert cluster.truth() == ()
    names = [one.metadata.name for one in cluster.core.list_namespaced_secret(cluster.namespace).items]
    assert not [name for name in names if name.startswith("scavenger-")]


def test_a_node_that_is_avoided_gets_pods_only_if_no_other_could_hold_them(
    cluster: KubernetesWorld, kubelet: Kubelet
) -> None:
    first, zone = NODES[0].name, NODES[0].zone
    kubelet.add(replace(NODES[0], name="node-a-2"))
    try:

        def node_of(name: str, *avoided: str) -> str:
            request = make_request(cluster, name, zone=zone, avoided=avoided)
            seen = cluster.provider.launch(request)
            pod: Any = cluster.core.read_namespaced_pod(seen.instance_id, cluster.namespace)
            return str(pod.spec.node_name)

        # the scheduler prefers the emptier node, which is the avoided one from the second pod on
        assert {node_of(f"a{index}", first) for index in range(3)} == {"node-a-2"}
        assert {node_of(f"b{index}", "node-a-2") for index in range(3)} == {first}
        assert node_of("c", first, "node-a-2") in {first, "node-a-2"}
        assert {node_of(f"d{index}") for index in range(4)} == {first, "node-a-2"}
    finally:
        cluster.core.delete_collection_namespaced_pod(cluster.namespace, grace_period_seconds=0)
        kubelet.delete("node-a-2")
