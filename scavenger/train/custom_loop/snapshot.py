"""Checkpoints of a custom training loop: a replica and the shard ledger of the same step, in one manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from scavenger.errors import ConfigurationError
from scavenger.train.checkpoints.checkpoint import CheckpointStore
from scavenger.train.checkpoints.manifest import CheckpointManifest
from scavenger.train.custom_loop.messages import Array
from scavenger.train.transport.messages import CheckpointWritten

_PART, _BEST = "replica", "best"


@dataclass(frozen=True, slots=True)
class LoopSnapshot:
    """The state of a loop after one step, from which it can be resumed.

    Attributes:
        step: The last step that it includes.
        view: The newest view that the job has had.
        launched: How many workers the job has had, since names are not used twice.
        ledger: `Ledger.snapshot()` of that step.
        state: The replica, by name.
        best: The replica of the best epoch, if another one than `state` is to be kept.
    """

    step: int
    view: int
    launched: int
    ledger: dict[str, Any]
    state: dict[str, Array]
    best: dict[str, Array] = field(default_factory=dict)


class LoopSnapshots:
    """The checkpoints of one job.

    Args:
        url: See `CheckpointStore`.
        train: The training function, as the job names it.
    """

    def __init__(self, url: str, train: str) -> None:
        self._store, self._train = CheckpointStore(url), train

    def write(self, snapshot: LoopSnapshot, *, created_at: datetime) -> int:
        """Write a checkpoint, which becomes the newest one; returns its size in bytes.

        Raises:
            TransientError: If it cannot be written.
            ConfigurationError: If there is no permission to write to the URL.
            NotSupportedError: If a checkpoint cannot hold a tensor's type.
        """
        step, ledger = snapshot.step, snapshot.ledger
        attempt = f"v{snapshot.view}_{created_at.timestamp():.6f}".replace(".", "_")
        states = {_PART: snapshot.state, **({_BEST: snapshot.best} if snapshot.best else {})}
        parts = [
            self._store.write_part(step, attempt, name, state, infinite=True)
            for name, state in states.items()
        ]
        self._store.commit(
            CheckpointManifest(
                fingerprint=self._fingerprint(ledger["sizes"]),
                step=step,
                attempt=attempt,
                epoch=ledger["epoch"],
                consumed=sum(ledger["offsets"]),
                view=snapshot.view,
                parts=tuple(parts),
                created_at=created_at,
                state={"ledger": ledger, "launched": snapshot.launched},
            )
        )
        return sum(part.bytes for part in parts)

    def latest(self, *, finite: bool = False) -> LoopSnapshot | None:
        """Read the newest checkpoint that passes verification; None if there is no checkpoint.

        Args:
            finite: Whether none of its numbers may be NaN. Infinities are: a loop's state may have some from the begin.

        Raises:
            ConfigurationError: If it belongs to another job.
            TransientError: If the checkpoints cannot be read, or all of them are damaged.
        """
        found = self._store.latest(finite=finite)
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
            best=found.tensors(_BEST) if any(part.name == _BEST for part in manifest.parts) else {},
        )

    def _fingerprint(self, sizes: list[int]) -> str:
        return hashlib.sha256(f"loop {self._train} {sizes}".encode()).hexdigest()


class LoopCheckpointer:
    """Decides when to write checkpoints, writes them, and holds the one to roll back to.

    Args:
        snapshots: The job's checkpoints; None to write none.
        held: The checkpoint that the job begins with; None for a new job.
        every_s: Shortest time between two checkpoints, seconds.
        every_steps: Steps after which one is due sooner; 0 for no such limit.
        clock: Monotonic seconds.
        now: The date and time of checkpoints.

    Attributes:
        held: The newest checkpoint of this run, or the one that it began with; None if there is neither.
        best: The replica of the best epoch, which checkpoints keep, too.
        recorded: Whether everything up to a step is on record elsewhere, so that a checkpoint of it may be written.
    """

    def __init__(
        self,
        snapshots: LoopSnapshots | None,
        *,
        held: LoopSnapshot | None,
        every_s: float,
        every_steps: int = 0,
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self._snapshots, self._every_s, self._clock, self._now = snapshots, every_s, clock, now
        self._every_steps = every_steps
        self.held = held
        self.best: dict[str, Array] = {} if held is None else held.best
        self.recorded: Callable[[int], bool] = lambda step: True
        self._at = clock()
        self._asked: dict[int, LoopSnapshot] = {}
        self._ready: LoopSnapshot | None = None

    def due(self, step: int) -> bool:
        """Whether a checkpoint of this step should be written now."""
        newest = 0 if self.held is None else self.held.step
        if self._snapshots is None or step <= newest or self._ready is not None:
            return False
        soon = bool(self._every_steps) and step - newest >= self._every_steps
        return soon or self._clock() - self._at >= self._every_s

    def asked(self, snapshot: LoopSnapshot) -> None:
        """Note that a worker was asked for its state; `snapshot` holds the rest of a checkpoint of that step."""
        if self._snapshots is not None:
            self._asked = {snapshot.step: snapshot, **self._asked}

    def take(self, step: int, state: dict[str, Array], *, at_once: bool = False) -> None:
        """Keep a state that has arrived for `write`, if a checkpoint is due, or in any case if `at_once`."""
        asked = self._asked.pop(step, None)
        if asked is not None and (at_once or self.due(step)):
            self._ready = replace(asked, state=state, best=self.best)
            self._asked = {other: kept for other, kept in self._asked.items() if other > step}

    def write(self) -> CheckpointWritten | None:
        """Write the checkpoint that is ready, once its steps are on record; returns what was written, if anything.

        Raises:
            TransientError, ConfigurationError, NotSupportedError: See `LoopSnapshots.write`; it is not tried again.
        """
        ready = self._ready
        if ready is None or self._snapshots is None or not self.recorded(ready.step):
            return None
        self._ready, self._at = None, self._clock()
        size = self._snapshots.write(ready, created_at=self._now())
        self.held = ready
        return CheckpointWritten(ready.step, ready.ledger["epoch"], self._clock() - self._at, size)

    @property
    def pending(self) -> bool:
        """Whether a checkpoint is ready, and not written yet."""
        return self._ready is not None

    def discard_requests(self) -> None:
        """Ignore states that were requested before a rollback, when they arrive."""
        self._asked, self._ready = {}, None
