"""Cursors: the place in a list, or in logs, after which the next page begins, opaque to clients."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

import msgspec

from scavenger.errors import ConfigurationError

UNPACKED_MAX = 1 << 20
"""Bytes of an unpacked cursor of logs."""


class CursorError(ConfigurationError):
    """A cursor is not one of the list."""


@dataclass(frozen=True, slots=True)
class LogPosition:
    """How far the logs of a job were read.

    Attributes:
        event: Id of the last event; 0 before the first.
        offsets: Bytes by process, up to the end of a line.
    """

    event: int = 0
    offsets: Mapping[str, int] = field(default_factory=dict)


Place = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


def encode(*place: str | int) -> str:
    """A cursor that stands for a place."""
    return base64.urlsafe_b64encode(json.dumps(place, separators=(",", ":")).encode()).decode().rstrip("=")


def job_place(cursor: str | None) -> tuple[datetime, str] | None:
    """Creation time and id of the last job of the page before.

    Raises:
        CursorError: The cursor is not one of this list.
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
        CursorError: The cursor is not one of this list.
    """
    match _decoded(cursor):
        case None:
            return None
        case [int(number)] if 0 <= number < 2**63:
            return number
    raise _foreign()


def encode_logs(position: LogPosition) -> str:
    """A cursor that stands for what was read of logs; packed, as there may be hundreds of processes."""
    text = json.dumps((position.event, position.offsets), separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(zlib.compress(text)).decode().rstrip("=")


def log_place(cursor: str | None) -> LogPosition | None:
    """What was read of the logs before.

    Raises:
        CursorError: The cursor is not one of logs.
    """
    if cursor is None:
        return None
    try:
        packed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        text = zlib.decompressobj().decompress(packed, UNPACKED_MAX)
        event, offsets = msgspec.json.decode(text, type=tuple[Place, dict[str, Place]])
    except (ValueError, zlib.error, msgspec.MsgspecError):
        raise _foreign() from None
    return LogPosition(event, offsets)


def _decoded(cursor: str | None) -> object:
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        return json.loads(base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True)) or []
    except (ValueError, binascii.Error, RecursionError):
        raise _foreign() from None


def _foreign() -> CursorError:
    return CursorError("the cursor is not one of this list; begin without a cursor, and take `next`")
