"""A custom metrics API as adapters serve it: an aggregated API, whose values are in the test's hands.

The API server passes on what clients ask of `custom.metrics.k8s.io`, by an `APIService` and a service of the cluster
that names this machine.

References:
    "Custom Metrics API", kubernetes/design-proposals-archive, instrumentation/custom-metrics-api.md.
"""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from kubernetes import client

from tests.cluster.control_plane import HOST, ControlPlane

GROUP, VERSION = "custom.metrics.k8s.io", "v1beta1"
_NAMESPACE, _NAME = "default", "custom-metrics"


class CustomMetrics:
    """Values of metrics of objects.

    Args:
        resource: Of the objects, `PLURAL.GROUP`.
        about: Kind and API version of the objects.

    Attributes:
        values: By namespace, object and metric; may be changed at any time.
        asked: How often a value was asked for.
    """

    def __init__(self, resource: str, about: tuple[str, str]) -> None:
        self._resource, self._about = resource, about
        self.values: dict[tuple[str, str, str], float] = {}
        self.asked = 0

    def answer(self, path: str) -> dict[str, Any] | None:
        """The answer to a request; None if there is no such thing."""
        match path.partition("?")[0].strip("/").split("/"):
            case ["apis", group, version] if (group, version) == (GROUP, VERSION):
                return self._resources()
            case ["apis", _, _, "namespaces", namespace, resource, name, metric] if (
                resource == self._resource and (namespace, name, metric) in self.values
            ):
                self.asked += 1
                return self._value(namespace, name, metric)
        return None

    def _resources(self) -> dict[str, Any]:
        metrics = sorted({metric for _, _, metric in self.values})
        told = {"singularName": "", "namespaced": True, "kind": "MetricValueList", "verbs": ["get"]}
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{GROUP}/{VERSION}",
            "resources": [{"name": f"{self._resource}/{metric}", **told} for metric in metrics],
        }

    def _value(self, namespace: str, name: str, metric: str) -> dict[str, Any]:
        kind, version = self._about
        about = {"kind": kind, "namespace": namespace, "name": name, "apiVersion": version}
        value = {
            "describedObject": about,
            "metricName": metric,
            "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "value": f"{round(1e3 * self.values[namespace, name, metric])}m",
        }
        return {
            "kind": "MetricValueList",
            "apiVersion": f"{GROUP}/{VERSION}",
            "metadata": {},
            "items": [value],
        }


@contextlib.contextmanager
def custom_metrics(plane: ControlPlane, resource: str, about: tuple[str, str]) -> Iterator[CustomMetrics]:
    """Custom metrics for a while."""
    metrics = CustomMetrics(resource, about)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = metrics.answer(self.path)
            body = json.dumps(found or {}).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    signed, key = plane.certificates.sign(_NAME, server=True, names=(f"{_NAME}.{_NAMESPACE}.svc",))
    context.load_cert_chain(signed, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    core = plane.core()
    services = client.ApiregistrationV1Api(core.api_client)
    authority = base64.b64encode((plane.certificates.where / "ca.crt").read_bytes()).decode()
    port = int(server.server_address[1])
    try:
        # a service by name: endpoints may not be on the loopback interface
        core.create_namespaced_service(
            _NAMESPACE,
            {"metadata": {"name": _NAME}, "spec": {"type": "ExternalName", "externalName": "localhost"}},
        )
        services.create_api_service(
            {
                "metadata": {"name": f"{VERSION}.{GROUP}"},
                "spec": {
                    "group": GROUP,
                    "version": VERSION,
                    "service": {"namespace": _NAMESPACE, "name": _NAME, "port": port},
                    "caBundle": authority,
                    "groupPriorityMinimum": 100,
                    "versionPriority": 100,
                },
            }
        )
        yield metrics
    finally:
        with contextlib.suppress(client.exceptions.ApiException, ValueError):  # 1.20 answers with a `Status`
            services.delete_api_service(f"{VERSION}.{GROUP}")
            core.delete_namespaced_service(_NAME, _NAMESPACE)
        server.shutdown()
        server.server_close()
