"""Plays the nodes of a cluster: registers them, keeps them alive, and runs the pods that the scheduler binds to them.

It is the kubelet's part of the protocol with the API server: leases, statuses, grace periods, deadlines, logs, and the
removal of a pod once its containers have ended. What a pod runs is up to a `Runner`: nothing, or a process of this
machine. Its time for deadlines is in the test's hands.
"""

from __future__ import annotations

import contextlib
import http.server
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from kubernetes import client, watch
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from tests.cluster.control_plane import HOST, ControlPlane

ZONE, REGION, HOSTNAME = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "kubernetes.io/hostname",
)
_BEAT_S = 1.0
_LEASES = "kube-node-lease"


class Running(Protocol):
    """The containers of a pod, as they run."""

    address: str

    def ended(self) -> int | None:
        """The exit status; None while it runs."""

    def stop(self) -> None:
        """Ask it to end, as SIGTERM does."""

    def cut(self) -> None:
        """Take it off the network, where it has one of its own."""

    def kill(self) -> None:
        """End it."""

    def log(self) -> str:
        """All that it has written."""


class Runner(Protocol):
    """Starts what a pod runs."""

    def start(self, pod: Any, read: Callable[[str], dict[str, str]]) -> Running:
        """Start the containers of a pod.

        Args:
            read: Returns the content of a secret of the pod's namespace, by its name.
        """


@dataclass
class Idle:
    """Containers that do nothing but what a test says."""

    address: str = HOST
    status: int | None = None
    written: str = ""

    def ended(self) -> int | None:
        return self.status

    def stop(self) -> None:
        self.status = 143 if self.status is None else self.status

    kill = stop

    def cut(self) -> None:
        """It has no network."""

    def log(self) -> str:
        return self.written


class _IdleRunner:
    def start(self, pod: Any, read: Callable[[str], dict[str, str]]) -> Running:
        return Idle()


@dataclass(frozen=True)
class NodeShape:
    """A node.

    Attributes:
        zone: Of its label.
        cpus, memory_gib, gpus: What it has for pods.
        labels: Further ones.
        taints: Key, value and effect.
    """

    name: str
    zone: str = "zone-a"
    cpus: int = 8
    memory_gib: int = 32
    gpus: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[tuple[str, str, str], ...] = ()


@dataclass
class _Pod:
    uid: str
    namespace: str
    name: str
    node: str
    running: Running
    started: datetime
    deadline: datetime | None
    kill_at_s: float | None = None
    reported: bool = False
    over: bool = False
    removed: bool = False
    ends_as: tuple[str, str] = ("", "")


