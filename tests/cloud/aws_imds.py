"""EC2's instance metadata service, version 2 alone, as a VM launched with `HttpTokens=required` sees it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from email.message import Message

from metadata_server import Answer, MetadataServer

TEXT = {"Content-Type": "text/plain"}
_ROLES = "/latest/meta-data/iam/security-credentials/"


class Imds(MetadataServer):
    """Of one VM.

    Args:
        now: The VM's time.
        interrupted_at: When the VM is interrupted, once that is announced; None before.
        rebalance_at: When a rebalance was recommended; None before.
        host: This machine's address that it is reached by.
        document: The VM's signed identity document; None where there is no such page.
        role: Of the instance profile; empty for a VM without one.
    """

    def __init__(
        self,
        now: Callable[[], datetime],
        interrupted_at: Callable[[], datetime | None],
        rebalance_at: Callable[[], datetime | None],
        host: str = "127.0.0.1",
        document: Callable[[], str] | None = None,
        role: str = "",
    ) -> None:
        self._document, self._role = document, role
        self._now, self._interrupted_at, self._rebalance_at = now, interrupted_at, rebalance_at
        self._tokens: dict[str, float] = {}
        self.requests: list[str] = []
        self.down = False
        super().__init__(host)

    def forget_tokens(self) -> None:
        """As after the VM's host was serviced."""
        self._tokens.clear()

    def answer(self, method: str, path: str, headers: Message) -> Answer:
        self.requests.append(f"{method} {path}")
        if self.down:
            return 503, TEXT, ""
        if "X-Forwarded-For" in headers and method == "PUT":
            return 403, TEXT, ""
        if path == "/latest/api/token":
            return self._token(method, headers)
        if method != "GET":
            return 405, TEXT, ""
        expires = self._tokens.get(headers.get("X-aws-ec2-metadata-token") or "")
        if expires is None or self._now().timestamp() >= expires:
            return 401, TEXT, ""
        interrupted, rebalance = self._interrupted_at(), self._rebalance_at()
        if path == "/latest/meta-data/spot/instance-action" and interrupted:
            return 200, TEXT, json.dumps({"action": "terminate", "time": _zulu(interrupted)})
        if path == "/latest/dynamic/instance-identity/rsa2048" and self._document:
            return 200, TEXT, self._document()
        if path == _ROLES and self._role:
            return 200, TEXT, self._role
        if path == f"{_ROLES}{self._role}" and self._role:
            return 200, TEXT, json.dumps(_credentials(self._now()))
        if path == "/latest/meta-data/events/recommendations/rebalance" and rebalance:
            return 200, TEXT, json.dumps({"noticeTime": _zulu(rebalance)})
        return 404, TEXT, "<html>Not Found</html>"

    def _token(self, method: str, headers: Message) -> Answer:
        if method != "PUT":
            return 405, TEXT, ""
        lifetime = headers.get("X-aws-ec2-metadata-token-ttl-seconds") or ""
        if not lifetime.isdigit() or not 1 <= int(lifetime) <= 21_600:
            return 400, TEXT, ""
        token = f"token-{len(self.requests)}"
        self._tokens[token] = self._now().timestamp() + int(lifetime)
        return 200, TEXT, token


def _zulu(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _credentials(now: datetime) -> dict[str, str]:
    """Credentials of a VM's role, as they are for an hour."""
    return {
        "Code": "Success",
        "LastUpdated": _zulu(now),
        "Type": "AWS-HMAC",
        "AccessKeyId": "ASIAROLEOFTHEVM",
        "SecretAccessKey": "secret",
        "Token": "session",
        "Expiration": _zulu(now + timedelta(hours=6)),
    }
