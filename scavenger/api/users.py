"""Users and tokens, the audit log, and what serves."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import Field

from scavenger.api.calls import Local, call
from scavenger.api.forms import Cursor, Days, Limit, Number, UserName
from scavenger.api.paging import encode, number_place
from scavenger.api.values import Answer, gathered
from scavenger.domain.access import AuditRecord, Role, Token, User
from scavenger.domain.notification import NOTIFICATION_KINDS, NotificationCount, NotificationState
from scavenger.errors import ConfigurationError, ForbiddenError, NotFoundError
from scavenger.version import __version__

API = "v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class InfoAnswer(Answer):
    """What serves, and who asks.

    Attributes:
        servers: Processes that run submitted jobs.
    """

    version: str
    api: str
    user: str
    role: Role
    store: str
    schema_revision: str
    servers: int


@call("get", "info", tag="users", summary="What serves, and who asks")
def info(at: Local) -> InfoAnswer:
    """Versions, the store, and the calling user."""
    return InfoAnswer(
        version=__version__,
        api=API,
        user=at.user,
        role="admin" if at.caller is None else at.caller.user.role,
        store=at.store.name,
        schema_revision=at.store.revision,
        servers=len(at.store.servers()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveServer:
    """A process that runs submitted jobs.

    Attributes:
        address: URL of its API; empty if it has none.
        background: Whether it was started for a detached job, and ends when nothing is left to do.
    """

    address: str
    host: str
    pid: int
    user: str
    version: str
    background: bool
    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookDocument:
    """A webhook, and what became of its notifications.

    Attributes:
        events: Kinds of notifications that it gets.
        signed: Whether they are signed.
        delivered, waiting, refused: How many.
        error: Of the latest that was not delivered; empty if there is none.
    """

    name: str
    format: str
    events: tuple[str, ...]
    signed: bool
    delivered: int
    waiting: int
    refused: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAnswer(Answer):
    """As `scavenger api info -o json`."""

    version: str
    store: str
    servers: tuple[LiveServer, ...]
    users: tuple[User, ...]
    tokens: tuple[Token, ...]
    webhooks: tuple[WebhookDocument, ...]


@call("get", "service", tag="users", summary="Servers, users and webhooks", role="admin")
def service(at: Local) -> ServiceAnswer:
    """Live servers, users with their tokens, and what became of notifications, as `scavenger api info` shows them."""
    from scavenger.control.settings import load_settings

    webhooks = load_settings().notify
    queues: dict[str, dict[NotificationState, NotificationCount]] = {name: {} for name in webhooks}
    for one in at.store.notification_counts():
        queues.get(one.webhook, {})[one.state] = one
    found = []
    for name, webhook in webhooks.items():
        queue = queues[name]
        troubles = [queue[state].error for state in ("waiting", "refused") if state in queue]
        counts = {state: one.count for state, one in queue.items()}
        found.append(
            WebhookDocument(
                name=name,
                format=webhook.format,
                events=tuple(webhook.events or NOTIFICATION_KINDS),
                signed=bool(webhook.secret_from),
                delivered=counts.get("delivered", 0),
                waiting=counts.get("waiting", 0),
                refused=counts.get("refused", 0),
                error=next(filter(None, troubles), ""),
            )
        )
    return ServiceAnswer(
        version=__version__,
        store=at.store.name,
        servers=tuple(gathered(LiveServer, one) for one in at.store.servers()),
        users=tuple(at.store.users()),
        tokens=tuple(at.store.tokens()),
        webhooks=tuple(found),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersAnswer(Answer):
    """Users with their roles."""

    users: tuple[User, ...]


@call("get", "users", tag="users", summary="Users", role="admin")
def list_users(at: Local) -> UsersAnswer:
    """All users with their roles."""
    return UsersAnswer(users=tuple(at.store.users()))


@call(
    "put",
    "users/{user}",
    tag="users",
    summary="Add or change a user",
    role="admin",
    writes="access",
    body="UserRequest",
)
def put_user(at: Local, user: UserName, role: Role) -> UsersAnswer:
    """Add a user, or change the role of one."""
    _spare_self(at, user)
    return UsersAnswer(users=(at.store.set_user(user, role),))


@call("delete", "users/{user}", tag="users", summary="Delete a user", role="admin", writes="access")
def delete_user(at: Local, user: UserName) -> UsersAnswer:
    """Delete a user with all tokens; the user's jobs stay."""
    _spare_self(at, user)
    found = at.store.user(user)
    if found is None or not at.store.delete_user(user):
        raise _no_user(user)
    return UsersAnswer(users=(found,))


