"""The client for programs with an event loop: each call runs on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from scavenger.pipelines.client import Client

__all__ = ["AsyncClient"]

P = ParamSpec("P")
A = TypeVar("A")


class _Awaited(Generic[P, A]):
    """A method of `Client` as one to await.

    Args:
        stops: Whether its job is stopped, and waited for, if the call is cancelled; else its thread waits on.
    """

    def __init__(self, method: Callable[Concatenate[Client, P], A], *, stops: bool = True) -> None:
        self._method, self._stops = method, stops
        self.__doc__ = method.__doc__

    def __get__(self, of: AsyncClient, kind: type[AsyncClient]) -> Callable[P, Coroutine[Any, Any, A]]:
        method, stops = self._method, self._stops

        @wraps(method)
        async def awaited(*args: P.args, **kwargs: P.kwargs) -> A:
            thread: list[int] = []

            def body() -> A:
                thread.append(threading.get_ident())
                return method(of._client, *args, **kwargs)

            task = asyncio.ensure_future(asyncio.to_thread(body))
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                if stops:
                    if thread:
                        of._client.stop_job(thread[0], "cancelled")
                    await asyncio.wait([task])
                raise

        return awaited


class AsyncClient:
    """`Client` with methods to await; see there for what each does and raises, and for the arguments.

    A cancelled call stops its job in order, and ends when that has ended. If `wait` is cancelled, its thread waits on,
    and the job goes on.
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

    @property
    def spent_usd(self) -> float:
        """See `Client.spent_usd`."""
        return self._client.spent_usd

    @property
    def left_usd(self) -> float:
        """See `Client.left_usd`."""
        return self._client.left_usd

    close: Final = _Awaited(Client.close, stops=False)
    plan: Final = _Awaited(Client.plan)
    optimize: Final = _Awaited(Client.optimize)
    run: Final = _Awaited(Client.run)
    attempt: Final = _Awaited(Client.attempt)
    submit: Final = _Awaited(Client.submit)
    wait: Final = _Awaited(Client.wait, stops=False)
    result: Final = _Awaited(Client.result)
    curve: Final = _Awaited(Client.curve)
    model: Final = _Awaited(Client.model)
    models: Final = _Awaited(Client.models)
