"""Jobs on a worker group of a RayCluster: Scavenger asks for its pods and gives them back, and Ray runs in them."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_jobs import EXAMPLE, PRICES
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from ray_world import (
    GROUP,
    HEAD,
    PLURAL,
    VERSION,
    KubeRay,
    RayRunner,
    define_rayclusters,
    raycluster,
    unavailable,
)
from ruamel.yaml import YAML
from waiting import wait_for

from scavenger.cloud.kubernetes.ray_groups import CLAIMS, RayGroupProvider
from scavenger.domain.vm import LaunchTemplate, VmRequest, VmTags
from scavenger.errors import ConfigurationError, GoneError, NotSupportedError
from scavenger.store import Store
from scavenger.testing.provider_conformance import OWNER
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubelet import NodeShape, nodes_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

NODE = NodeShape("ray-machine", "zone-1", cpus=64, memory_gib=256)
WITHIN_S = 300.0
EPOCHS = 40
SIZE = "2cpu-4gib"
USD_PER_HOUR = 2 * PRICES["usd_per_cpu_hour"] + 4 * PRICES["usd_per_gib_hour"]


class Group:
    """A RayCluster `train` in a namespace of its own, with KubeRay."""

    def __init__(self, plane: ControlPlane, namespace: str, **group: Any) -> None:
        define_rayclusters(plane)
        self.plane, self.namespace = plane, namespace
        plane.core().create_namespace({"metadata": {"name": namespace}})
        self._objects = client.CustomObjectsApi(plane.api())
        self._objects.create_namespaced_custom_object(
            GROUP, VERSION, namespace, PLURAL, raycluster("train", **group)
        )
        self.kuberay = KubeRay(plane, namespace)

    def spec(self) -> dict[str, Any]:
        return dict(self._read()["spec"]["workerGroupSpecs"][0])

    def annotations(self) -> dict[str, str]:
        return dict(self._read()["metadata"].get("annotations") or {})

    def _read(self) -> Any:
        return self._objects.get_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURAL, "train")

    def patch(self, **group: Any) -> None:
        spec = {"workerGroupSpecs": [{**self.spec(), **group}]}
        self._objects.patch_namespaced_custom_object(
            GROUP, VERSION, self.namespace, PLURAL, "train", {"spec": spec}
        )

    def workers(self) -> list[str]:
        listed = self.plane.core().list_namespaced_pod(
            self.namespace, label_selector="ray.io/node-type=worker"
        )
        return sorted(pod.metadata.name for pod in listed.items if not pod.metadata.deletion_timestamp)

    def provider(self) -> RayGroupProvider:
        environment = {"KUBECONFIG": str(self.plane.kubeconfig())}
        return RayGroupProvider(f"tests/{self.namespace}/train/workers", environment=environment)

    def is_as_before(self) -> bool:
        spec = self.spec()
        named = (spec.get("scaleStrategy") or {}).get("workersToDelete") or []
        claims = [name for name in self.annotations() if name.startswith(CLAIMS)]
        return (spec["replicas"], spec["maxReplicas"], named, claims) == (0, 1, [], [])

    def delete(self) -> None:
        self._objects.delete_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURAL, "train")

    def close(self) -> None:
        self.kuberay.close()
        with contextlib.suppress(ApiException):
            self.delete()
        self.plane.core().delete_collection_namespaced_pod(self.namespace, grace_period_seconds=0)


# ---- the provider, with pods that do nothing ---------------------------------------------------------------------


@pytest.fixture
def group(plane: ControlPlane) -> Iterator[Group]:
    with nodes_of(plane, NODE):
        found = Group(plane, f"kuberay-{uuid.uuid4().hex[:8]}")
        yield found
        found.close()


def launch(token: str) -> VmRequest:
    tags = VmTags(OWNER, token, "a-job", 1, 0)
    return VmRequest(tags, SIZE, "train/workers", False, LaunchTemplate(3600.0))


def test_pods_are_asked_for_by_a_number_and_given_back_by_their_names(group: Group) -> None:
    provider = group.provider()
    for token in ("a", "b", "c"):
        assert provider.launch(launch(token)).state == "pending"
    assert (group.spec()["replicas"], group.spec()["maxReplicas"]) == (3, 3)
    assert provider.launch(launch("b")).instance_id == "b", "a repeated launch finds the first one"
    assert group.spec()["replicas"] == 3

    def running() -> bool:
        return {vm.state for vm in provider.list_owned(OWNER)} == {"running"}

    wait_for(running)
    before = {vm.instance_id: vm.address for vm in provider.list_owned(OWNER)}
    assert len(before) == 3
    assert all(before.values())
    assert provider.list_owned("somebody-else") == ()
    pods = group.workers()

    provider.terminate("b", "train/workers")
    provider.terminate("b", "train/workers")

    wait_for(lambda: provider.describe("b", "").state == "gone")
    assert group.spec()["replicas"] == 2
    assert len(group.workers()) == 2
    assert set(group.workers()) < set(pods)
    gone = provider.describe("b", "")
    assert gone.launched_at is not None
    assert gone.ended_at is not None
    assert gone.launched_at < gone.ended_at
    with pytest.raises(GoneError):
        provider.launch(launch("b"))
    assert provider.remove_leftovers(OWNER) == (), "others are held"
    for token in ("a", "c"):
        provider.terminate(token, "")
    wait_for(lambda: all(vm.state == "gone" for vm in provider.list_owned(OWNER)))
    provider.remove_leftovers(OWNER)
    assert group.is_as_before()
    assert group.workers() == []
    assert group.kuberay.chosen == [], "KubeRay never had to choose"


def test_a_pod_that_is_lost_is_gone_and_the_one_that_replaces_it_ends_or_is_taken(group: Group) -> None:
    provider = group.provider()
    for token in ("a", "b"):
        provider.launch(launch(token))
    wait_for(lambda: {vm.state for vm in provider.list_owned(OWNER)} == {"running"})
    first, second = group.workers()
    group.plane.core().delete_namespaced_pod(first, group.namespace, grace_period_seconds=0)

    def states() -> list[str]:
        return sorted(vm.state for vm in provider.list_owned(OWNER))

    wait_for(lambda: states() == ["gone", "running"])
    wait_for(lambda: states() and group.spec()["replicas"] == 1)
    wait_for(lambda: group.workers() == [second])
    assert group.kuberay.chosen == []


def test_two_who_ask_at_once_both_get_theirs(group: Group) -> None:
    from concurrent.futures import ThreadPoolExecutor

    asking = {token: group.provider() for token in "abcd"}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda token: asking[token].launch(launch(token)), asking))
    assert group.spec()["replicas"] == 4
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda token: asking[token].terminate(token, ""), asking))
    provider = asking["a"]
    wait_for(lambda: all(vm.state == "gone" for vm in provider.list_owned(OWNER)), within_s=60.0)
    provider.remove_leftovers(OWNER)
    assert group.is_as_before()


def test_what_cannot_be_sized_is_refused_in_one_line(group: Group) -> None:
    environment = {"KUBECONFIG": str(group.plane.kubeconfig())}

    def opened(group_name: str = "", cluster: str = "train") -> RayGroupProvider:
        return RayGroupProvider.of_cluster(
            f"tests/{group.namespace}/{cluster}", group_name, environment=environment
        )

    assert str(opened().group.shape) == SIZE
    assert opened().region == f"tests/{group.namespace}/train/workers"
    with pytest.raises(ConfigurationError, match="there is no RayCluster other"):
        opened(cluster="other")
    with pytest.raises(ConfigurationError, match="has no worker group gpus; it has workers"):
        opened("gpus")
    group.patch(numOfHosts=2)
    with pytest.raises(NotSupportedError, match="numOfHosts: 1"):
        opened()
    group.patch(numOfHosts=1, suspend=True)
    with pytest.raises(ConfigurationError, match="suspended"):
        opened()


def test_pods_of_a_raycluster_that_is_deleted_are_gone(group: Group) -> None:
    provider = group.provider()
    provider.launch(launch("a"))
    provider.launch(launch("b"))
    group.patch(suspend=True)
    assert len(provider.list_owned(OWNER)) == 2, "what is claimed is told whatever becomes of the group"
    group.delete()
    assert provider.list_owned(OWNER) == ()
    with pytest.raises(GoneError):
        provider.describe("a", "")
    provider.terminate("b", "")
    assert provider.remove_leftovers(OWNER) == ()
    with pytest.raises(ConfigurationError, match="there is no RayCluster train"):
        group.provider().launch(launch("c"))


# ---- jobs, with Ray in the pods ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runner() -> Iterator[RayRunner]:
    if reason := unavailable():
        pytest.skip(reason)
    pytest.importorskip("ray")
    folder = Path(tempfile.mkdtemp(prefix="kr-", dir="/tmp"))  # a socket's path may have 107 characters only
    with socket.create_server((HEAD, 0)) as server:
        port = server.getsockname()[1]
    yield RayRunner(folder, port)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def trained(plane: ControlPlane, runner: RayRunner) -> Iterator[Group]:
    with nodes_of(plane, NODE, runner=runner):
        found = Group(plane, f"ray-{uuid.uuid4().hex[:8]}")
        try:
            wait_for(
                lambda: _listens(HEAD, int(runner.environment["RAY_ADDRESS"].rpartition(":")[2])),
                within_s=60.0,
            )
            yield found
        finally:
            found.close()


def _listens(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
        return True
    return False


class RayJob:
    """The example of digits on a group's pods, led by a process on the head's machine."""

    def __init__(self, group: Group, runner: RayRunner, folder: Path, **spec: Any) -> None:
        written = YAML(typ="safe").load((EXAMPLE / "job.yaml").read_text())
        written |= {
            "infra": {"at": "kubernetes/tests", "namespace": group.namespace, **PRICES},
            "engine": "ray/train",
            "search": {"strategy": "full", "workers": [1, 2], "batch_size": [32]},
            "goal": {"max_epochs": EPOCHS},  # more than are trained while pods of the profile come
            "profile": {"steps": 8},
            **spec,
        }
        written.pop("resources", None)
        (folder / "job.yaml").write_text(json.dumps(written))
        shutil.copy(EXAMPLE / "train.py", folder)
        self.store = f"sqlite:///{folder}/jobs.db"
        self._environment = {
            **runner.environment,
            **{f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")},
            "SCAVENGER_STORE": self.store,
            "KUBECONFIG": str(group.plane.kubeconfig()),
        }
        self._environment.pop("SCAVENGER_ADDRESS", None)
        self.process = self.command("optimize", str(folder / "job.yaml"), "--yes", "-o", "json")

    def command(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "scavenger_cli", *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def training(self, workers: int) -> bool:
        with contextlib.suppress(Exception), Store.open(self.store) as opened:
            for job in opened.jobs(limit=1):
                seen = [
                    one for one in opened.processes(job.id) if (one.role, one.state) == ("worker", "training")
                ]
                return len(seen) == workers
        return False


@pytest.mark.long
def test_a_job_sizes_the_group_to_each_phase_and_gives_its_pods_back(
    trained: Group, runner: RayRunner, tmp_path: Path
) -> None:
    job = RayJob(trained, runner, tmp_path)
    try:
        out, err = job.process.communicate(timeout=WITHIN_S)
    finally:
        job.process.kill()

    assert job.process.returncode == 0, err
    report = json.loads(out)
    assert report["job"]["state"] == "succeeded"
    assert report["choice"]["vm"] == SIZE
    assert report["actual"]["epochs"] == EPOCHS
    assert {1, 2} <= set(trained.kuberay.counts) <= {0, 1, 2}, "never more than the largest cluster"
    wait_for(trained.is_as_before)
    assert trained.kuberay.chosen == []
    wait_for(lambda: trained.workers() == [])
    with Store.open(job.store) as opened:
        intents = opened.intents()
    assert {intent.state for intent in intents} == {"GONE"}
    paid = 0.0
    for intent in intents:
        begun, ended = intent.times.launched_at, intent.times.ended_at
        assert begun is not None
        assert ended is not None
        paid += max(60.0, (ended - begun).total_seconds()) / 3600 * USD_PER_HOUR
    assert report["actual"]["cost_usd"] == pytest.approx(paid, rel=0.02), "from asked to gone, or a minute"


def test_pods_of_a_job_that_was_killed_are_given_back_by_gc(
    trained: Group, runner: RayRunner, tmp_path: Path
) -> None:
    search = {"strategy": "full", "workers": [1], "batch_size": [32]}
    goal = {"metric": "val_accuracy", "target": 0.99999, "max_epochs": 5000, "epochs_hint": 10}
    job = RayJob(trained, runner, tmp_path, search=search, goal=goal)
    try:
        wait_for(lambda: job.training(1) or job.process.poll() is not None, within_s=WITHIN_S)
        assert job.process.poll() is None, job.process.communicate()
    finally:
        job.process.send_signal(signal.SIGKILL)
    job.process.communicate()
    assert trained.spec()["replicas"] == 1

    ended = job.command("gc", "--yes")
    out, err = ended.communicate(timeout=120.0)

    assert ended.returncode == 0, (out, err)
    assert trained.is_as_before()
    wait_for(lambda: trained.workers() == [])
