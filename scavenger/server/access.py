"""Who makes a request: by a token in the header, or by the session of a browser in a cookie."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import Depends, Path, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.requests import HTTPConnection
from fastapi.security import APIKeyCookie, APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer

from scavenger.api.forms import JOB_KEY, JobKey
from scavenger.domain.access import Caller
from scavenger.server.context import ContextOf
from scavenger.server.problems import RefusedError

COOKIE = "scavenger_session"
SESSION = timedelta(hours=12)
TOKEN_HEADER = "X-Scavenger-Token"  # noqa: S105 - the name of a header
"""Instead of `Authorization`, which the API server of Kubernetes takes out of what it forwards."""

_bearer = HTTPBearer(auto_error=False, description="A token, as `scavenger api token` makes it.")
_header = APIKeyHeader(
    name=TOKEN_HEADER,
    auto_error=False,
    description="A token, where a proxy keeps the header Authorization to itself.",
)


class _SessionCookie(APIKeyCookie):
    """The cookie of a session, by the name that it has at this address."""

    async def __call__(self, request: HTTPConnection) -> str | None:
        return request.cookies.get(cookie_name(request)) or None


def cookie_name(request: HTTPConnection) -> str:
    """The name of the cookie of a session: browsers keep one jar for all ports of a host."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"{COOKIE}_{port}" if port.isdigit() else COOKIE


_cookie = _SessionCookie(
    name=COOKIE,
    auto_error=False,
    description="The session of a browser, from `/login`; its name ends with `_PORT` where the address has a port.",
)


async def _caller(
    request: Request,
    context: ContextOf,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    header: Annotated[str | None, Depends(_header)],
    session: Annotated[str | None, Depends(_cookie)],
) -> Caller:
    """The user whose token comes with the request.

    Raises:
        RefusedError: 401 without a valid token; 403 for a change by a cookie that another site may have sent.
    """
    sent = bearer.credentials if bearer is not None else header
    token = sent or session
    caller = context.callers.kept(token) if token else None
    if caller is None and token:
        caller = await run_in_threadpool(context.callers.find, token)
    if caller is None:
        raise RefusedError(
            401,
            "unauthorized",
            "the request has no valid token",
            fix="send `Authorization: Bearer TOKEN`; `scavenger api token` makes one",
            headers={"WWW-Authenticate": 'Bearer realm="scavenger"'},
        )
    # a browser adds the cookie to what any page asks for; the Origin, which pages cannot set, was checked before
    if not sent and request.method not in ("GET", "HEAD") and "origin" not in request.headers:
        raise RefusedError(403, "origin", "a change by a browser's session needs the header Origin")
    request.state.user = caller.user.name
    request.state.sent = token
    return caller


CallerOf = Annotated[Caller, Depends(_caller)]


async def _changer(caller: CallerOf) -> Caller:
    if not caller.user.changes_jobs:
        raise RefusedError(403, "forbidden", f"{caller.user.name} is a viewer, who changes nothing")
    return caller


async def _admin(caller: CallerOf) -> Caller:
    if caller.user.role != "admin":
        raise RefusedError(403, "forbidden", f"{caller.user.name} is no admin")
    return caller


async def _overseer(caller: CallerOf) -> Caller:
    if not caller.user.sees_all:
        raise RefusedError(403, "forbidden", f"{caller.user.name} sees only their own jobs")
    return caller


Overseer = Annotated[Caller, Depends(_overseer)]
"""A caller who sees what is of all users."""
Changer = Annotated[Caller, Depends(_changer)]
"""A caller who may change jobs."""
Admin = Annotated[Caller, Depends(_admin)]
"""A caller who may manage users."""


PathKey = Annotated[JobKey, Path(description=JOB_KEY)]
"""The job that a path names."""
