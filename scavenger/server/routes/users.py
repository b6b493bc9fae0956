"""Users and tokens, the audit log, and what serves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from scavenger.api.service import service_document
from scavenger.api.values import SCHEMA_VERSION, plain
from scavenger.control.settings import load_settings
from scavenger.domain.access import Caller
from scavenger.errors import ConfigurationError, NotFoundError
from scavenger.server import schemas
from scavenger.server.access import Admin, CallerOf
from scavenger.server.context import ContextOf, answer
from scavenger.server.paging import encode, number_place
from scavenger.server.problems import RefusedError
from scavenger.server.routes.jobs import Cursor, Limit
from scavenger.version import __version__

router = APIRouter(prefix="/v1", tags=["users"])

API = "v1"
UserName = Annotated[str, Path(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]


@router.get("/info", response_model=schemas.InfoAnswer, summary="What serves, and who asks")
def info(context: ContextOf, caller: CallerOf) -> Response:
    """Versions, the store, and the calling user."""
    return answer(
        {
            "schema_version": SCHEMA_VERSION,
            "version": __version__,
            "api": API,
            "user": caller.user.name,
            "role": caller.user.role,
            "store": context.store.name,
            "schema_revision": context.store.revision,
            "servers": len(context.store.servers()),
        }
    )


@router.get("/service", response_model=schemas.ServiceAnswer, summary="Servers, users and webhooks")
def service(context: ContextOf, _: Admin) -> Response:
    """Live servers, users with their tokens, and what became of notifications, as `scavenger api info` shows them."""
    return answer(service_document(context.store, load_settings().notify))


@router.get("/users", response_model=schemas.UsersAnswer, summary="Users")
def list_users(context: ContextOf, _: Admin) -> Response:
    """All users with their roles."""
    return answer({"schema_version": SCHEMA_VERSION, "users": plain(context.store.users())})


@router.put("/users/{user}", response_model=schemas.UsersAnswer, summary="Add or change a user")
def put_user(context: ContextOf, caller: Admin, user: UserName, request: schemas.UserRequest) -> Response:
    """Add a user, or change the role of one."""
    _spare_self(caller, user)
    made = context.writer.call(lambda: context.store.set_user(user, request.role))
    context.callers.forget()
    return answer({"schema_version": SCHEMA_VERSION, "users": [plain(made)]})


@router.delete("/users/{user}", response_model=schemas.UsersAnswer, summary="Delete a user")
def delete_user(context: ContextOf, caller: Admin, user: UserName) -> Response:
    """Delete a user with all tokens; the user's jobs stay."""
    _spare_self(caller, user)
    found = context.store.user(user)
    if found is None or not context.writer.call(lambda: context.store.delete_user(user)):
        raise NotFoundError(f"there is no user {user!r}; GET /v1/users lists them")
    context.callers.forget()
    return answer({"schema_version": SCHEMA_VERSION, "users": [plain(found)]})


def _spare_self(caller: Caller, user: str) -> None:
    if user == caller.user.name:
        raise ConfigurationError("nobody changes or deletes themselves, so that an admin remains")


@router.get("/tokens", response_model=schemas.TokensAnswer, summary="Tokens")
def list_tokens(context: ContextOf, caller: CallerOf) -> Response:
    """The caller's tokens; of an admin, those of all users."""
    user = None if caller.user.role == "admin" else caller.user.name
    return answer({"schema_version": SCHEMA_VERSION, "tokens": plain(context.store.tokens(user))})


@router.post(
    "/users/{user}/tokens", response_model=schemas.TokenAnswer, status_code=201, summary="Make a token"
)
def new_token(
    context: ContextOf, caller: CallerOf, user: UserName, request: schemas.NewTokenRequest
) -> Response:
    """Make a token of the caller, or, as an admin, of any user; its text is shown only now.

    It ends with the token that it is made with, and never after it.
    """
    if caller.user.role != "admin" and user != caller.user.name:
        raise RefusedError(403, "forbidden", "only an admin makes tokens of others")
    lasts = None if request.days is None else timedelta(days=request.days)
    until = caller.token.expires_at
    if until is not None and lasts is not None and datetime.now(UTC) + lasts > until:
        raise ConfigurationError(
            f"a token ends with the one that it is made with, which is valid until {until:%Y-%m-%d %H:%M} UTC; ask for "
            "fewer days, or make it with a token that lasts longer"
        )
    token, text = context.writer.call(
        lambda: context.store.new_token(user, request.label, lasts=lasts, made_with=caller.token)
    )
    return answer({"schema_version": SCHEMA_VERSION, "token": plain(token), "text": text}, 201)


@router.delete("/tokens/{token}", response_model=schemas.TokensAnswer, summary="Revoke a token")
def revoke_token(
    context: ContextOf, caller: CallerOf, token: Annotated[int, Path(ge=1, lt=2**63)]
) -> Response:
    """Revoke a token, with its sessions and all that was made with it; the answer has what ended.

    One of another user is revoked only by an admin.
    """
    user = None if caller.user.role == "admin" else caller.user.name
    ended = context.writer.call(lambda: context.store.revoke_token(token, user=user))
    if not ended:
        raise NotFoundError(f"there is no token {token}; GET /v1/tokens lists them")
    context.callers.forget()
    return answer({"schema_version": SCHEMA_VERSION, "tokens": plain(ended)})


@router.delete("/users/{user}/sessions", response_model=schemas.TokensAnswer, summary="End a user's sessions")
def end_sessions(context: ContextOf, caller: CallerOf, user: UserName) -> Response:
    """End all sessions of the caller in browsers, or, as an admin, of any user; the answer has what ended."""
    if caller.user.role != "admin" and user != caller.user.name:
        raise RefusedError(403, "forbidden", "only an admin ends sessions of others")
    if context.store.user(user) is None:
        raise NotFoundError(f"there is no user {user!r}; GET /v1/users lists them")
    ended = context.writer.call(lambda: context.store.end_sessions(user))
    context.callers.forget()
    return answer({"schema_version": SCHEMA_VERSION, "tokens": plain(ended)})


@router.get("/audit", response_model=schemas.AuditPage, summary="Who changed what")
def list_audit(context: ContextOf, _: Admin, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """The record of all attempts to change something, newest first."""
    context.writer.call(lambda: None)  # what was done before this request is on record
    found = context.store.audit(limit + 1, before=number_place(cursor))
    shown = found[:limit]
    following = encode(shown[-1].id) if len(found) > limit else None
    return answer({"schema_version": SCHEMA_VERSION, "records": plain(shown), "next": following})
