"""The way to the API of a leader's pod: a port of this machine's loopback, which leads through the API server.

The API server forwards HTTP to a port of a pod (`pods/proxy`) for whoever has the right to it. So neither SSH nor an
address of the pod is needed, nor a route to its network. It keeps the header `Authorization` to itself, so the leader's
token goes in a header of its own. It does not look at the certificate of the pod, so what is between the two is sealed
against listeners alone, as all that a cluster's API server asks of its nodes may be.

References:
    "Manually constructing apiserver proxy URLs", Kubernetes documentation.
"""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from urllib3 import Timeout
from urllib3.exceptions import HTTPError

from scavenger.errors import TransientError

POD_PORT = 8765
"""Of the API of a leader's pod; policies of the network name it."""
_TIMEOUT = Timeout(connect=10.0, read=60.0)
_OF_THE_CONNECTION = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "te",
        "trailers",
        "transfer-encoding",
        "upgrade",
        "host",
    )
)
_TOKEN_HEADER = "X-Scavenger-Token"  # noqa: S105 - the name of a header
_BEARER = "Bearer "


@dataclass(frozen=True, slots=True)
class PodTunnel:
    """A port that leads to a pod.

    Attributes:
        port: The one here, on the loopback.
    """

    port: int

    def wait(self) -> NoReturn:
        """Wait for ever: each request is a connection of its own, so the tunnel does not end."""
        threading.Event().wait()
        raise AssertionError


@contextmanager
def through_api_server(api: Any, namespace: str, pod: str, *, here: int = 0) -> Iterator[PodTunnel]:
    """Forward a port of this machine to the API of a leader's pod within the block.

    Args:
        api: Client of the cluster's API.
        namespace, pod: Where it leads.
        here: The port here; 0 for any that is free.

    Raises:
        TransientError: The port here cannot be had.
    """
    prefix = f"/api/v1/namespaces/{namespace}/pods/https:{pod}:{POD_PORT}/proxy"

    class Handler(http.server.BaseHTTPRequestHandler):
        def _any(self) -> None:
            _forward(self, api, prefix)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _any  # noqa: N815 - http.server's names

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", here), Handler)
    except OSError as error:
        raise TransientError(f"port {here} of this machine: {error.strerror}") from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="pod tunnel", daemon=True).start()
    try:
        yield PodTunnel(int(server.server_address[1]))
    finally:
        server.shutdown()
        server.server_close()


def _forward(request: http.server.BaseHTTPRequestHandler, api: Any, prefix: str) -> None:
    """Answer one request with what the pod answers, as it comes."""
    headers = {key: value for key, value in request.headers.items() if key.lower() not in _OF_THE_CONNECTION}
    token = headers.pop("Authorization", "")
    if token.startswith(_BEARER):
        headers[_TOKEN_HEADER] = token.removeprefix(_BEARER)
    told = api.configuration.auth_settings().values()  # asked each time: tokens are replaced
    headers |= {one["key"]: one["value"] for one in told if one["value"]}
    # the API server puts its own path before links of pages that it forwards
    path = request.path.removeprefix(prefix) or "/"
    body = request.rfile.read(int(request.headers.get("Content-Length", 0) or 0)) or None
    try:
        answer = api.rest_client.pool_manager.request(
            request.command,
            f"{api.configuration.host}{prefix}{path}",
            body=body,
            headers=headers,
            preload_content=False,
            redirect=False,
            retries=False,
            timeout=_TIMEOUT,
        )
    except HTTPError as error:
        _refuse(request, f"no answer from the cluster: {error}")
        return
    try:
        if _is_of_api_server(answer):
            _refuse(request, _message(answer.read()))
            return
        request.send_response_only(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in _OF_THE_CONNECTION:
                request.send_header(name, value)
        request.send_header("Connection", "close")
        request.end_headers()
        for data in answer.stream(1 << 16, decode_content=False):
            request.wfile.write(data)
            request.wfile.flush()
    except (HTTPError, OSError):  # either end has gone away: the connection ends early, which the client sees
        request.close_connection = True
    finally:
        answer.release_conn()


def _is_of_api_server(answer: Any) -> bool:
    """Whether it is the API server that answers, and not the pod, whose answers all forbid guesses at their type."""
    return answer.status >= 400 and "X-Content-Type-Options" not in answer.headers


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return " ".join(body.decode(errors="replace").split())[:300]


def _refuse(request: http.server.BaseHTTPRequestHandler, why: str) -> None:
    """Say that the leader is not reached, in the words of a Scavenger server."""
    title = "the leader is not reached"
    document = {"type": "about:blank", "title": title, "status": 502, "detail": why[:300], "retryable": True}
    data = json.dumps(document).encode()
    request.send_response_only(502)
    request.send_header("Content-Type", "application/problem+json")
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data)
