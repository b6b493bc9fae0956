"""Events of a job as they come, by server-sent events [1]_.

References:
    .. [1] WHATWG, "HTML Living Standard", section 9.2, "Server-sent events".
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated

import anyio
from fastapi import APIRouter, Header, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from scavenger.api.values import plain
from scavenger.masking import mask_values
from scavenger.server.access import CallerOf, PathKey
from scavenger.server.context import Context, ContextOf
from scavenger.server.problems import RefusedError
from scavenger.store.records import EventRecord, JobRecord

router = APIRouter(prefix="/v1", tags=["jobs"])

POLL_S = 0.5
ALIVE_S = 15.0
"""A comment is sent after so long without an event, so that proxies do not close the connection."""
BATCH = 200

LastEventId = Annotated[
    str | None,
    Header(max_length=20, pattern=r"^[0-9]{1,18}$", description="Id of the last event that was received."),
]


@router.get(
    "/jobs/{job}/events/stream",
    response_class=StreamingResponse,
    summary="Events of a job as they come",
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
def stream(
    request: Request, context: ContextOf, caller: CallerOf, job: PathKey, last_event_id: LastEventId = None
) -> StreamingResponse:
    """All events after the one that is named by `Last-Event-ID`, then each new one; `end` when the job has ended.

    The stream breaks off when the token is revoked, or its user's role changes.
    """
    record = context.local(caller).find_job(job)
    metrics = context.metrics
    if not metrics.begin_stream():
        raise RefusedError(503, "streams", "too many clients follow events", fix="close some, or try again")
    after = int(last_event_id or 0)
    sent = request.state.sent

    def may_go_on() -> bool:
        found = context.callers.find(sent)
        return found is not None and found.user.role == caller.user.role

    return StreamingResponse(
        _events(context, record, after, may_go_on),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


async def _events(
    context: Context, job: JobRecord, after: int, may_go_on: Callable[[], bool]
) -> AsyncIterator[bytes]:
    store, told_s = context.store, time.monotonic()
    try:
        yield b"retry: 2000\n\n"
        while await run_in_threadpool(may_go_on):
            # the state is read first, so that the last events are read after the end
            over = (await run_in_threadpool(store.job, job.id)).ended
            found = await run_in_threadpool(store.events_after, job.id, BATCH, after)
            for event in found:
                after = event.id
                yield _message(event)
            if found:
                told_s = time.monotonic()
            elif over:
                yield b"event: end\ndata: {}\n\n"
                return
            elif time.monotonic() - told_s > ALIVE_S:
                told_s = time.monotonic()
                yield b": alive\n\n"
            if len(found) < BATCH and not over:
                await anyio.sleep(POLL_S)
    finally:
        context.metrics.end_stream()


def _message(event: EventRecord) -> bytes:
    """One event, of the type `job`; its JSON is ASCII, so that nothing in it is a line end to any reader."""
    return f"id: {event.id}\nevent: job\ndata: {json.dumps(mask_values(plain(event)))}\n\n".encode()
