"""A RayCluster of the tests: its definition, KubeRay's part of it, and its pods as processes with a real Ray.

KubeRay is played by facts of its controller: it deletes pods that have ended and those that `workersToDelete` names,
then makes or deletes pods until there are as many as `replicas`, within `minReplicas` and `maxReplicas`. It chooses
itself which ones go, and clears no list. Pods have names that it makes up.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from machines import ROOT
from urllib3.exceptions import HTTPError

from tests.cluster.control_plane import ControlPlane

GROUP, VERSION, PLURAL = "ray.io", "v1", "rayclusters"
HEAD = "127.0.0.10"
_STORE_BYTES = 80 << 20
_TICK_S = 0.2
_ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_COUNT = {"type": "integer", "format": "int32"}


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    return found | ({"required": list(required)} if required else {})


_WORKERS = _object(
    ("groupName", "maxReplicas", "minReplicas", "template"),
    groupName={"type": "string"},
    replicas={**_COUNT, "default": 0},
    minReplicas={**_COUNT, "default": 0},
    maxReplicas={**_COUNT, "default": 2147483647},
    numOfHosts={**_COUNT, "default": 1},
    suspend={"type": "boolean"},
    rayStartParams={"type": "object", "additionalProperties": {"type": "string"}},
    scaleStrategy=_object(workersToDelete={"type": "array", "items": {"type": "string"}}),
    template=_ANY,
)
_SPEC = _object(
    ("headGroupSpec",),
    rayVersion={"type": "string"},
    enableInTreeAutoscaling={"type": "boolean"},
    suspend={"type": "boolean"},
    headGroupSpec=_object(
        ("template",),
        rayStartParams={"type": "object", "additionalProperties": {"type": "string"}},
        template=_ANY,
    ),
    workerGroupSpecs={"type": "array", "items": _WORKERS},
)


def define_rayclusters(plane: ControlPlane) -> None:
    """Define the kind `RayCluster`, as far as the tests use it; once."""
    names = {"kind": "RayCluster", "listKind": "RayClusterList", "plural": PLURAL, "singular": "raycluster"}
    schema = {"openAPIV3Schema": _object(spec=_SPEC, status=_ANY)}
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": schema,
        "subresources": {"status": {}},
    }
    body = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {"group": GROUP, "names": names, "scope": "Namespaced", "versions": [version]},
    }
    api = plane.api()
    with contextlib.suppress(ApiException):
        client.ApiextensionsV1Api(api).create_custom_resource_definition(body)
    objects, until = client.CustomObjectsApi(api), time.monotonic() + 20.0
    while True:
        try:
            objects.list_cluster_custom_object(GROUP, VERSION, PLURAL)
            return
        except ApiException:
            assert time.monotonic() < until, "the definition is not there"
            time.sleep(0.1)


def raycluster(name: str, **group: Any) -> dict[str, Any]:
    """A RayCluster with one worker group, `workers`."""
    container = {
        "image": "rayproject/ray:tests",
        "resources": {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"cpu": "2", "memory": "4Gi"}},
    }

    def template(kind: str) -> dict[str, Any]:
        spec = {"containers": [{"name": f"ray-{kind}", **container}], "terminationGracePeriodSeconds": 5}
        return {"spec": spec}

    workers = {
        "groupName": "workers",
        "replicas": 0,
        "minReplicas": 0,
        "maxReplicas": 1,
        "rayStartParams": {},
        "template": template("worker"),
        **group,
    }
    spec = {
        "rayVersion": "2.60.0",
        "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": template("head")},
        "workerGroupSpecs": [workers],
    }
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "RayCluster",
        "metadata": {"name": name},
        "spec": spec,
    }


class KubeRay:
    """The operator, in one namespace; `close` ends it.

    Attributes:
        chosen: Names of pods whose end nobody but KubeRay has chosen.
        counts: What it has seen of `replicas`, in order.
    """

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        api = plane.api()
        self._core, self._objects = client.CoreV1Api(api), client.CustomObjectsApi(api)
        self._namespace = namespace
        self.chosen: list[str] = []
        self.counts: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(_TICK_S):
            with contextlib.suppress(ApiException, HTTPError):
                listed = self._objects.list_namespaced_custom_object(GROUP, VERSION, self._namespace, PLURAL)
                for cluster in listed["items"]:
                    self._reconcile(cluster)

    def _reconcile(self, cluster: dict[str, Any]) -> None:
        name, spec = cluster["metadata"]["name"], cluster["spec"]
        if not self._pods(name, "headgroup"):
            self._make(cluster, "head", "headgroup", spec["headGroupSpec"]["template"])
        ready = desired = 0
        for group in spec["workerGroupSpecs"]:
            made = self._of_group(cluster, group)
            ready, desired = ready + made[0], desired + made[1]
        status = {
            "state": "ready",
            "desiredWorkerReplicas": desired,
            "readyWorkerReplicas": ready,
            "availableWorkerReplicas": ready,
        }
        if cluster.get("status") != status:
            self._objects.patch_namespaced_custom_object_status(
                GROUP, VERSION, self._namespace, PLURAL, name, {"status": status}
            )

    def _of_group(self, cluster: dict[str, Any], group: dict[str, Any]) -> tuple[int, int]:
        name, kind = cluster["metadata"]["name"], group["groupName"]
        if self.counts[-1:] != [group["replicas"]]:
            self.counts.append(group["replicas"])
        due = min(max(group["replicas"], group["minReplicas"]), group["maxReplicas"])
        pods = self._pods(name, kind)
        ended = [pod for pod in pods if pod.status.phase in ("Succeeded", "Failed")]
        for pod in ended:
            self._delete(pod.metadata.name)
        if ended:
            return 0, due
        named = {*(group.get("scaleStrategy") or {}).get("workersToDelete", ())}
        for one in named:
            self._delete(one)
        left = [pod for pod in pods if pod.metadata.name not in named]
        for _ in range(due - len(left)):
            self._make(cluster, "worker", kind, group["template"])
        for pod in left[: max(0, len(left) - due)]:
            self.chosen.append(pod.metadata.name)
            self._delete(pod.metadata.name)
        return sum(pod.status.phase == "Running" for pod in left), due

    def _pods(self, cluster: str, group: str) -> list[Any]:
        selector = f"ray.io/cluster={cluster},ray.io/group={group}"
        return list(self._core.list_namespaced_pod(self._namespace, label_selector=selector).items)

    def _make(self, cluster: dict[str, Any], kind: str, group: str, template: dict[str, Any]) -> None:
        meta = cluster["metadata"]
        labels = {"ray.io/cluster": meta["name"], "ray.io/node-type": kind, "ray.io/group": group}
        owner = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "RayCluster",
            "name": meta["name"],
            "uid": meta["uid"],
        }
        name = f"{meta['name']}-{group}-{kind}-{secrets.token_hex(3)[:5]}"
        about = {"name": name, "labels": labels, "ownerReferences": [{**owner, "controller": True}]}
        self._core.create_namespaced_pod(self._namespace, {"metadata": about, "spec": template["spec"]})

    def _delete(self, name: str) -> None:
        with contextlib.suppress(ApiException):
            self._core.delete_namespaced_pod(name, self._namespace)

    def close(self) -> None:
        """End the operator; pods stay."""
        self._over.set()
        self._thread.join(10)


def unavailable() -> str:
    """Why pods with Ray cannot be started here; empty if they can."""
    if os.geteuid() != 0:
        return "needs root to give pods folders and processes of their own"
    trial = subprocess.run(
        ["unshare", "-m", "-p", "-f", "--mount-proc", "true"], capture_output=True, check=False
    )
    return "" if trial.returncode == 0 else f"may not make namespaces: {trial.stderr.decode()[:100]}"


class RayRunner:
    """Starts Ray in each pod of a RayCluster: the head on this machine, others with folders of their own.

    Args:
        folder: Where Ray keeps its files; a short path.
        port: Of the head.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self._folder, self._port = folder, port
        self._addresses = itertools.count(11)
        self.environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "for-the-tests-of-this-machine-only",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": str(folder),
            "RAY_ADDRESS": f"{HEAD}:{port}",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}",
        }

    def start(self, pod: Any, read: Callable[[str], dict[str, str]]) -> _RayPod:
        ray = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats"]
        ray.append(f"--object-store-memory={_STORE_BYTES}")
        log = self._folder.with_name(f"{self._folder.name}-logs") / f"{pod.metadata.name}.log"
        log.parent.mkdir(exist_ok=True)
        apart = ["unshare", "-m", "-p", "-f", "--mount-proc", "--kill-child"]
        if pod.metadata.labels["ray.io/node-type"] == "head":
            address = HEAD
            words = [*ray, "--head", f"--port={self._port}", "--num-cpus=0", "--include-dashboard=false"]
        else:
            address = f"127.0.0.{next(self._addresses)}"
            cpus = pod.spec.containers[0].resources.limits["cpu"]
            own = ["sh", "-c", f'mount -t tmpfs none {self._folder} && exec "$@"', "sh"]
            words = [*apart, *own, *ray, f"--address={HEAD}:{self._port}", f"--num-cpus={cpus}"]
        environment = {key: one for key, one in self.environment.items() if key != "RAY_ADDRESS"}
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*words, f"--node-ip-address={address}"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        return _RayPod(address, process, log)


@dataclass
class _RayPod:
    """See `kubelet.Running`."""

    address: str
    process: subprocess.Popen[bytes] = field(repr=False)
    written: Path

    def ended(self) -> int | None:
        status = self.process.poll()
        return None if status is None else status if status >= 0 else 128 - status

    def stop(self) -> None:
        # to those in its namespace, as a node does: `unshare` itself passes no signal on
        for child in _children(self.process.pid) or [self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)

    def cut(self) -> None:
        """It is on the network of this machine."""

    def kill(self) -> None:
        with contextlib.suppress(psutil.Error):
            for one in [*psutil.Process(self.process.pid).children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    one.kill()
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)

    def log(self) -> str:
        return self.written.read_text(errors="replace")


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (OSError, ValueError):
        return []
