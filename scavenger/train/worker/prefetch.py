"""Prefetching: reads the next batches while the current one is computed."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class _Batches(Protocol):
    def batch(self, indices: npt.NDArray[np.int64]) -> tuple[Any, ...]: ...


@dataclass(slots=True, eq=False)
class _Request:
    indices: npt.NDArray[np.int64]
    begun: bool = False
    done: bool = False
    batch: tuple[Any, ...] = ()
    error: BaseException | None = None


class Prefetcher:
    """A double buffer between a source and the one thread that computes.

    Requested batches are read in the background, in the order of the requests, so that a slow source (disk,
    decoding) delays no step as long as it keeps up. A request becomes stale when a later one is taken, when
    `depth` newer ones have arrived, or after `forget`; a stale request is dropped, if possible before it is read.
    A request is only a hint: `take` returns the right batch whatever was requested before.

    User code is often not thread-safe (one file handle, one decoder), so at most one read runs at a time, and
    `take` waits at most for one stale read that has already begun.

    Args:
        source: Only this object reads it.
        depth: Requests held at a time, read or not. At most that many batches are in memory, plus a stale one
            that is still being read.

    Raises:
        ValueError: If `depth` is below 1.
    """

    def __init__(self, source: _Batches, *, depth: int = 2) -> None:
        if depth < 1:
            raise ValueError(f"a prefetcher needs a depth of at least 1, not {depth}")
        self._source, self._depth = source, depth
        self._requests: dict[Hashable, _Request] = {}
        self._changed = threading.Condition()
        self._reading = self._taking = self._closed = False
        self._thread: threading.Thread | None = None
        self._waited_s = 0.0

    @property
    def waited_s(self) -> float:
        """Total seconds that `take` has waited for data."""
        return self._waited_s

    def want(self, key: Hashable, indices: npt.NDArray[np.int64]) -> None:
        """Request a batch in advance, after those requested earlier.

        Args:
            key: Key to pass to `take`: (step, start, stop) of a share.
            indices: Sample indices, shape `(n,)`; must not be changed afterwards.
        """
        with self._changed:
            request = self._requests.get(key)
            if self._closed or (request is not None and np.array_equal(request.indices, indices)):
                return
            self._requests.pop(key, None)
            self._requests[key] = _Request(indices)
            while len(self._requests) > self._depth:
                self._requests.pop(next(iter(self._requests)))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def take(self, key: Hashable, indices: npt.NDArray[np.int64]) -> tuple[Any, ...]:
        """Return the batch of these samples: the one requested under the key, or else read now.

        Args:
            key: Key of the request; a request for other samples under this key is stale.
            indices: Sample indices, shape `(n,)`.

        Raises:
            Exception: The exception that the source raised when it read this batch, with its traceback.
        """
        started = time.perf_counter()
        try:
            request = self._claim(key, indices)
            return self._read_now(indices) if request is None else self._result(request)
        finally:
            self._waited_s += time.perf_counter() - started

    def forget(self) -> None:
        """Drop every request, because the view has changed."""
        with self._changed:
            self._requests.clear()

    def close(self) -> None:
        """End the thread, at once or after its current read. `take` still works, without prefetching."""
        with self._changed:
            self._closed = True
            self._requests.clear()
            self._changed.notify_all()

    # ---- consumer thread -----------------------------------------------------------------------------------

    def _claim(self, key: Hashable, indices: npt.NDArray[np.int64]) -> _Request | None:
        """Take a request over, and drop those before it; None if it has to be read here."""
        with self._changed:
            if key in self._requests:
                while next(iter(self._requests)) != key:
                    self._requests.pop(next(iter(self._requests)))
                request = self._requests.pop(key)
                if request.begun and np.array_equal(request.indices, indices):
                    self._changed.wait_for(lambda: request.done)
                    return request
            # the reader thread must not start another read between its current one and the caller's
            self._taking = True
            return None

    def _result(self, request: _Request) -> tuple[Any, ...]:
        if request.error is not None:
            raise request.error
        return request.batch

    def _read_now(self, indices: npt.NDArray[np.int64]) -> tuple[Any, ...]:
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._reading)
            return self._source.batch(indices)
        finally:
            with self._changed:
                self._taking = False
                self._changed.notify_all()

    # ---- reader thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (request := self._next()) is not None:
            try:
                request.batch = self._source.batch(request.indices)
            except BaseException as error:  # noqa: BLE001 - `take` raises whatever user code raised
                request.error = error
            with self._changed:
                request.done, self._reading = True, False
                self._changed.notify_all()

    def _next(self) -> _Request | None:
        """Wait for the next request that can be read; None when closed."""
        with self._changed:
            while not self._closed:
                request = next((request for request in self._requests.values() if not request.begun), None)
                if request is not None and not self._taking:
                    request.begun = self._reading = True
                    return request
                self._changed.wait()
            return None
