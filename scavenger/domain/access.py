"""Who may use the server: users, their roles and tokens, and the record of what they did."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

Role = Literal["admin", "user", "viewer"]
"""`admin`: sees and changes everything, users too. `user`: submits jobs, sees and changes their own. `viewer`: sees
every job and changes none."""
ROLES: tuple[Role, ...] = get_args(Role)

SERVER = "SCAVENGER_SERVER"
"""The variable with the URL of the server; unset or empty: commands work on the store itself."""
TOKEN_PREFIX = "scv_"  # noqa: S105 - what every token begins with, by which it is recognised and masked
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


def token_digest(token: str) -> str:
    """SHA-256, hex, under which a token is stored: it has 256 random bits, so a slow hash would add nothing."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def check_user_name(name: str) -> str:
    """The name of a user, as it is.

    Raises:
        ValueError: It is not one word of up to 64 letters, digits and `._@-`.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"a user's name has up to 64 letters, digits and ._@-, not {name[:80]!r}")
    return name


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who may use the server.

    Attributes:
        name: Unique; jobs belong to a user by this name.
    """

    name: str
    role: Role
    created_at: datetime

    @property
    def sees_all(self) -> bool:
        """Whether the user sees jobs of others."""
        return self.role != "user"

    @property
    def changes_jobs(self) -> bool:
        """Whether the user may submit jobs and operate on them."""
        return self.role != "viewer"


@dataclass(frozen=True, slots=True)
class Token:
    """A user's token on record: never its text.

    Attributes:
        id: Number by which it is revoked.
        label: What it is for, one line.
        expires_at: None if it does not expire; never after that of `parent`.
        parent: The token that it was made with, and ends with; None for one that was made at the store itself.
        is_session: Whether it is the session of a browser.
    """

    id: int
    user: str
    label: str
    created_at: datetime
    expires_at: datetime | None
    parent: int | None = None
    is_session: bool = False


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request, as shown by a token."""

    user: User
    token: Token


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A request that may be repeated, and is carried out once.

    Attributes:
        user: Who sends it.
        key: Names it among the user's requests.
        digest: SHA-256, hex, of what is asked for.
    """

    user: str
    key: str
    digest: str


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One attempt to change something.

    Attributes:
        id: Grows with time.
        user: Empty if the caller is unknown.
        action: Method and route, as `POST /v1/jobs/{job}/stop`.
        object: Path of what was to be changed.
        status: HTTP status of the answer.
        client: Address of the caller.
    """

    id: int
    at: datetime
    user: str
    action: str
    object: str
    status: int
    client: str


def is_loopback(host: str) -> bool:
    """Whether an address is of the loopback interface, so that what is sent there stays on the machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
