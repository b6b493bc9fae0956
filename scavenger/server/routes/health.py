"""Whether the server works, its metrics, and the login of browsers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from scavenger.errors import ScavengerError
from scavenger.server.access import SESSION, CallerOf, cookie_name
from scavenger.server.context import ContextOf, answer
from scavenger.server.metrics import CONTENT_TYPE
from scavenger.server.problems import RefusedError

router = APIRouter(tags=["health"])

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/login"})
"""Routes that need no token."""
UNTRACED_PATHS = OPEN_PATHS | {"/metrics"}
"""Routes without spans: machines ask them all the time, and a login has its token in the address."""


@router.get("/healthz", response_model=dict[str, str], summary="Whether the process answers")
def healthz() -> Response:
    """Whether the process answers; asks nothing else, so that a slow database does not end the process."""
    return answer({"status": "ok"})


@router.get("/readyz", response_model=dict[str, str], summary="Whether requests can be served")
def readyz(context: ContextOf) -> Response:
    """Whether the store can be read and submitted jobs are run; 503 if not, without saying why to strangers."""
    try:
        context.store.has_admin_token()
    except ScavengerError:
        raise RefusedError(
            503, "not_ready", "the store does not answer", fix="see the server's log"
        ) from None
    if not context.is_ready():
        raise RefusedError(503, "not_ready", "submitted jobs are not run now", fix="see the server's log")
    return answer({"status": "ready"})


@router.get(
    "/metrics",
    response_class=Response,
    summary="Metrics for Prometheus",
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(context: ContextOf, caller: CallerOf) -> Response:
    """All metrics, with units in their names; only for callers who see every job."""
    if not caller.user.sees_all:
        raise RefusedError(
            403, "forbidden", "metrics tell of all jobs: use the token of a viewer or an admin"
        )
    text = context.metrics.text(context.store.census(), datetime.now(UTC))
    return Response(text, headers={"Content-Type": CONTENT_TYPE})


@router.get("/login", response_class=RedirectResponse, status_code=303, summary="Begin a browser's session")
def login(
    request: Request, context: ContextOf, token: Annotated[str, Query(min_length=1, max_length=200)]
) -> Response:
    """Exchange a token for the cookie of a session; the address with the token does not stay in the browser.

    The session ends with the token, and never after it.
    """
    store = context.store
    caller = store.caller(token)
    if caller is None:
        raise RefusedError(
            401, "unauthorized", "the token is not valid", fix="`scavenger api token` makes one"
        )
    request.state.user = caller.user.name
    _, session = context.writer.call(
        lambda: store.new_token(
            caller.user.name, "session of a browser", lasts=SESSION, made_with=caller.token, is_session=True
        )
    )
    answered = RedirectResponse("/", status_code=303)
    answered.set_cookie(
        cookie_name(request),
        session,
        max_age=int(SESSION.total_seconds()),
        httponly=True,
        samesite="strict",
        secure=context.settings.tls,
    )
    return answered
