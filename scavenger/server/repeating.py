"""Requests that a client may repeat under a key: the change is made once, and each repetition has the first answer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Header, Request
from starlette.responses import Response

from scavenger.domain.access import KeyedRequest
from scavenger.server.access import Changer
from scavenger.server.context import Context, ContextOf, answer

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="A request that is repeated with the same key is carried out once, and has the first answer.",
    ),
]


@dataclass(frozen=True, slots=True)
class Once:
    """Carries out the change of a request.

    Attributes:
        request: None if the request has no key, and is carried out each time.
    """

    context: Context
    request: KeyedRequest | None

    def answer(self, change: Callable[[], dict[str, Any]], status: int = 202) -> Response:
        """Carry out a change, and answer with the document that it returns.

        Args:
            change: Calls methods of the store; all of it is one transaction.
            status: Of the answer.

        Raises:
            ScavengerError: That of the change.
        """
        store, writer, request = self.context.store, self.context.writer, self.request
        if request is None:
            return answer(writer.call(change), status)
        return answer(writer.call(lambda: store.once(request, change)), status)


async def _once(
    request: Request, context: ContextOf, caller: Changer, idempotency_key: IdempotencyKey = None
) -> Once:
    if idempotency_key is None:
        return Once(context, None)
    url = request.url
    named = "\n".join((request.method, url.path, url.query))
    asked = named.encode() + b"\n" + await request.body()
    digest = hashlib.sha256(asked).hexdigest()
    return Once(context, KeyedRequest(caller.user.name, idempotency_key, digest))


OnceOf = Annotated[Once, Depends(_once)]
