"""Checkpoints of a training loop of one's own: a replica and the shard ledger of the same step, in one manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from scavenger.errors import ConfigurationError
from scavenger.train.checkpoints.checkpoint import CheckpointStore, Manifest
from scavenger.train.custom_loop.messages import Array

__all__ = ["LoopCheckpointer", "LoopSnapshot", "LoopSnapshots"]

_PART = "replica"


@dataclass(frozen=True, slots=True)
class LoopSnapshot:
    """All that is needed to go on.

    Attributes:
        step: The last step that is in it.
        view: The newest that the job has had.
        launched: How many workers it has had: names are not given twice.
        ledger: `Ledger.snapshot()` of that step.
        state: The replica.
    """

    step: int
    view: int
    launched: int
    ledger: dict[str, Any]
    state: dict[str, Array]


class LoopSnapshots:
    """The checkpoints of one job.

    Args:
        url: See `CheckpointStore`.
        train: The training function, as the job names it.
    """

    def __init__(self, url: str, train: str) -> None:
        self._store, self._train = CheckpointStore(url), train

    def write(self, snapshot: LoopSnapshot, *, created_at: datetime) -> None:
        """Make it the newest one.

        Raises:
            TransientError: If it cannot be written.
            ConfigurationError: If the place may not be written to.
            NotSupportedError: If a tensor's type is none that a checkpoint holds.
        """
        step, ledger = snapshot.step, snapshot.ledger
        attempt = f"v{snapshot.view}_{created_at.timestamp():.6f}".replace(".", "_")
        part = self._store.write_part(step, attempt, _PART, snapshot.state)
        self._store.commit(
            Manifest(
                fingerprint=self._fingerprint(ledger["sizes"]),
                step=step,
                attempt=attempt,
                epoch=ledger["epoch"],
                consumed=sum(ledger["offsets"]),
                view=snapshot.view,
                parts=(part,),
                created_at=created_at,
                state={"ledger": ledger, "launched": snapshot.launched},
            )
        )

    def latest(self) -> LoopSnapshot | None:
        """The newest one that verifies; None where there is none.

        Raises:
            ConfigurationError: If it is another job's.
            TransientError: If nothing can be said, or what there was is damaged.
        """
        found = self._store.latest()
        if found is None:
            return None
        manifest = found.manifest
        ledger = manifest.state["ledger"]
        if manifest.fingerprint != self._fingerprint(ledger["sizes"]):
            raise ConfigurationError(f"the checkpoint of step {manifest.step} is not of {self._train}")
        return LoopSnapshot(
            step=manifest.step,
            view=manifest.view,
            launched=manifest.state["launched"],
            ledger=ledger,
            state=found.tensors(_PART),
        )

    def _fingerprint(self, sizes: list[int]) -> str:
        return hashlib.sha256(f"loop {self._train} {sizes}".encode()).hexdigest()


class LoopCheckpointer:
    """When checkpoints are written, and which one is gone back to.

    Args:
        snapshots: Where; None for none.
        held: What the job begins with; None for a new one.
        every_s: At least so long apart.
        clock: Monotonic seconds.
        now: For the date of checkpoints.

    Attributes:
        held: The newest one of this life, or that it began with.
    """

    def __init__(
        self,
        snapshots: LoopSnapshots | None,
        *,
        held: LoopSnapshot | None,
        every_s: float,
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self._snapshots, self._every_s, self._clock, self._now = snapshots, every_s, clock, now
        self.held = held
        self._at = clock()
        self._asked: dict[int, LoopSnapshot] = {}

    def due(self, step: int) -> bool:
        """A state of this step is wanted."""
        newest = 0 if self.held is None else self.held.step
        return self._snapshots is not None and step > newest and self._clock() - self._at >= self._every_s

    def asked(self, snapshot: LoopSnapshot) -> None:
        """A state was asked for, for whichever end; this is what belongs to it."""
        if self._snapshots is not None:
            self._asked = {snapshot.step: snapshot, **self._asked}

    def take(self, step: int, state: dict[str, Array]) -> bool:
        """A state has arrived; returns whether a checkpoint was made of it."""
        asked = self._asked.pop(step, None)
        if asked is None or self._snapshots is None or not self.due(step):
            return False
        self.held = replace(asked, state=state)
        self._snapshots.write(self.held, created_at=self._now())
        self._at = self._clock()
        self._asked = {other: kept for other, kept in self._asked.items() if other > step}
        return True

    def go_back(self) -> None:
        """What was asked for is of a life that is undone."""
        self._asked = {}
