"""The provider of Kubernetes before a real control plane whose faults, nodes and time are in the test's hands."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import socket
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from kubernetes.client.exceptions import ApiException
from waiting import eventually

from scavenger.cloud.kubernetes.pods import PodSettings, tags_of
from scavenger.cloud.kubernetes.provider import KubernetesProvider
from scavenger.testing.provider_conformance import Fact
from tests.cluster.control_plane import HOST, ControlPlane
from tests.cluster.kubelet import Idle, Kubelet, NodeShape

NODES = tuple(NodeShape(f"node-{zone}", f"tests-{zone}", cpus=64, memory_gib=128) for zone in "ab")
_SETTLED_MAX_S = 20.0
_STATUS = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
_TOO_MANY = {
    **_STATUS,
    "message": "too many requests, please try again later",
    "reason": "TooManyRequests",
    "code": 429,
}
_INTERNAL = {**_STATUS, "message": "etcdserver: request timed out", "reason": "InternalError", "code": 500}


class Interceptor:
    """Stands between a client and the API server, as a load balancer does, and carries out faults.

    Attributes:
        throttled, failed, lost: How many of the next calls meet this fault.
        denied: Whether calls are made as a user who may do nothing.
        fired: How many calls met a fault.
        url: Where it listens.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self.throttled = self.failed = self.lost = self.fired = 0
        self.denied = False
        outer, self._plane = self, plane
        self._contexts = {
            user: _context(plane, user, group)
            for user, group in (("admin", "system:masters"), ("nobody", ""))
        }

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _any(self) -> None:
                outer.handle(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any  # noqa: N815 - http.server's names

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*plane.certificates.sign("interceptor", server=True))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://{HOST}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def handle(self, request: http.server.BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        body = request.rfile.read(int(request.headers.get("Content-Length", 0) or 0))
        for fault, answer in (("throttled", _TOO_MANY), ("failed", _INTERNAL)):
            if getattr(self, fault) > 0:
                setattr(self, fault, getattr(self, fault) - 1)
                self.fired += 1
                self._answer(
                    request, int(str(answer["code"])), json.dumps(answer).encode(), "application/json"
                )
                return
        self.fired += self.denied
        status, text, kind = self._asked(request, body)
        changes = request.command in ("POST", "DELETE") and "/pods" in request.path
        if changes and self.lost > 0:
            self.lost -= 1
            self.fired += 1
            request.close_connection = True
            request.connection.shutdown(socket.SHUT_RDWR)
            return
        self._answer(request, status, text, kind)

    def _asked(self, request: http.server.BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes, str]:
        context = self._contexts["nobody" if self.denied else "admin"]
        line = http.client.HTTPSConnection(HOST, self._plane.port, context=context, timeout=30)
        kept = {
            key: value for key, value in request.headers.items() if key.lower() in ("content-type", "accept")
        }
        try:
            line.request(request.command, request.path, body or None, kept)
            answer = line.getresponse()
            return answer.status, answer.read(), answer.getheader("Content-Type", "")
        finally:
            line.close()

    @staticmethod
    def _answer(request: http.server.BaseHTTPRequestHandler, status: int, body: bytes, kind: str) -> None:
        request.send_response(status)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _context(plane: ControlPlane, user: str, group: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(plane.certificates.where / "ca.crt"))
    context.load_cert_chain(*plane.certificates.sign(user, group))
    return context