class Kubelet:
    """The nodes of a cluster; `close` ends them, with their pods.

    Args:
        plane: The control plane.
        nodes: Registered at once.
        runner: Runs the pods' containers; None for containers that do nothing.

    Attributes:
        clock: The time by which pods exceed their deadlines; the test may set it forward.
    """

    def __init__(
        self, plane: ControlPlane, nodes: tuple[NodeShape, ...], runner: Runner | None = None
    ) -> None:
        self._core = client.CoreV1Api(plane.api("kubelet", "system:masters"))
        self._leases = client.CoordinationV1Api(self._core.api_client)
        self._runner = runner or _IdleRunner()
        self._pods: dict[str, _Pod] = {}
        self._lost: set[str] = set()
        self._nodes: dict[str, NodeShape] = {}
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._ahead = timedelta()
        self._server = _LogServer(plane, self.log_of)
        for node in nodes:
            self.add(node)
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._watch, self._keep)]
        for thread in self._threads:
            thread.start()

    def now(self) -> datetime:
        """The kubelets' time."""
        return datetime.now(UTC) + self._ahead

    def advance(self, seconds: float) -> None:
        """Set the time for deadlines forward."""
        self._ahead += timedelta(seconds=seconds)

    # ---- nodes ----------------------------------------------------------------------------------------------

    def add(self, node: NodeShape) -> None:
        """Register a node, which is ready at once."""
        amounts = {"cpu": str(node.cpus), "memory": f"{node.memory_gib}Gi", "pods": "110"}
        amounts |= {"nvidia.com/gpu": str(node.gpus)} if node.gpus else {}
        status = {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [{"type": "InternalIP", "address": HOST}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server.port}},
            "conditions": [self._condition()],
            "nodeInfo": {
                **dict.fromkeys(("machineID", "systemUUID", "bootID", "kernelVersion", "osImage"), ""),
                "containerRuntimeVersion": "tests://1",
                "kubeletVersion": "v1.20.2",
                "kubeProxyVersion": "v1.20.2",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
        }
        labels = {HOSTNAME: node.name, ZONE: node.zone, REGION: "tests", **dict(node.labels)}
        taints = [{"key": key, "value": value, "effect": effect} for key, value, effect in node.taints]
        body = {
            "metadata": {"name": node.name, "labels": labels},
            "spec": {"taints": taints},
            "status": status,
        }
        with contextlib.suppress(ApiException):
            self._core.create_node(body)
        self._core.patch_node_status(node.name, {"status": status})
        # the controllers taint a new node until they have seen that it is ready
        self._core.patch_node(node.name, {"spec": {"taints": taints}})
        with self._lock:
            self._nodes[node.name] = node
            self._lost.discard(node.name)

    def lose(self, name: str) -> None:
        """A node's machine is gone: it is silent, and its processes are over."""
        with self._lock:
            self._lost.add(name)
            for pod in self._of_node(name):
                pod.running.cut()
                pod.running.kill()

    def delete(self, name: str) -> None:
        """A node is gone, and its cloud says so: its object is deleted."""
        self.lose(name)
        with self._lock:
            self._nodes.pop(name, None)
        self._core.delete_node(name)

    def _of_node(self, name: str) -> list[_Pod]:
        return [pod for pod in self._pods.values() if pod.node == name]

    def _condition(self) -> dict[str, str]:
        now = _text(datetime.now(UTC))
        times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
        return {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", **times}

    def _keep(self) -> None:
        """Renew leases and look after pods, for ever."""
        beaten = 0.0
        while not self._over.wait(0.05):
            if time.monotonic() - beaten >= _BEAT_S:
                beaten = time.monotonic()
                for name in list(self._nodes):
                    if name not in self._lost:
                        with contextlib.suppress(ApiException, HTTPError):
                            self._beat(name)
            with self._lock:
                for pod in list(self._pods.values()):
                    if pod.node not in self._lost:
                        with contextlib.suppress(ApiException, HTTPError):
                            self._look_after(pod)

    def _beat(self, name: str) -> None:
        spec = {"holderIdentity": name, "leaseDurationSeconds": 4, "renewTime": _micro(datetime.now(UTC))}
        body = {"metadata": {"name": name}, "spec": spec}
        try:
            self._leases.patch_namespaced_lease(name, _LEASES, {"spec": spec})
        except ApiException as error:
            if error.status != 404:
                raise
            self._leases.create_namespaced_lease(_LEASES, body)
        self._core.patch_node_status(name, {"status": {"conditions": [self._condition()]}})

    # ---- pods -----------------------------------------------------------------------------------------------

    def pod(self, name: str) -> Running:
        """What runs for a pod."""
        with self._lock:
            return next(pod.running for pod in self._pods.values() if pod.name == name)

    def log_of(self, namespace: str, name: str) -> str | None:
        """What a pod has written; None if there is no such pod here."""
        with self._lock:
            found = [pod for pod in self._pods.values() if (pod.namespace, pod.name) == (namespace, name)]
            return found[0].running.log() if found else None

    def evict(self, namespace: str, name: str, reason: str = "Evicted") -> None:
        """A node takes a pod's resources back, as under pressure of memory."""
        with self._lock:
            pod = next(pod for pod in self._pods.values() if (pod.namespace, pod.name) == (namespace, name))
            pod.running.kill()
            pod.ends_as = (reason, "the node was low on resource: memory")
            self._look_after(pod)

    def _watch(self) -> None:
        while not self._over.is_set():
            try:
                listed = self._core.list_pod_for_all_namespaces()
                with self._lock:
                    known = {pod.metadata.uid for pod in listed.items}
                    for uid in set(self._pods) - known:
                        self._forget(uid)
                for pod in listed.items:
                    self._seen(pod)
                version = listed.metadata.resource_version
                stream = watch.Watch().stream(
                    self._core.list_pod_for_all_namespaces, resource_version=version, timeout_seconds=5
                )
                for event in stream:
                    if event["type"] == "DELETED":
                        with self._lock:
                            self._forget(event["object"].metadata.uid)
                    else:
                        self._seen(event["object"])
                    if self._over.is_set():
                        return
            except (ApiException, HTTPError, OSError):
                self._over.wait(0.2)

    def _forget(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is not None:
            pod.running.kill()

    def _seen(self, pod: Any) -> None:
        uid, node = pod.metadata.uid, pod.spec.node_name
        with self._lock:
            if not node or node not in self._nodes or node in self._lost:
                return
            if uid not in self._pods:
                # what it would mount may be gone, of one that is to end before it has begun
                if pod.status.phase in ("Succeeded", "Failed") or pod.metadata.deletion_timestamp:
                    if pod.metadata.deletion_timestamp:
                        self._remove(pod.metadata.namespace, pod.metadata.name)
                    return
                self._start(pod)
            one = self._pods[uid]
            if pod.metadata.deletion_timestamp and one.kill_at_s is None:
                grace_s = pod.metadata.deletion_grace_period_seconds or 0
                one.kill_at_s = time.monotonic() + grace_s
                one.running.stop()

    def _start(self, pod: Any) -> None:
        namespace, now = pod.metadata.namespace, self.now()

        def read(name: str) -> dict[str, str]:
            import base64

            found = self._core.read_namespaced_secret(name, namespace)
            return {key: base64.b64decode(value).decode() for key, value in (found.data or {}).items()}

        running = self._runner.start(pod, read)
        seconds = pod.spec.active_deadline_seconds
        deadline = None if seconds is None else now + timedelta(seconds=seconds)
        self._pods[pod.metadata.uid] = _Pod(
            pod.metadata.uid, namespace, pod.metadata.name, pod.spec.node_name, running, now, deadline
        )

    def _look_after(self, pod: _Pod) -> None:
        """Report what has changed of a pod, and remove it when it has ended and is to go."""
        if pod.deadline is not None and self.now() >= pod.deadline and pod.running.ended() is None:
            pod.running.kill()
            pod.ends_as = (
                "DeadlineExceeded",
                "Pod was active on the node longer than the specified deadline",
            )
        if pod.kill_at_s is not None and time.monotonic() >= pod.kill_at_s:
            pod.running.kill()
        status = pod.running.ended()
        if status is None and not pod.reported:
            self._report(pod, None)
            pod.reported = True
        if status is not None and not pod.over:
            self._report(pod, status)
            pod.over = True
        if pod.over and pod.kill_at_s is not None and not pod.removed:
            self._remove(pod.namespace, pod.name)
            pod.removed = True

    def _remove(self, namespace: str, name: str) -> None:
        with contextlib.suppress(ApiException):
            self._core.delete_namespaced_pod(name, namespace, grace_period_seconds=0)

    def _report(self, pod: _Pod, status: int | None) -> None:
        started = _text(pod.started)
        body: dict[str, Any] = {
            "phase": "Running" if status is None else "Failed" if status or pod.ends_as[0] else "Succeeded",
            "startTime": started,
            "hostIP": HOST,
            "podIP": pod.running.address,
            "podIPs": [{"ip": pod.running.address}],
        }
        state: dict[str, Any] = {"running": {"startedAt": started}}
        if status is not None:
            finished = {"exitCode": status, "startedAt": started, "finishedAt": _text(self.now())}
            state = {"terminated": {**finished, "reason": "Error" if status else "Completed"}}
        if pod.ends_as[0]:
            body |= {"reason": pod.ends_as[0], "message": pod.ends_as[1]}
        ready = "True" if status is None else "False"
        body["conditions"] = [{"type": "Ready", "status": ready}]
        body["containerStatuses"] = [
            {
                "name": "scavenger",
                "image": "tests",
                "imageID": "",
                "ready": status is None,
                "restartCount": 0,
                "state": state,
                "started": status is None,
            }
        ]
        self._core.patch_namespaced_pod_status(pod.name, pod.namespace, {"status": body})

    def close(self) -> None:
        """End the nodes and their pods."""
        self._over.set()
        self._server.close()
        with self._lock:
            for pod in self._pods.values():
                pod.running.kill()
        for thread in self._threads:
            thread.join(15)


class _LogServer:
    """The kubelet's own API, as far as the API server asks it for logs."""

    def __init__(self, plane: ControlPlane, log_of: Callable[[str, str], str | None]) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                at = urlsplit(self.path)
                words = at.path.strip("/").split("/")
                text = log_of(words[1], words[2]) if words[0] == "containerLogs" and len(words) == 4 else None
                self.send_response(404 if text is None else 200)
                self.send_header("Content-Type", "text/plain")
                self.end_headers()
                lines = parse_qs(at.query).get("tailLines")
                text = text or ""
                if lines:
                    text = "".join(text.splitlines(keepends=True)[-int(lines[0]) :])
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        signed, key = plane.certificates.sign("kubelet-server", server=True)
        context.load_cert_chain(signed, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def nodes_of(plane: ControlPlane, *nodes: NodeShape, runner: Runner | None = None) -> Iterator[Kubelet]:
    """Nodes for a while; what they run ends with them."""
    kubelet = Kubelet(plane, nodes, runner)
    try:
        yield kubelet
    finally:
        kubelet.close()
        for node in nodes:
            with contextlib.suppress(ApiException):  # it is deleted already
                plane.core().delete_node(node.name)


def _text(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _micro(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
