"""Kubernetes through its client library, before a real control plane."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from cluster_world import NODES, Interceptor, KubernetesWorld, worlds
from nested import built

from scavenger.domain.intent import Intent
from scavenger.errors import CloudUnavailableError, ConfigurationError, StockOutError
from scavenger.policy.provisioning.decider import ending_of
from scavenger.testing.provider_conformance import OWNER, ProviderConformance, World, make_request
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


class Kueue:
    """Does what Kueue does with a pod of a queue, as far as Kubernetes 1.20 can: it knows no scheduling gates.

    Its webhook holds a new pod back: here by the name of a scheduler that there is not, and by the condition that a
    gate leads to. A pod that is admitted is bound, as the scheduler would. One that is preempted gets the condition
    that says so, and is deleted.
    """

    def __init__(self, world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        self.core, self.namespace = world.core, world.namespace
        core = world.provider._core
        create = core.create_namespaced_pod

        def held(namespace: str, body: Any, **options: Any) -> Any:
            body["spec"]["schedulerName"] = "kueue-of-the-tests"
            pod = create(namespace, body, **options)
            self.gate(pod.metadata.name)
            return pod

        monkeypatch.setattr(core, "create_namespaced_pod", held)

    def _condition(self, name: str, **condition: str) -> None:
        self.core.patch_namespaced_pod_status(name, self.namespace, {"status": {"conditions": [condition]}})

    def gate(self, name: str) -> None:
        self._condition(name, type="PodScheduled", status="False", reason="SchedulingGated", message="held")

    def admit(self, name: str, node: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"metadata": {"name": name}, "target": target}
        self.core.create_namespaced_binding(self.namespace, body, _preload_content=False)

    def preempt(self, name: str) -> None:
        words = "Preempted to accommodate a higher priority Workload"
        self._condition(
            name,
            type="TerminationTarget",
            status="True",
            reason="WorkloadEvictedDueToPreempted",
            message=words,
        )
        self.core.delete_namespaced_pod(name, self.namespace)


@pytest.fixture
def kueue(cluster: KubernetesWorld, monkeypatch: pytest.MonkeyPatch) -> Kueue:
    cluster.provider.settings = replace(cluster.provider.settings, queue="team-a")
    return Kueue(cluster, monkeypatch)


def test_a_pod_waits_in_its_queue_until_it_is_admitted_and_its_launch_is_repeated(
    cluster: KubernetesWorld, kueue: Kueue
) -> None:
    request = make_request(cluster)
    for _ in range(2):
        with pytest.raises(CloudUnavailableError, match="waits for the queue 'team-a'"):
            cluster.provider.launch(request)
        (seen,) = cluster.provider.list_owned(OWNER)
        assert (seen.state, seen.queued) == ("pending", True)
    pod: Any = cluster.core.read_namespaced_pod(seen.instance_id, cluster.namespace)
    assert pod.metadata.labels["kueue.x-k8s.io/queue-name"] == "team-a"

    kueue.admit(seen.instance_id, NODES[0].name)
    launched = cluster.provider.launch(request)
    assert (launched.instance_id, launched.queued) == (seen.instance_id, False)
    cluster._until(lambda: cluster.provider.describe(seen.instance_id, seen.zone).state == "running")


def test_a_pod_that_its_queue_does_not_admit_in_time_is_taken_back(
    cluster: KubernetesWorld, kueue: Kueue
) -> None:
    cluster.provider.settings = replace(cluster.provider.settings, queue_wait_s=0.0)
    with pytest.raises(StockOutError, match="not admitted by the queue 'team-a'"):
        cluster.provider.launch(make_request(cluster))
    assert cluster.provider.list_owned(OWNER) == ()


def test_a_pod_that_its_queue_preempts_counts_as_taken_and_not_as_failed(
    cluster: KubernetesWorld, kueue: Kueue
) -> None:
    request = make_request(cluster)
    with pytest.raises(CloudUnavailableError):
        cluster.provider.launch(request)
    (seen,) = cluster.provider.list_owned(OWNER)
    kueue.admit(seen.instance_id, NODES[0].name)
    launched = cluster.provider.launch(request)
    cluster._until(lambda: cluster.provider.describe(seen.instance_id, seen.zone).state == "running")
    kueue.preempt(seen.instance_id)

    found = []

    def ending() -> bool:
        found[:] = [one for one in cluster.provider.list_owned(OWNER) if one.state in ("stopping", "gone")]
        return bool(found)

    cluster._until(ending)
    assert "WorkloadEvictedDueToPreempted" in found[0].reason
    intent = built(
        Intent,
        request=request,
        provider="kubernetes",
        region="tests",
        price_usd_per_hour=1.0,
        reserved_usd=0.0,
    )
    assert ending_of(intent, replace(found[0], instance_id=launched.instance_id))[0] == "preempted"
