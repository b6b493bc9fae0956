"""ElasticJobs before a real API server: scaled while they train, through the loss of operator and leader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elastic_world import ElasticWorld, PodRunner, until
from kubernetes.client.exceptions import ApiException
from machines import ROOT, Machines
from postgresql_server import running_server

from scavenger.store import Store
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubelet import Kubelet, NodeShape, nodes_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NODES = tuple(NodeShape(f"elastic-{name}", "zone-1", cpus=6, memory_gib=32) for name in "abc")
TRAIN = ROOT / "examples" / "digits" / "train.py"
BEGUN_S = 240.0


def digits(epochs: int, **job: Any) -> dict[str, Any]:
    """`spec` of an ElasticJob; it ends with its epochs."""
    return {
        "job": {
            "train": "train:job",
            "resources": {"cpus": 2, "memory": 4},
            "search": {"strategy": "full", "workers": "1..3", "batch_size": [32]},
            "goal": {
                "metric": "val_accuracy",
                "target": 0.99999,
                "max_epochs": epochs,
                "epochs_hint": min(10, epochs),
            },
            "profile": {"steps": 4},
            "checkpoint": {"path": "checkpoints", "every": "3s"},
            **job,
        },
        "code": {"configMap": "digits"},
        "store": {"claim": "digits"},
    }


@pytest.fixture(scope="module")
def kubelet(
    plane: ControlPlane, machines: Machines, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kubelet]:
    runner = PodRunner(plane, machines, tmp_path_factory.mktemp("volumes"))
    with nodes_of(plane, *NODES, runner=runner) as found:
        yield found


@pytest.fixture
def world(plane: ControlPlane, kubelet: Kubelet, tmp_path: Path) -> Iterator[ElasticWorld]:
    found = ElasticWorld(plane, tmp_path, "elastic")
    found.add_code("digits", TRAIN)
    found.add_claim("digits")
    yield found
    found.close()


def test_two_workers_then_three_then_one_and_the_job_ends(world: ElasticWorld, kubelet: Kubelet) -> None:
    """The operator is killed before each change: the leader hears of it all the same, and the next one goes on."""
    operator = world.start_operator()
    world.add("digits", {**digits(24), "replicas": 2})
    until(lambda: world.status("digits").get("replicas") == 2, BEGUN_S, what="two workers")
    first = {pod.metadata.name for pod in world.pods("worker", name="digits")}
    until(lambda: world.status("digits").get("phase") == "Running", BEGUN_S)

    operator.kill()
    world.scale("digits", 3)
    until(lambda: world.status("digits").get("replicas") == 3, BEGUN_S, what="three workers")
    assert first < {pod.metadata.name for pod in world.pods("worker", name="digits")}
    operator = world.start_operator()
    until(lambda: world.kept_available() == 2, what="evictions leave two of three")

    (named, *_) = sorted(first)
    world.core.patch_namespaced_pod(
        named, world.namespace, {"metadata": {"annotations": {"scavenger.dev/remove": "true"}}}
    )
    until(lambda: world.job("digits")["spec"]["replicas"] == 2, what="one replica less")
    until(lambda: named not in {pod.metadata.name for pod in world.pods("worker")}, what="its pod is gone")

    operator.kill()
    operator = world.start_operator()
    world.scale("digits", 1)
    until(lambda: world.status("digits").get("replicas") == 1, what="one worker")
    status = until(lambda: _ended(world, "digits"), 2 * BEGUN_S, what="the end")

    assert status["phase"] == "Succeeded", status
    assert status["chosen"]["workers"] == 2
    assert status["actual"]["dollars"] > 0
    conditions = {one["type"]: one["status"] for one in status["conditions"]}
    assert conditions == {
        "Accepted": "True",
        "LeaderRuns": "False",
        "Scaled": conditions["Scaled"],
        "Finished": "True",
    }
    # the operator tells of events after the status that they are about
    until(
        lambda: (
            {"LeaderRunning", "Scaling", "Reached", "Succeeded"} <= {reason for reason, _ in world.events()}
        )
    )

    world.delete("digits")
    until(lambda: not _left(world), what="nothing is left")


@pytest.mark.long
@pytest.mark.parametrize("records", ["on the claim", "in PostgreSQL"])
def test_a_job_waits_while_it_is_suspended_and_goes_on_after_the_loss_of_its_leader(
    world: ElasticWorld, kubelet: Kubelet, records: str
) -> None:
    if records == "on the claim":
        _waits_and_goes_on(world, kubelet, {"claim": "digits"})
        return
    with running_server() as database:
        secret = {"metadata": {"name": "records"}, "stringData": {"url": database.url}}
        world.core.create_namespaced_secret(world.namespace, secret)
        _waits_and_goes_on(world, kubelet, {"claim": "digits", "secret": "records"})
        with Store.open(database.url) as store:
            (job,) = store.jobs()
        assert (job.name, job.attempts) == ("digits", 3)


def _waits_and_goes_on(world: ElasticWorld, kubelet: Kubelet, store: dict[str, str]) -> None:
    world.start_operator()
    world.add("digits", {**digits(12), "replicas": 1, "store": store})
    until(lambda: world.status("digits").get("phase") == "Running", BEGUN_S, what="it runs")
    until(lambda: (world.status("digits").get("step") or 0) > 40, BEGUN_S, what="some steps")

    world.change("digits", suspend=True)
    until(lambda: world.status("digits").get("phase") == "Suspended", BEGUN_S, what="it is suspended")
    until(lambda: not world.pods("worker") and not world.pods("leader"), BEGUN_S, what="no pods")
    steps = world.status("digits")["step"]

    world.change("digits", suspend=False)
    until(lambda: world.status("digits").get("phase") == "Running", BEGUN_S, what="it goes on")
    (leader,) = world.pods("leader")
    kubelet.evict(world.namespace, leader.metadata.name)
    until(lambda: [pod for pod in world.pods("leader") if pod.metadata.uid != leader.metadata.uid], BEGUN_S)
    status = until(lambda: _ended(world, "digits"), BEGUN_S, what="the end")

    assert status["phase"] == "Succeeded", status
    assert status["step"] > steps
    until(lambda: "LeaderLost" in [reason for reason, _ in world.events()], what="the loss is told")


def test_what_is_no_job_is_refused_by_the_api_server_or_said_in_its_status(world: ElasticWorld) -> None:
    world.start_operator()
    with pytest.raises(ApiException) as refused:
        world.add("bad", {**digits(3), "replicas": 0})
    assert "spec.replicas" in str(refused.value.body)

    world.add("bad", {**digits(3, elastic={"max": 4}), "replicas": 6})
    status = until(lambda: _in_phase(world, "bad", "Invalid"), what="its fault is said")
    assert "elastic" in status["message"]
    assert world.pods("leader") == []

    world.change("bad", replicas=2, suspend=True)
    until(lambda: _in_phase(world, "bad", "Suspended"), what="it is a job, and waits")


def test_an_operator_without_rights_says_so_and_goes_on_once_it_has_them(world: ElasticWorld) -> None:
    from kubernetes import client

    rights = client.RbacAuthorizationV1Api(world.core.api_client)
    role = rights.read_cluster_role("scavenger-operator")
    kept = json.loads(json.dumps(world.core.api_client.sanitize_for_serialization(role.rules)))
    less = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if verb != "create"]}
        if rule["resources"] == ["pods"]
        else rule
        for rule in kept
    ]
    rights.patch_cluster_role("scavenger-operator", {"rules": less})
    try:
        world.start_operator()
        world.add("digits", digits(1))
        until(lambda: "NotAllowed" in [reason for reason, _ in world.events()], what="it says so")
        until(lambda: "cannot create resource" in str(world.status("digits").get("message")))
    finally:
        rights.patch_cluster_role("scavenger-operator", {"rules": kept})
    until(lambda: world.pods("leader"), what="the leader is started")


def _in_phase(world: ElasticWorld, name: str, phase: str) -> dict[str, Any] | None:
    status = world.status(name)
    return status if status.get("phase") == phase else None


def _ended(world: ElasticWorld, name: str) -> dict[str, Any] | None:
    status = world.status(name)
    return status if status.get("phase") in ("Succeeded", "Stopped", "Failed") else None


def _left(world: ElasticWorld) -> list[str]:
    pods = world.core.list_namespaced_pod(world.namespace).items
    secrets = world.core.list_namespaced_secret(world.namespace).items
    return [
        one.metadata.name
        for one in (*pods, *secrets)
        if one.metadata.name.startswith("scavenger-") and "token" not in one.metadata.name
    ]
