"""Workers that trials of a study share which run at once: those of an ended one are given to the others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from scavenger.errors import ConfigurationError, ScavengerError
from scavenger.policy.worker_shares import Sharer, next_shares

__all__ = ["WorkerShares"]

_AGAIN_S = 0.3
"""How soon a job is asked again that could not be scaled, as its choice was not made yet."""

log = logging.getLogger(__name__)

Scale = Callable[[int], bool]
"""Has a job train with so many workers, and waits for it; returns False if it was refused, as before its choice."""


class _Member:
    """One trial.

    Attributes:
        begin: The number that it begins with; 0 while it waits.
        moving: Whether its job is being asked for another size.
        ended: Whether it has ended.
    """

    def __init__(self, sharer: Sharer, scale: Scale) -> None:
        self.sharer, self.scale, self.begin = sharer, scale, 0
        self.moving = self.ended = False


class WorkerShares:
    """Workers that several trials have together; safe to use from several threads.

    Args:
        limit: The most that all have at any time.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._members: list[_Member] = []  # in the order in which they came
        self._changed = threading.Condition()

    @property
    def in_use(self) -> int:
        """How many the trials may have now."""
        with self._changed:
            return sum(one.sharer.has for one in self._members)

    @contextmanager
    def share(self, fewest: int, most: int, scale: Scale) -> Iterator[int]:
        """Wait for workers of a trial, which has them while the block runs; gives the number to begin with.

        Args:
            fewest, most: The workers that it can run with.
            scale: Called on threads of their own, one at a time.

        Raises:
            ConfigurationError: If it needs more than there are.
        """
        if fewest > self.limit:
            raise ConfigurationError(
                f"a trial needs {fewest} workers, and the study's trials have {self.limit} together; raise workers= "
                "of the study, or lower search.workers"
            )
        member = _Member(Sharer(fewest, most), scale)
        with self._changed:
            self._members.append(member)
        try:
            with self._changed:
                self._divide()
                self._changed.wait_for(lambda: member.begin > 0)
            yield member.begin
        finally:
            with self._changed:
                member.ended = True
                self._members.remove(member)
                self._divide()
                self._changed.wait_for(lambda: not member.moving)  # an ended job answers at once

    def _divide(self) -> None:
        """Give each what it is to have next; called with the lock."""
        following = next_shares([one.sharer for one in self._members], self.limit)
        for one, size in zip(tuple(self._members), following, strict=True):
            before = one.sharer.has
            if size == before or one.moving:
                continue
            if size > before:  # what it has not yet is set aside for it
                one.sharer = replace(one.sharer, has=size)
            if not before:
                one.begin = size
            else:
                one.moving = True
                threading.Thread(
                    target=self._move, args=(one, before, size), name="scavenger-shares", daemon=True
                ).start()
        self._changed.notify_all()

    def _move(self, member: _Member, before: int, size: int) -> None:
        """Have a job train with another number of workers, and note what it has then."""
        has = max(before, size)  # where it is not known, it may have either
        done = False
        try:
            done = member.scale(size)
            has = size if done else before
        except ScavengerError as error:
            log.info("a trial was to have %d workers instead of %d: %s", size, before, error)
        with self._changed:
            if not done:
                self._changed.wait_for(lambda: member.ended, timeout=_AGAIN_S)
            member.sharer, member.moving = replace(member.sharer, has=has), False
            self._divide()
