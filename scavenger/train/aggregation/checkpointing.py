"""The sequencer's checkpoints: when one is due, who has written which part of it, and when it is whole."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from scavenger.elastic.barrier import Barrier
from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.checkpoints.checkpoint import CheckpointStore
from scavenger.train.checkpoints.checkpoint import Manifest as CheckpointManifest
from scavenger.train.checkpoints.checkpoint import Part as CheckpointPart
from scavenger.train.transport import messages as m

__all__ = ["Checkpointing"]

_ASK_AGAIN_S = 1.0
_PATIENCE_S = 600.0
"""Until a checkpoint counts as lost that an aggregator does not answer for."""


class Checkpointing:
    """One job's checkpoints. Training goes on while one is written.

    One counts only after the leader has said that all steps up to it are on record: a job that is taken up there knows
    how it came there, at whatever moment everybody was killed.

    Args:
        part: The first part.
        plan: Where and when; None for no checkpoints.
        to_aggregator: Sends to one of the other aggregators, by its place.
        report: Sends to whoever leads the job.
        post: Has a message taken by the thread that serves; for other threads.
        step: The last one that was applied when the job was taken up.
    """

    def __init__(
        self,
        part: ModelShard,
        plan: m.CheckpointPlan | None,
        *,
        to_aggregator: Callable[[int, m.Message], None],
        report: Callable[[m.Message], None],
        post: Callable[[m.Message], None],
        step: int,
    ) -> None:
        self._part, self._plan = part, plan
        self._to_aggregator, self._report, self._post = to_aggregator, report, post
        self._store = None if plan is None else CheckpointStore(plan.url)
        self._saving: _Saving | None = None
        self._saved_at, self._saved_step = time.monotonic(), step

    @property
    def busy(self) -> bool:
        """One is being written."""
        return self._saving is not None

    def look(
        self, barrier: Barrier, *, best_step: int, quarantined: tuple[int, ...], now: bool = False
    ) -> None:
        """Begin a checkpoint where one is due.

        Args:
            barrier: Where the job stands, with a step applied just now.
            best_step: After which the weights were best so far; 0 where none is known.
            quarantined: Samples that are left out.
            now: One is due in any case, unless there is one of this step.
        """
        plan = self._plan
        if plan is None or self._saving is not None or self._store is None:
            return
        due = plan.every_s and time.monotonic() - self._saved_at >= plan.every_s
        due = due or (plan.every_steps and barrier.step - self._saved_step >= plan.every_steps)
        if not (due or (now and barrier.step > self._saved_step)):
            return
        self._saving = saving = _Saving(
            CheckpointManifest(
                fingerprint=self._part.layout.manifest.digest,
                step=barrier.step,
                attempt=uuid.uuid4().hex[:12],
                epoch=barrier.position.epoch,
                consumed=barrier.position.consumed,
                view=barrier.number,
                parts=(),
                created_at=datetime.now(UTC),
                state={"best_step": best_step, "quarantined": list(quarantined)},
            )
        )
        self._saved_at, self._saved_step = time.monotonic(), barrier.step
        order = m.SavePart(barrier.step, saving.manifest.attempt, plan.url, best_step > 0)
        for aggregator in range(1, self._part.layout.aggregators):
            self._to_aggregator(aggregator, order)
        self._part.save(self._store, order.step, order.attempt, best=order.best, then=self._post)

    def part_saved(self, message: m.PartSaved) -> None:
        """A part of the checkpoint is written, or could not be."""
        saving = self._saving
        if saving is None or self._store is None or message.attempt != saving.manifest.attempt:
            return
        saving.parts[message.index] = message.parts
        saving.failure = saving.failure or message.error
        self._end(saving)

    def restarted(self, aggregator: int) -> None:
        """An aggregator, by its place, has begun anew: what it was writing will never be whole."""
        saving = self._saving
        if saving is not None and aggregator not in saving.parts:
            saving.parts[aggregator] = ()
            saving.failure = "the aggregator that was writing a part of it was restarted"
            self._end(saving)

    def tick(self) -> None:
        """Give one up that somebody never answers for: the next must not wait for it for ever."""
        saving, now = self._saving, time.monotonic()
        if saving is None or saving.committing:
            return
        if saving.asked_at is not None and now - saving.asked_at > _ASK_AGAIN_S:
            self._ask(saving)
        if now - self._saved_at > _PATIENCE_S:
            self._saving = None
            self._report(m.CheckpointFailed(saving.manifest.step, f"not written within {_PATIENCE_S:.0f} s"))

    def recorded(self, step: int) -> None:
        """All steps up to one are on record."""
        saving = self._saving
        if saving is not None and saving.asked_at is not None and saving.manifest.step == step:
            self._commit(saving)

    def committed(self) -> None:
        """The last word of the thread that commits has been heard."""
        self._saving = None

    def _end(self, saving: _Saving) -> None:
        """Once all have answered, so that nobody writes any more: have it recorded, or remove what there is of it."""
        if len(saving.parts) < self._part.layout.aggregators:
            return
        if saving.failure:
            self._commit(saving)
        else:
            self._ask(saving)

    def _ask(self, saving: _Saving) -> None:
        saving.asked_at = time.monotonic()
        self._report(m.CheckpointReady(saving.manifest.step))

    def _commit(self, saving: _Saving) -> None:
        if self._store is None or saving.committing:
            return
        saving.committing = True
        threading.Thread(
            target=saving.commit,
            args=(self._store, self._post, self._saved_at),
            name="checkpoint-commit",
            daemon=True,
        ).start()


@dataclass(slots=True)
class _Saving:
    """A checkpoint whose parts are being written."""

    manifest: CheckpointManifest
    parts: dict[int, tuple[tuple[str, str, int, bool], ...]] = field(default_factory=dict)
    failure: str = ""
    asked_at: float | None = None
    committing: bool = False

    def commit(self, store: CheckpointStore, post: Callable[[m.Message], None], began_at: float) -> None:
        """Write the manifest, which makes the checkpoint one; where a part failed, make room for the next."""
        if self.failure:
            with contextlib.suppress(Exception):  # the failure itself is what matters
                store.discard_unfinished()
            post(m.CheckpointFailed(self.manifest.step, self.failure))
            return
        parts = tuple(CheckpointPart(*part) for index in sorted(self.parts) for part in self.parts[index])
        manifest = msgspec.structs.replace(self.manifest, parts=parts)
        try:
            store.commit(manifest)
        except Exception as error:  # noqa: BLE001 - whatever a file system says, training goes on
            post(m.CheckpointFailed(manifest.step, str(error) or type(error).__name__))
            return
        size = sum(part.bytes for part in parts)
        post(m.CheckpointWritten(manifest.step, manifest.epoch, time.monotonic() - began_at, size))
