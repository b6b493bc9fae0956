"""The client for programs with an event loop: each call runs on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from scavenger.domain.report import Observer
from scavenger.pipelines.client import Client
from scavenger.pipelines.job import Job
from scavenger.pipelines.narrowing import Choices
from scavenger.pipelines.results import Models, Plan, Run, Submission

if TYPE_CHECKING:
    from scavenger.store.records import ModelRecord

__all__ = ["AsyncClient"]

Answer = TypeVar("Answer")


class AsyncClient:
    """`Client` with methods to await; see there for what each does and raises.

    A cancelled call stops its job in order, and ends when that has ended. Arguments are those of `Client`.
    """

    def __init__(
        self,
        *,
        store: str | None = None,
        server: str | None = None,
        token: str | None = None,
        budget: str | float | None = None,
        progress: bool | None = None,
        trackers: Mapping[str, str] | None = None,
    ) -> None:
        self._client = Client(
            store=store, server=server, token=token, budget=budget, progress=progress, trackers=trackers
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """See `Client.close`."""
        await asyncio.to_thread(self._client.close)

    @property
    def spent_usd(self) -> float:
        """See `Client.spent_usd`."""
        return self._client.spent_usd

    @property
    def left_usd(self) -> float:
        """See `Client.left_usd`."""
        return self._client.left_usd

    async def plan(self, job: Job, *, observer: Observer | None = None) -> Plan:
        """See `Client.plan`."""
        return await self._call(lambda: self._client.plan(job, observer=observer))

    async def optimize(self, job: Job, *, observer: Observer | None = None) -> Run:
        """See `Client.optimize`."""
        return await self._call(lambda: self._client.optimize(job, observer=observer))

    async def run(
        self,
        job: Job,
        choice: Choices | None = None,
        *,
        workers: int | None = None,
        batch_size: int | None = None,
        observer: Observer | None = None,
    ) -> Run:
        """See `Client.run`."""
        return await self._call(
            lambda: self._client.run(job, choice, workers=workers, batch_size=batch_size, observer=observer)
        )

    async def attempt(self, job: Job, *, observer: Observer | None = None) -> Run:
        """See `Client.attempt`."""
        return await self._call(lambda: self._client.attempt(job, observer=observer))

    async def submit(self, job: Job, *, priority: int = 0) -> Submission:
        """See `Client.submit`."""
        return await self._call(lambda: self._client.submit(job, priority=priority))

    async def wait(self, job: str | Submission, *, observer: Observer | None = None) -> Run:
        """See `Client.wait`; if it is cancelled, its thread waits on, and the job goes on."""
        return await asyncio.to_thread(self._client.wait, job, observer=observer)

    async def result(self, job: str) -> Run:
        """See `Client.result`."""
        return await self._call(lambda: self._client.result(job))

    async def curve(self, job: str) -> Plan:
        """See `Client.curve`."""
        return await self._call(lambda: self._client.curve(job))

    async def model(self, model: str) -> ModelRecord:
        """See `Client.model`."""
        return await self._call(lambda: self._client.model(model))

    async def models(self) -> Models:
        """See `Client.models`."""
        return await self._call(self._client.models)

    async def _call(self, ask: Callable[[], Answer]) -> Answer:
        thread: list[int] = []

        def body() -> Answer:
            thread.append(threading.get_ident())
            return ask()

        task = asyncio.ensure_future(asyncio.to_thread(body))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if thread:
                self._client.stop_job(thread[0], "cancelled")
            await asyncio.wait([task])
            raise