def _spare_self(at: Local, user: str) -> None:
    if at.caller is not None and user == at.user:
        raise ConfigurationError("nobody changes or deletes themselves, so that an admin remains")


def _no_user(user: str) -> NotFoundError:
    return NotFoundError(f"there is no user {user!r}; `scavenger api info` lists them")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensAnswer(Answer):
    """Tokens, never their texts."""

    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAnswer(Answer):
    """A new token.

    Attributes:
        text: The token itself, which is shown only now.
    """

    token: Token
    text: str


@call("get", "tokens", tag="users", summary="Tokens")
def list_tokens(at: Local) -> TokensAnswer:
    """The caller's tokens; of an admin, those of all users."""
    return TokensAnswer(tokens=tuple(at.store.tokens(None if at.is_admin else at.user)))


@call(
    "post",
    "users/{user}/tokens",
    tag="users",
    summary="Make a token",
    writes="access",
    status=201,
    repeats=False,  # the text is kept nowhere
    body="NewTokenRequest",
)
def new_token(
    at: Local,
    user: UserName,
    label: Annotated[str, Field(max_length=200)] = "",
    days: Annotated[Days | None, Field(description="How long it is valid; null: for good.")] = None,
) -> TokenAnswer:
    """Make a token of the caller, or, as an admin, of any user; its text is shown only now.

    It ends with the token that it is made with, and never after it.
    """
    if not at.is_admin and user != at.user:
        raise ForbiddenError("only an admin makes tokens of others")
    lasts = None if days is None else timedelta(days=days)
    own = None if at.caller is None else at.caller.token
    until = None if own is None else own.expires_at
    if until is not None and lasts is not None and datetime.now(UTC) + lasts > until:
        raise ConfigurationError(
            f"a token ends with the one that it is made with, which is valid until {until:%Y-%m-%d %H:%M} UTC; ask for "
            "fewer days, or make it with a token that lasts longer"
        )
    token, text = at.store.new_token(user, label, lasts=lasts, made_with=own)
    return TokenAnswer(token=token, text=text)


@call("delete", "tokens/{token}", tag="users", summary="Revoke a token", writes="access")
def revoke_token(at: Local, token: Number) -> TokensAnswer:
    """Revoke a token, with its sessions and all that was made with it; the answer has what ended.

    One of another user is revoked only by an admin.
    """
    ended = at.store.revoke_token(token, user=None if at.is_admin else at.user)
    if not ended:
        raise NotFoundError(f"there is no token {token}; `scavenger api info` lists them")
    return TokensAnswer(tokens=tuple(ended))


@call("delete", "users/{user}/sessions", tag="users", summary="End a user's sessions", writes="access")
def end_sessions(at: Local, user: UserName) -> TokensAnswer:
    """End all sessions of the caller in browsers, or, as an admin, of any user; the answer has what ended."""
    if not at.is_admin and user != at.user:
        raise ForbiddenError("only an admin ends sessions of others")
    if at.store.user(user) is None:
        raise _no_user(user)
    return TokensAnswer(tokens=tuple(at.store.end_sessions(user)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage(Answer):
    """Attempts to change something, newest first."""

    records: tuple[AuditRecord, ...]
    next: str | None


@call("get", "audit", tag="users", summary="Who changed what", role="admin")
def list_audit(at: Local, limit: Limit = 50, cursor: Cursor = None) -> AuditPage:
    """The record of all attempts to change something, newest first."""
    at.write(lambda: None)  # what was done before this request is on record
    found = at.store.audit(limit + 1, before=number_place(cursor))
    shown = tuple(found[:limit])
    return AuditPage(records=shown, next=encode(shown[-1].id) if len(found) > limit else None)
