"""Requests that a client may repeat under a key: the change is made once, and each repetition has the first answer."""

from __future__ import annotations

import hashlib
from typing import Annotated

from fastapi import Depends, Header, Request

from scavenger.domain.access import KeyedRequest
from scavenger.server.access import Changer

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="A request that is repeated with the same key is carried out once, and has the first answer.",
    ),
]


async def _keyed(
    request: Request, caller: Changer, idempotency_key: IdempotencyKey = None
) -> KeyedRequest | None:
    if idempotency_key is None:
        return None
    url = request.url
    named = "\n".join((request.method, url.path, url.query))
    asked = named.encode() + b"\n" + await request.body()
    return KeyedRequest(caller.user.name, idempotency_key, hashlib.sha256(asked).hexdigest())


KeyedOf = Annotated[KeyedRequest | None, Depends(_keyed)]
"""The request under its key; None if it has none, and is carried out each time."""
