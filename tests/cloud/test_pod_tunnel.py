"""The port that leads to a leader's pod through the API server, whose part a small server plays here."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from scavenger.control.leading.pod_tunnel import through_api_server

client = pytest.importorskip("kubernetes.client")

PREFIX = "/api/v1/namespaces/ns/pods/https:pod:8765/proxy"
SEEN: list[tuple[str, str, dict[str, str], bytes]] = []


class _ApiServer(http.server.BaseHTTPRequestHandler):
    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0) or 0))
        SEEN.append((self.command, self.path, dict(self.headers), body))
        gone = "gone" in self.path
        self.send_response(404 if gone else 200)
        if not gone:
            self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(b'{"kind": "Status", "message": "pods not found"}' if gone else b"it answers")

    do_GET = do_POST = _any  # noqa: N815 - http.server's names

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[Any]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _ApiServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = client.Configuration()
    settings.host = f"http://127.0.0.1:{server.server_address[1]}"
    settings.api_key = {"authorization": "Bearer of-the-kubeconfig"}
    SEEN.clear()
    yield client.ApiClient(settings)
    server.shutdown()
    server.server_close()


def test_a_request_reaches_the_pod_with_both_tokens_each_in_its_own_header(api: Any) -> None:
    with through_api_server(api, "ns", "pod") as way:
        url, sent = f"http://127.0.0.1:{way.port}", {"Authorization": "Bearer of-the-leader"}
        assert requests.get(f"{url}/v1/jobs?limit=1", headers=sent, timeout=10).text == "it answers"
        requests.post(f"{url}/v1/queue", data=b"job", headers=sent, timeout=10)
        # links of pages that the API server forwards begin with its own path
        requests.get(f"{url}{PREFIX}/dashboard", timeout=10)

    assert [(verb, path, body) for verb, path, _, body in SEEN] == [
        ("GET", f"{PREFIX}/v1/jobs?limit=1", b""),
        ("POST", f"{PREFIX}/v1/queue", b"job"),
        ("GET", f"{PREFIX}/dashboard", b""),
    ]
    for _, _, headers, _ in SEEN[:2]:
        assert headers["authorization"] == "Bearer of-the-kubeconfig"
        assert headers["X-Scavenger-Token"] == "of-the-leader"


def test_what_the_api_server_itself_refuses_is_no_answer_of_the_leader(api: Any) -> None:
    with through_api_server(api, "ns", "pod") as way:
        answer = requests.get(f"http://127.0.0.1:{way.port}/gone", timeout=10)
    assert (answer.status_code, answer.json()["detail"]) == (502, "pods not found")
    assert answer.json()["retryable"]
