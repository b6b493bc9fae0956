"""What every request passes before its route: Host and Origin, the headers of answers, the audit log, metrics."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scavenger.masking import mask
from scavenger.server.context import Context
from scavenger.server.problems import RefusedError, problem_response

log = logging.getLogger(__name__)

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_LOGIN = "/login"
"""The one route that changes something although it is a link: it begins a session."""
_HEADERS = {
    # the pages of the server have scripts and styles of its own only, and no other page may show them in a frame
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Shield:
    """Refuses foreign hosts and origins; sets headers; audits changes and logins; records times in metrics."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app, self._context = app, context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        status = 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if scope["method"] not in _SAFE or scope["path"] == _LOGIN:
                    self._audit(scope, status)
            await send(message)

        try:
            refusal = _refusal(Headers(scope=scope), self._context)
            if refusal is not None:
                await problem_response(refusal.problem)(scope, receive, sending)
            else:
                await self._app(scope, receive, sending)
        finally:
            took_s = time.perf_counter() - begin
            self._context.metrics.count_request(scope["method"], _route(scope), status, took_s)

    def _audit(self, scope: Scope, status: int) -> None:
        """Have a change, or an attempt, recorded with the next transaction; indicators are data, not changes."""
        route = _route(scope)
        if route.endswith("/indicators"):
            return
        user = getattr(Request(scope).state, "user", "")
        client = scope["client"][0] if scope.get("client") else ""
        action, target = f"{scope['method']} {route}", mask(scope["path"])[:500]

        def write() -> None:
            self._context.store.add_audit(user, action, target, status=status, client=client)

        def told(done: Future[None]) -> None:
            if (error := done.exception()) is not None:  # the change itself is done
                log.warning("the audit log lacks %s %s by %s: %s", action, target, user, error)

        self._context.writer.add(write).add_done_callback(told)


def _route(scope: Scope) -> str:
    """The path of the route with its parameters' names, so that there are few of them; empty if there is none."""
    route: Any = scope.get("route")
    return getattr(route, "path", "")


def _refusal(headers: Headers, context: Context) -> RefusedError | None:
    host = headers.get("host", "").lower()
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    if name not in context.settings.hosts:
        return RefusedError(
            403,
            "host",
            f"this server is not {name[:100]!r}",
            fix="address it by a name that it allows: `scavenger serve --allowed-host NAME`",
        )
    origin = headers.get("origin")
    if origin is not None and not _is_own(origin, host):
        return RefusedError(403, "origin", "the request comes from a page of another origin")
    return None


def _is_own(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host
