"""The store's answers to requests that have a key, so that one that is repeated is carried out once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from scavenger.domain.access import KeyedRequest
from scavenger.domain.document import without_nonfinite
from scavenger.errors import ConfigurationError
from scavenger.store.base import Part
from scavenger.store.service_schema import AnswerRow

KEPT = timedelta(days=1)
"""How long an answer is kept: a client that repeats a request does so within minutes."""


class IdempotencyKeysPart(Part):
    """The part of `Store` that holds answers.

    Every method raises `StoreBusyError`, `StoreReadOnlyError` or `StoreError` where the database cannot serve it.
    """

    def once(self, request: KeyedRequest, change: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Carry out a request, or return the answer that it had when it was carried out before.

        The change and its answer are on record together, or neither is: a request that is refused has no answer on
        record, and may be repeated under its key.

        Args:
            request: Names the request.
            change: Calls methods of this store, and returns the answer as a JSON document; called within `together`.

        Raises:
            ConfigurationError: The user's key named another request.
            ScavengerError: That of `change`.
        """
        with self._database.writing() as session:
            if (row := _row(session, request)) is not None:
                return row.answer
            answer = change()
            now = self._clock()
            session.execute(delete(AnswerRow).where(AnswerRow.at < now - KEPT))
            session.add(
                AnswerRow(
                    user=request.user,
                    key=request.key,
                    digest=request.digest,
                    answer=without_nonfinite(answer),
                    at=now,
                )
            )
            session.flush()
            return answer


def _row(session: Session, request: KeyedRequest) -> AnswerRow | None:
    row = session.scalar(
        select(AnswerRow).where(AnswerRow.user == request.user, AnswerRow.key == request.key)
    )
    if row is not None and row.digest != request.digest:
        raise ConfigurationError(
            f"the idempotency key {request.key!r} was used for another request; use a new key for each"
        )
    return row