class KubernetesWorld:
    """See `conformance.World`."""

    vm, vm_unknown = "2cpu-4gib", "999cpu-4gib"
    instance_unknown = "scavenger-00000000-0000-0000-0000-000000000000"

    def __init__(self, plane: ControlPlane, kubelet: Kubelet, between: Interceptor) -> None:
        self.core, self.kubelet, self.between = plane.core(), kubelet, between
        self.namespace = f"test-{uuid.uuid4().hex[:8]}"
        self.core.create_namespace({"metadata": {"name": self.namespace}})
        self._until(lambda: self.core.read_namespaced_service_account("default", self.namespace))
        file = plane.kubeconfig(url=between.url)
        settings = PodSettings(namespace=self.namespace, image="scavenger:tests")
        self.provider = KubernetesProvider(
            "tests", settings=settings, environment={"KUBECONFIG": str(file)}, room_within_s=1.5
        )
        self._gone: dict[str, Fact] = {}

    @property
    def faults_fired(self) -> int:
        return self.between.fired

    def stock_out(self, zone: str, *, on: bool = True) -> None:
        for node in NODES:
            if node.zone == zone:
                self.core.patch_node(node.name, {"spec": {"unschedulable": on}})

    def limit(self, vms: int | None) -> None:
        if vms is None:
            self.core.delete_namespaced_resource_quota("vms", self.namespace)
            return
        body = {"metadata": {"name": "vms"}, "spec": {"hard": {"pods": str(vms)}}}
        self.core.create_namespaced_resource_quota(self.namespace, body)

        def counted() -> bool:
            return bool(self.core.read_namespaced_resource_quota("vms", self.namespace).status.used)

        self._until(counted)

    def throttle(self, calls: int) -> None:
        self.between.throttled = calls

    def fail(self, calls: int) -> None:
        self.between.failed = calls

    def deny(self, *, on: bool = True) -> None:
        self.between.denied = on

    def lose_answers(self, calls: int) -> None:
        self.between.lost = calls

    def hide(self, seconds: float) -> None:
        assert seconds == 0.0

    def preempt(self, instance_id: str) -> None:
        self.kubelet.evict(self.namespace, instance_id)

    def delete_by_hand(self, instance_id: str) -> None:
        self.core.delete_namespaced_pod(instance_id, self.namespace)

    def write_console(self, instance_id: str, text: str) -> None:
        running = self.kubelet.pod(instance_id)
        assert isinstance(running, Idle)
        running.written = text

    def add_foreign(self, zone: str) -> str:
        container = {"name": "main", "image": "somebodys", "resources": {}}
        body = {"metadata": {"name": "somebodys"}, "spec": {"containers": [container]}}
        return str(self.core.create_namespaced_pod(self.namespace, body).metadata.name)

    def advance(self, seconds: float) -> None:
        self.kubelet.advance(seconds)
        self._until(self._settled)

    def truth(self) -> tuple[Fact, ...]:
        for pod in self._pods():
            tags, alive = tags_of(pod.metadata.labels or {}), pod.status.phase not in ("Succeeded", "Failed")
            zone = next((node.zone for node in NODES if node.name == pod.spec.node_name), "")
            fact = Fact(pod.metadata.name, tags.token, tags.owner, zone, alive)
            self._gone[pod.metadata.name] = fact
        there = {pod.metadata.name for pod in self._pods()}
        return tuple(
            fact if name in there else Fact(name, fact.token, fact.owner, fact.zone, False)
            for name, fact in self._gone.items()
        )

    def _pods(self) -> list[Any]:
        return list(self.core.list_namespaced_pod(self.namespace).items)

    def _settled(self) -> bool:
        """Whether nodes and controllers have caught up with what was asked for."""
        pods = self._pods()
        for pod in pods:
            ended = pod.status.phase in ("Succeeded", "Failed")
            if pod.metadata.deletion_timestamp or (pod.spec.node_name and pod.status.phase == "Pending"):
                return False
            deadline = pod.spec.active_deadline_seconds
            began = pod.status.start_time
            late = deadline and began and (self.kubelet.now() - began).total_seconds() >= deadline + 1
            if late and not ended:
                return False
        living = sum(pod.status.phase not in ("Succeeded", "Failed") for pod in pods)
        quotas = self.core.list_namespaced_resource_quota(self.namespace).items
        return all(int(quota.status.used["pods"]) == living for quota in quotas)

    @staticmethod
    def _until(ask: Callable[[], object]) -> None:
        def told() -> object:
            with contextlib.suppress(ApiException):
                return ask()
            return None

        assert eventually(told, within_s=_SETTLED_MAX_S), "the cluster did not come to rest"

    def close(self) -> None:
        self.deny(on=False)
        self.throttle(0)
        self.fail(0)
        self.lose_answers(0)
        for node in NODES:
            self.stock_out(node.zone, on=False)
        with contextlib.suppress(ApiException):
            self.core.delete_collection_namespaced_pod(self.namespace, grace_period_seconds=0)
            self.core.delete_namespace(self.namespace)


def worlds(plane: ControlPlane, kubelet: Kubelet, between: Interceptor) -> Iterator[KubernetesWorld]:
    """A namespace of its own for a test."""
    world = KubernetesWorld(plane, kubelet, between)
    try:
        yield world
    finally:
        world.close()
