"""Cursors: the place in a list after which the next page begins, opaque to clients."""

from __future__ import annotations

import base64
import binascii
import json
from datetime import datetime

from scavenger.server.problems import RefusedError

__all__ = ["PAGE_MAX", "encode", "job_place", "number_place"]

PAGE_MAX = 200


def encode(*place: str | int) -> str:
    """A cursor that stands for a place."""
    return base64.urlsafe_b64encode(json.dumps(place, separators=(",", ":")).encode()).decode().rstrip("=")


def job_place(cursor: str | None) -> tuple[datetime, str] | None:
    """Creation time and id of the last job of the page before.

    Raises:
        RefusedError: The cursor is not one of this list.
    """
    match _decoded(cursor):
        case None:
            return None
        case [str(at), str(job_id)]:
            try:
                moment = datetime.fromisoformat(at)
            except ValueError:
                raise _foreign() from None
            if moment.tzinfo is not None:
                return moment, job_id
    raise _foreign()


def number_place(cursor: str | None) -> int | None:
    """Number of the last entry of the page before.

    Raises:
        RefusedError: The cursor is not one of this list.
    """
    match _decoded(cursor):
        case None:
            return None
        case [int(number)] if 0 <= number < 2**63:
            return number
    raise _foreign()


def _decoded(cursor: str | None) -> object:
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        return json.loads(base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True)) or []
    except (ValueError, binascii.Error, RecursionError):
        raise _foreign() from None


def _foreign() -> RefusedError:
    return RefusedError(
        409, "cursor", "the cursor is not one of this list", fix="begin without a cursor, and take `next`"
    )
