"""Writes of all requests, by one thread, those that wait together in one transaction.

A SQLite database has one writer at a time, and each transaction waits for the disk: writers that compete for the lock
poll for it, and are served in no order. One thread that takes what has arrived meanwhile commits it once.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from scavenger.errors import StoreError
from scavenger.store import Store

BATCH_MAX = 200
"""Most writes of one transaction, so that other processes get their turn."""

Result = TypeVar("Result")


class Writer:
    """Carries out writes one after another; `start` it before the first, `stop` it after the last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.transactions = 0

    def start(self) -> Self:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Carry out what waits, and end the thread."""
        self._waiting.put(None)
        if self._thread is not None:
            self._thread.join()

    def call(self, write: Callable[[], Result]) -> Result:
        """Carry out a write, one method of the store, and return its result once it is committed.

        Raises:
            ScavengerError: That of the write, which then changed nothing, or of the transaction.
        """
        return self.add(write).result()

    def add(self, write: Callable[[], Result]) -> Future[Result]:
        """Have a write carried out, after all that were added before it, and do not wait for it."""
        future: Future[Result] = Future()
        if self._thread is None or not self._thread.is_alive():
            future.set_exception(StoreError("the server is ending; try again"))
        else:
            self._waiting.put((write, future))
        return future

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch, over = [first], False
            while len(batch) < BATCH_MAX:
                try:
                    following = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if following is None:
                    over = True
                    break
                batch.append(following)
            self._commit(batch)
            if over:
                return

    def _commit(self, batch: list[tuple[Callable[[], Any], Future[Any]]]) -> None:
        done: list[tuple[Future[Any], Any, Exception | None]] = []
        try:
            with self._store.together():
                for write, future in batch:
                    try:
                        done.append((future, write(), None))
                    except Exception as error:  # noqa: BLE001 - it belongs to the request that asked for it
                        done.append((future, None, error))
        except Exception as error:  # noqa: BLE001 - nothing was committed, so all have failed
            for _, future in batch:
                future.set_exception(error)
            return
        self.transactions += 1
        for future, result, failure in done:
            if failure is None:
                future.set_result(result)
            else:
                future.set_exception(failure)
