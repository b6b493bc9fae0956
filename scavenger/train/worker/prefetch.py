"""Reading the next batches while the present one is computed."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from scavenger.train.worker.data import Source

__all__ = ["Prefetcher"]


@dataclass(slots=True, eq=False)
class _Wish:
    indices: npt.NDArray[np.int64]
    begun: bool = False
    done: bool = False
    batch: tuple[Any, ...] = ()
    error: BaseException | None = None


class Prefetcher:
    """A double buffer between a source and the one thread that computes.

    What is wanted is read in the background, in the order in which it was asked for, so that a source that is
    slow (disk, decoding) delays no step as long as it keeps up. A wish is stale when something asked for after
    it is taken, when `depth` newer ones have come, or after `forget`: it is then dropped, unread if it can be.
    A wish is only a hint: `take` gives the right batch whatever was wanted before.

    User code is often not safe to be read by two threads at once (one file handle, one decoder), so at most one
    read goes on at a time, and a batch that is taken waits at most for one stale read that has already begun.

    Args:
        source: Read by this object alone.
        depth: Wishes held at a time, read or not; at most that many batches are in memory, and a stale one
            that is still being read.

    Raises:
        ValueError: If `depth` is below 1.
    """

    def __init__(self, source: Source, *, depth: int = 2) -> None:
        if depth < 1:
            raise ValueError(f"a prefetcher needs a depth of at least 1, not {depth}")
        self._source, self._depth = source, depth
        self._wishes: dict[Hashable, _Wish] = {}
        self._changed = threading.Condition()
        self._reading = self._taking = self._closed = False
        self._thread: threading.Thread | None = None
        self._waited_s = 0.0

    @property
    def waited_s(self) -> float:
        """Seconds that `take` has waited for data, in all: what a step lost to reading."""
        return self._waited_s

    def want(self, key: Hashable, indices: npt.NDArray[np.int64]) -> None:
        """Have a batch read before it is needed, behind those wanted before.

        Args:
            key: What `take` will name it by: (step, start, stop) of a share.
            indices: Of the samples, shape `(n,)`; not to be changed afterwards.
        """
        with self._changed:
            wish = self._wishes.get(key)
            if self._closed or (wish is not None and np.array_equal(wish.indices, indices)):
                return
            self._wishes.pop(key, None)
            self._wishes[key] = _Wish(indices)
            while len(self._wishes) > self._depth:
                self._wishes.pop(next(iter(self._wishes)))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def take(self, key: Hashable, indices: npt.NDArray[np.int64]) -> tuple[Any, ...]:
        """The batch of these samples: the one that was wanted under the key, or read now.

        Args:
            key: As it was wanted; a wish for other samples under the same key is stale.
            indices: Of the samples, shape `(n,)`.

        Raises:
            Exception: Whatever the source raised when it read this batch, with its own traceback.
        """
        started = time.perf_counter()
        try:
            wish = self._claim(key, indices)
            return self._read_now(indices) if wish is None else self._result(wish)
        finally:
            self._waited_s += time.perf_counter() - started

    def forget(self) -> None:
        """Drop every wish: the view has changed."""
        with self._changed:
            self._wishes.clear()

    def close(self) -> None:
        """End the thread: at once, or when the read that it is in returns. `take` still reads by itself."""
        with self._changed:
            self._closed = True
            self._wishes.clear()
            self._changed.notify_all()

    # ---- the thread that takes -----------------------------------------------------------------------------

    def _claim(self, key: Hashable, indices: npt.NDArray[np.int64]) -> _Wish | None:
        """Take a wish over, and drop those before it; None if it has to be read here."""
        with self._changed:
            if key in self._wishes:
                while next(iter(self._wishes)) != key:
                    self._wishes.pop(next(iter(self._wishes)))
                wish = self._wishes.pop(key)
                if wish.begun and np.array_equal(wish.indices, indices):
                    self._changed.wait_for(lambda: wish.done)
                    return wish
            # the thread must not begin another read between the one it is in and this one
            self._taking = True
            return None

    def _result(self, wish: _Wish) -> tuple[Any, ...]:
        if wish.error is not None:
            raise wish.error
        return wish.batch

    def _read_now(self, indices: npt.NDArray[np.int64]) -> tuple[Any, ...]:
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._reading)
            return self._source.batch(indices)
        finally:
            with self._changed:
                self._taking = False
                self._changed.notify_all()

    # ---- the thread that reads -----------------------------------------------------------------------------

    def _run(self) -> None:
        while (wish := self._next()) is not None:
            try:
                wish.batch = self._source.batch(wish.indices)
            except BaseException as error:  # noqa: BLE001 - whatever user code raises belongs to who takes it
                wish.error = error
            with self._changed:
                wish.done, self._reading = True, False
                self._changed.notify_all()

    def _next(self) -> _Wish | None:
        """The first wish not yet begun, once there is one and nobody else reads; None when closed."""
        with self._changed:
            while not self._closed:
                wish = next((wish for wish in self._wishes.values() if not wish.begun), None)
                if wish is not None and not self._taking:
                    wish.begun = self._reading = True
                    return wish
                self._changed.wait()
            return None
