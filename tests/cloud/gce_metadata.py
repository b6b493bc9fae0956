"""Compute Engine's metadata server, as far as a VM's preemption goes."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from email.message import Message
from urllib.parse import parse_qs, urlsplit

from metadata_server import Answer, MetadataServer

HEADERS = {
    "Metadata-Flavor": "Google",
    "Server": "Metadata Server for VM",
    "Content-Type": "application/text",
}


class GceMetadata(MetadataServer):
    """Holds a request with `wait_for_change` open until the value's version is not `last_etag` any more.

    Args:
        host: This machine's address that it is reached by.
        token: Makes the identity token for an audience; None for a VM without a service account.

    Attributes:
        held: Requests that wait now.
        values: What is told of the VM, by the paths below `instance/`.
        timeouts_s: The `timeout_sec` of each request that waited; the wait itself ends by `expire` or a change alone.
    """

    def __init__(self, host: str = "127.0.0.1", token: Callable[[str], str] | None = None) -> None:
        self._token = token
        self._changed = threading.Condition()
        self._preempted = False
        self._expired = 0
        self.held = 0
        self.timeouts_s: list[int] = []
        self.requests: list[str] = []
        self.values: dict[str, str] = {}
        self.down = False
        super().__init__(host)

    def preempt(self) -> None:
        """The value turns to TRUE."""
        with self._changed:
            self._preempted = True
            self._changed.notify_all()

    def expire(self) -> None:
        """The time of every waiting request is over."""
        with self._changed:
            self._expired += 1
            self._changed.notify_all()

    def wait_for_held(self) -> None:
        """Until a request waits."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.held > 0, 10)

    def answer(self, method: str, path: str, headers: Message) -> Answer:
        self.requests.append(path)
        if self.down:
            return 503, HEADERS, "Service Unavailable"
        if headers.get("Metadata-Flavor") != "Google" or "X-Forwarded-For" in headers:
            return 403, HEADERS, "Missing Metadata-Flavor:Google header."
        url = urlsplit(path)
        if (known := self.values.get(url.path.removeprefix("/computeMetadata/v1/instance/"))) is not None:
            return 200, HEADERS, known
        if url.path == "/computeMetadata/v1/instance/service-accounts/default/identity" and method == "GET":
            return self._identity(parse_qs(url.query))
        if url.path != "/computeMetadata/v1/instance/preempted" or method != "GET":
            return 404, HEADERS, "Not Found"
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        with self._changed:
            if query.get("wait_for_change") == "true":
                self._hold(query.get("last_etag"), int(query.get("timeout_sec", "0")))
            value, version = self._value()
        return 200, {**HEADERS, "ETag": version}, value

    def _identity(self, query: dict[str, list[str]]) -> Answer:
        if self._token is None:
            return 404, HEADERS, "service account not found"
        if "audience" not in query:
            return 400, HEADERS, "non-empty audience parameter required"
        return 200, HEADERS, self._token(query["audience"][-1])

    def _hold(self, last_etag: str | None, timeout_s: int) -> None:
        self.timeouts_s.append(timeout_s)
        known = last_etag if last_etag is not None else self._value()[1]
        expired = self._expired
        self.held += 1
        self._changed.notify_all()
        self._changed.wait_for(lambda: self._value()[1] != known or self._expired > expired, 10)
        self.held -= 1

    def _value(self) -> tuple[str, str]:
        value = "TRUE" if self._preempted else "FALSE"
        return value, f"{zlib.crc32(value.encode()):016x}"
