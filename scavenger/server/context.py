"""What the routes work with: the store, its writer, and the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

import msgspec
from fastapi import Depends, Request
from starlette.responses import Response

from scavenger.api.calls import Local
from scavenger.control.service.server import configured_limits
from scavenger.domain.access import Caller
from scavenger.policy.admission import QueueLimits
from scavenger.server.callers import Callers
from scavenger.server.metrics import Metrics
from scavenger.server.settings import ServerSettings
from scavenger.server.writer import Writer
from scavenger.store import Store


@dataclass(frozen=True, slots=True)
class Context:
    """What the routes work with.

    Attributes:
        callers: Callers by their tokens; to be told when a user or token was changed.
        limits: Those that whoever runs submitted jobs was given; None: those of the settings file.
        is_ready: Tells whether whoever runs submitted jobs works; asked by `/readyz`.
    """

    store: Store
    writer: Writer
    settings: ServerSettings
    callers: Callers
    metrics: Metrics = field(default_factory=Metrics)
    is_ready: Callable[[], bool] = lambda: True
    limits: QueueLimits | None = None

    def local(self, caller: Caller, key: str | None = None) -> Local:
        """The store, as a caller sees it, for a request that may be repeated under a key."""
        return Local(
            store=self.store,
            caller=caller,
            key=key,
            write=self.writer.call,
            count_indicators=self.metrics.count_indicators,
        )

    def queue_limits(self) -> QueueLimits:
        """Limits under which submitted jobs begin.

        Raises:
            JobFileError: Those of the settings file apply, and it is invalid.
        """
        limits = configured_limits() if self.limits is None else self.limits
        return limits.under(self.store.budgets())


async def _context(request: Request) -> Context:  # not async, it would be called in a thread each time
    return cast(Context, request.app.state.context)


ContextOf = Annotated[Context, Depends(_context)]


def answer(document: Mapping[str, Any], status: int = 200) -> Response:
    """An answer in JSON, which is made as documents of commands are: it is not checked again."""
    return Response(msgspec.json.encode(document), status_code=status, media_type="application/json")
