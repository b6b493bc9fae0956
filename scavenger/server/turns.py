"""Lets few reads be computed at a time: threads of Python that compute at once take the interpreter from each other."""

from __future__ import annotations

import asyncio
import os

from starlette.types import ASGIApp, Message, Receive, Scope, Send

READS_MIN = 2
"""Reads at a time on a machine with one processor: one may wait for the database while the other computes."""
WAIT_S = 0.25
"""How long a read waits for its turn. Then it is computed all the same: those before it may wait for a cloud."""
_READS = frozenset({"GET", "HEAD"})


class Turns:
    """Has reads wait for each other until their answers begin, so that streams hold nobody up. Changes never wait.

    Args:
        app: Computes the answers.
        at_once: Reads that are computed at a time; None for the number of processors, and at least `READS_MIN`.
        wait_s: See `WAIT_S`.
    """

    def __init__(self, app: ASGIApp, *, at_once: int | None = None, wait_s: float = WAIT_S) -> None:
        processors = len(os.sched_getaffinity(0))
        self._app, self._wait_s = app, wait_s
        self._turns = asyncio.Semaphore(at_once or max(READS_MIN, processors))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in _READS:
            await self._app(scope, receive, send)
            return
        has_turn = await self._taken()

        async def sending(message: Message) -> None:
            give_back()
            await send(message)

        def give_back() -> None:
            nonlocal has_turn
            if has_turn:
                has_turn = False
                self._turns.release()

        try:
            await self._app(scope, receive, sending)
        finally:
            give_back()

    async def _taken(self) -> bool:
        try:
            await asyncio.wait_for(self._turns.acquire(), self._wait_s)
        except TimeoutError:
            return False
        return True
