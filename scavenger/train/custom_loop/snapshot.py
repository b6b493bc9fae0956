"""Checkpoints of a custom training loop: a replica and the shard ledger of the same step, in one manifest."""

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
    """The state of a loop after one step, from which it can be resumed.

    Attributes:
        step: The last step that it includes.
        view: The newest view that the job has had.
        launched: How many workers the job has had, since names are not used twice.
        ledger: `Ledger.snapshot()` of that step.
        state: The replica, by name.
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
        """Write a checkpoint, which becomes the newest one.

        Raises:
            TransientError: If it cannot be written.
            ConfigurationError: If there is no permission to write to the URL.
            NotSupportedError: If a checkpoint cannot hold a tensor's type.
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
        """Read the newest checkpoint that passes verification; None if there is no checkpoint.

        Raises:
            ConfigurationError: If it belongs to another job.
            TransientError: If the checkpoints cannot be read, or all of them are damaged.
        """
        found = self._store.latest()
        if found is None:
            return None
        manifest = found.manifest
        ledger = manifest.state["ledger"]
        if manifest.fingerprint != self._fingerprint(ledger["sizes"]):
            raise ConfigurationError(
                f"the checkpoint of step {manifest.step} does not belong to {self._train}"
            )
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
    """Decides when to write checkpoints, writes them, and holds the one to roll back to.

    Args:
        snapshots: The job's checkpoints; None to write none.
        held: The checkpoint that the job begins with; None for a new job.
        every_s: Shortest time between two checkpoints, seconds.
        clock: Monotonic seconds.
        now: The date and time of checkpoints.

    Attributes:
        held: The newest checkpoint of this run, or the one that it began with; None if there is neither.
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
        """Whether a checkpoint of this step should be written now."""
        newest = 0 if self.held is None else self.held.step
        return self._snapshots is not None and step > newest and self._clock() - self._at >= self._every_s

    def asked(self, snapshot: LoopSnapshot) -> None:
        """Note that a worker was asked for its state; `snapshot` holds the rest of a checkpoint of that step."""
        if self._snapshots is not None:
            self._asked = {snapshot.step: snapshot, **self._asked}

    def take(self, step: int, state: dict[str, Array]) -> bool:
        """Write a checkpoint of a state that has arrived, if one is due; returns whether it was written."""
        asked = self._asked.pop(step, None)
        if asked is None or self._snapshots is None or not self.due(step):
            return False
        self.held = replace(asked, state=state)
        self._snapshots.write(self.held, created_at=self._now())
        self._at = self._clock()
        self._asked = {other: kept for other, kept in self._asked.items() if other > step}
        return True

    def discard_requests(self) -> None:
        """Ignore states that were requested before a rollback, when they arrive."""
        self._asked = {}
