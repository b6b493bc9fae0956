"""Requests to the metadata service of the VM that this process runs on.

References:
    "Use the Instance Metadata Service to access instance metadata", Amazon EC2 User Guide: version 2, with session
    tokens; "View and query VM metadata", Compute Engine documentation.
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from scavenger.errors import ConfigurationError

ADDRESS = "169.254.169.254"
"""Address of the metadata service on every VM of both clouds."""
ANSWER_MAX_S = 0.5
"""Time limit of a request to the service on the VM's own host; three requests and a poll fit in a notice's delay."""
_TOKEN_S = 21_600
"""Longest lifetime of a session token."""
_BODY_BYTES_MAX = 65_536
_VARIABLES = {"ec2": "AWS_EC2_METADATA_SERVICE_ENDPOINT", "gce": "GCE_METADATA_HOST"}


@dataclass(frozen=True, slots=True)
class Reply:
    """A response of a metadata service; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: str


class Transport(Protocol):
    """Sends requests to the metadata service."""

    def __call__(self, method: str, path: str, headers: Mapping[str, str], answer_max_s: float) -> Reply:
        """Send one request.

        Raises:
            OSError, http.client.HTTPException: If there is no answer within `answer_max_s` seconds.
        """


def http_transport(host: str = ADDRESS, port: int = 80) -> Transport:
    """Create a transport over HTTP without a proxy, since the service identifies VMs by their address."""

    def ask(method: str, path: str, headers: Mapping[str, str], answer_max_s: float) -> Reply:
        connection = http.client.HTTPConnection(host, port, timeout=answer_max_s)
        try:
            connection.request(method, path, headers=dict(headers))
            answer = connection.getresponse()
            body = answer.read(_BODY_BYTES_MAX).decode(errors="replace")
            return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, body)
        finally:
            connection.close()

    return ask


def address_of_service(service: str, environment: Mapping[str, str]) -> tuple[str, int]:
    """Host and port of the metadata service `ec2` or `gce`, by the variables that the clouds' own libraries use.

    Raises:
        ConfigurationError: If the variable for the address holds no address.
    """
    variable = _VARIABLES[service]
    text = environment.get(variable, "") or ADDRESS
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port or 80
    except ValueError:
        host, port = None, 0
    if not host or parts.scheme != "http":
        raise ConfigurationError(f"{variable} must be the address of a metadata service, not {text!r}")
    return host, port


def good(reply: Reply) -> Reply:
    """Return a reply of status 200.

    Raises:
        ConnectionError: If its status is another one.
    """
    if reply.status != 200:
        raise ConnectionError(f"status {reply.status}")
    return reply


class Ec2Metadata:
    """EC2's service, with a session token that is renewed when the service rejects it."""

    def __init__(self, transport: Transport) -> None:
        self._ask = transport
        self._token = ""

    def page(self, path: str) -> str | None:
        """Read a page; None while it is missing.

        Raises:
            OSError, http.client.HTTPException: If the service does not answer, or not with the page.
        """
        for _ in range(2):
            if not self._token:
                lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)}
                self._token = good(self._ask("PUT", "/latest/api/token", lifetime, ANSWER_MAX_S)).body
            reply = self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token}, ANSWER_MAX_S)
            if reply.status == 404:
                return None
            if reply.status != 401:
                return good(reply).body
            self._token = ""
        raise ConnectionError("the metadata service refuses the token that it has just given")


def gce_page(transport: Transport, path: str, answer_max_s: float = ANSWER_MAX_S) -> Reply:
    """Read a page of Compute Engine's server.

    Raises:
        ConnectionError: If what answers is another server.
        OSError, http.client.HTTPException: If there is no answer.
    """
    reply = transport("GET", path, {"Metadata-Flavor": "Google"}, answer_max_s)
    if reply.status == 200 and reply.headers.get("metadata-flavor") != "Google":
        raise ConnectionError("what answers is not Compute Engine's metadata server")
    return reply
