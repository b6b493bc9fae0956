"""The session of a browser: who uses it, and its end."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from scavenger.server.access import CallerOf, cookie_name
from scavenger.server.context import ContextOf
from scavenger.server.dashboard.answers import Form, PageRoute, page_answer

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/session")
def session(caller: CallerOf) -> Response:
    """Who uses this browser, until when, and the buttons that end it."""
    until = caller.token.expires_at
    return page_answer(
        "session.html",
        caller.user.name,
        role=caller.user.role,
        until=f"{until:%Y-%m-%d %H:%M} UTC" if until else "",
    )


@router.post("/session/end")
def end(request: Request, context: ContextOf, caller: CallerOf, form: Form) -> Response:
    """End this session, or all of its user."""
    store, token = context.store, caller.token
    if form.get("which") == "all":
        context.writer.call(lambda: store.end_sessions(caller.user.name))
    elif token.is_session:
        context.writer.call(lambda: store.revoke_token(token.id))
    context.callers.forget()
    answered = page_answer("session_ended.html", "")
    answered.delete_cookie(
        cookie_name(request), httponly=True, samesite="strict", secure=context.settings.tls
    )
    return answered
