"""The store's users, their tokens, and the record of who changed what."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import timedelta
from typing import cast

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.orm import Session

from scavenger.domain.access import (
    TOKEN_PREFIX,
    AuditRecord,
    Caller,
    Role,
    Token,
    User,
    check_user_name,
    token_digest,
)
from scavenger.errors import ConfigurationError, NotFoundError
from scavenger.store.base import Part
from scavenger.store.service_schema import AuditRow, TokenRow, UserRow

AUDIT_MAX = 100_000
"""Most records kept of what a user has changed, the newest."""
REFUSED_MAX = 10_000
"""Most records kept of what a user was refused, and of all attempts without a valid token, the newest."""
_TRIMMED_EVERY = 1000


class AccessPart(Part):
    """The part of `Store` that holds users, tokens and the audit log.

    Every method raises `StoreBusyError`, `StoreReadOnlyError` or `StoreError` where the database cannot serve it.
    """

    def set_user(self, name: str, role: Role) -> User:
        """Add a user, or change the role of one.

        Raises:
            ConfigurationError: The name is not one word.
        """
        try:
            check_user_name(name)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        with self._database.writing() as session:
            row = session.get(UserRow, name) or UserRow(name=name, created_at=self._clock())
            row.role = role
            session.add(row)
            session.flush()
            return _user(row)

    def users(self) -> tuple[User, ...]:
        """All users, by name."""
        with self._database.reading() as session:
            return tuple(map(_user, session.scalars(select(UserRow).order_by(UserRow.name))))

    def user(self, name: str) -> User | None:
        """A user by name; None if there is none."""
        with self._database.reading() as session:
            row = session.get(UserRow, name)
            return None if row is None else _user(row)

    def delete_user(self, name: str) -> bool:
        """Delete a user with all tokens, and what was made with them; jobs stay. Returns whether there was one."""
        with self._database.writing() as session:
            row = session.get(UserRow, name)
            if row is None:
                return False
            _end(session, TokenRow.user == name)
            session.delete(row)
            return True

    def new_token(
        self,
        user: str,
        label: str,
        *,
        lasts: timedelta | None = None,
        text: str = "",
        made_with: Token | None = None,
        is_session: bool = False,
    ) -> tuple[Token, str]:
        """Make a token of a user; only its digest is stored.

        Args:
            user: Whose it is.
            label: What it is for.
            lasts: How long it is valid at most; None for as long as `made_with` is.
            text: Its text, if whoever is to have it has made that; empty for a new one.
            made_with: The token of whoever asks for it, with which it ends; None where that is the store's owner.
            is_session: Whether it is the session of a browser.

        Returns:
            The token on record, and its text, which is shown once.

        Raises:
            NotFoundError: There is no such user, or `made_with` was revoked.
        """
        text = text or TOKEN_PREFIX + secrets.token_urlsafe(32)
        now = self._clock()
        with self._database.writing() as session:
            if session.get(UserRow, user) is None:
                raise NotFoundError(f"there is no user {user!r}; `scavenger api info` lists them")
            until = None if lasts is None else now + lasts
            if made_with is not None:
                # locked, so that whoever revokes it meanwhile finds the new one, too
                parent = session.get(TokenRow, made_with.id, with_for_update=True)
                if parent is None:
                    raise NotFoundError("the token was revoked; `scavenger api token` makes another")
                if parent.expires_at is not None:
                    until = parent.expires_at if until is None else min(until, parent.expires_at)
            row = TokenRow(
                digest=token_digest(text),
                user=user,
                label=label,
                created_at=now,
                expires_at=until,
                parent=None if made_with is None else made_with.id,
                is_session=is_session,
            )
            session.add(row)
            session.execute(delete(TokenRow).where(TokenRow.expires_at < now))
            session.flush()
            return _token(row), text

    def tokens(self, user: str | None = None) -> tuple[Token, ...]:
        """Tokens that have not expired, of one user or of all, by number."""
        query = select(TokenRow).order_by(TokenRow.id)
        if user is not None:
            query = query.where(TokenRow.user == user)
        now = self._clock()
        with self._database.reading() as session:
            found = map(_token, session.scalars(query))
            return tuple(token for token in found if token.expires_at is None or token.expires_at > now)

    def revoke_token(self, token_id: int, *, user: str | None = None) -> tuple[Token, ...]:
        """End a token, only of this user if one is given, with all that were made with it, and with those.

        Returns:
            The tokens that ended, this one first; empty if there was none.
        """
        which = TokenRow.id == token_id
        with self._database.writing() as session:
            return _end(session, which if user is None else which & (TokenRow.user == user))

    def end_sessions(self, user: str) -> tuple[Token, ...]:
        """End all sessions of a user in browsers, with the tokens that were made in them; returns what ended."""
        with self._database.writing() as session:
            return _end(session, (TokenRow.user == user) & TokenRow.is_session.is_(True))

    def caller(self, token: str) -> Caller | None:
        """Who has this token; None if nobody has, or it has expired."""
        query = select(TokenRow, UserRow).join(UserRow, UserRow.name == TokenRow.user)
        with self._database.reading() as session:
            found = session.execute(query.where(TokenRow.digest == token_digest(token))).first()
            if found is None:
                return None
            record = _token(found[0])
            if record.expires_at is not None and record.expires_at <= self._clock():
                return None
            return Caller(_user(found[1]), record)

    # ---- the audit log -------------------------------------------------------------------------------------

    def add_audit(self, user: str, action: str, target: str, *, status: int, client: str) -> None:
        """Record who changed what, or tried to.

        The oldest beyond `AUDIT_MAX` of a user, and beyond `REFUSED_MAX` of what was refused, are deleted: nobody's
        requests end the record of what another has done, nor refused ones that of what was done.
        """
        with self._database.writing() as session:
            row = AuditRow(
                at=self._clock(), user=user, action=action, object=target, status=status, client=client
            )
            session.add(row)
            session.flush()
            if row.id % _TRIMMED_EVERY == 0:
                _trim_audit(session)

    def audit(self, limit: int = 100, *, before: int | None = None) -> tuple[AuditRecord, ...]:
        """The newest records with a number below `before`, newest first."""
        query = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
        if before is not None:
            query = query.where(AuditRow.id < before)
        with self._database.reading() as session:
            return _audit(session.scalars(query).all())

    def has_admin_token(self) -> bool:
        """Whether anybody can manage the server: an admin has a token that does not expire."""
        with self._database.reading() as session:
            return _admin_tokens(session) > 0


def _admin_tokens(session: Session) -> int:
    query = select(func.count()).select_from(TokenRow).join(UserRow, UserRow.name == TokenRow.user)
    return session.scalar(query.where(UserRow.role == "admin", TokenRow.expires_at.is_(None))) or 0


def _end(session: Session, which: ColumnElement[bool]) -> tuple[Token, ...]:
    """Delete tokens with those that were made with them, generation by generation."""
    ended: list[Token] = []
    while rows := session.scalars(
        select(TokenRow).where(which).order_by(TokenRow.id).with_for_update()
    ).all():
        ended += map(_token, rows)
        ids = [row.id for row in rows]
        which = TokenRow.parent.in_(ids) & TokenRow.id.not_in([one.id for one in ended])
    session.execute(delete(TokenRow).where(TokenRow.id.in_([one.id for one in ended])))
    return tuple(ended)


def _user(row: UserRow) -> User:
    return User(row.name, cast(Role, row.role), row.created_at)


def _token(row: TokenRow) -> Token:
    return Token(
        row.id, row.user, row.label, row.created_at, row.expires_at, row.parent, bool(row.is_session)
    )


def _trim_audit(session: Session) -> None:
    refused = AuditRow.status >= 400
    counted = select(AuditRow.user, refused, func.count()).group_by(AuditRow.user, refused)
    for user, was_refused, count in session.execute(counted).all():
        most = REFUSED_MAX if was_refused or not user else AUDIT_MAX
        if count <= most:
            continue
        group = (AuditRow.user == user) & (refused if was_refused else ~refused)
        newest = select(AuditRow.id).where(group).order_by(AuditRow.id.desc())
        last = session.scalar(newest.offset(most).limit(1))
        session.execute(delete(AuditRow).where(group & (AuditRow.id <= last)))


def _audit(rows: Sequence[AuditRow]) -> tuple[AuditRecord, ...]:
    return tuple(
        AuditRecord(row.id, row.at, row.user, row.action, row.object, row.status, row.client) for row in rows
    )
