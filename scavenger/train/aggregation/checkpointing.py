"""Checkpointing by the sequencer: when a checkpoint is due, which parts are written, and when it is complete."""

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
from scavenger.train.checkpoints.manifest import CheckpointFile as CheckpointPart
from scavenger.train.checkpoints.manifest import CheckpointManifest as CheckpointManifest
from scavenger.train.transport import messages as m

_ASK_AGAIN_S = 1.0
_PATIENCE_S = 600.0
"""Time after which a checkpoint that an aggregator does not answer for counts as lost."""


class Checkpointing:
    """Writes the checkpoints of one job, while training goes on.

    A checkpoint is committed only after the coordinator's side has confirmed that all steps up to it are recorded. A
    job resumed from it therefore has its complete history, at whatever moment all processes were killed.

    Args:
        shard: The first aggregator's model shard.
        plan: Where and when to write; None for no checkpoints.
        to_aggregator: Sends a message to another aggregator, by index.
        report: Sends a message to the coordinator and the supervisor.
        post: Passes a message from another thread to the serving thread.
        step: The last step that was applied when the job started or resumed.
    """

    def __init__(
        self,
        shard: ModelShard,
        plan: m.CheckpointPlan | None,
        *,
        to_aggregator: Callable[[int, m.Message], None],
        report: Callable[[m.Message], None],
        post: Callable[[m.Message], None],
        step: int,
    ) -> None:
        self._shard, self._plan = shard, plan
        self._to_aggregator, self._report, self._post = to_aggregator, report, post
        self._store = None if plan is None else CheckpointStore(plan.url)
        self._saving: _Saving | None = None
        self._saved_at, self._saved_step = time.monotonic(), step

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._saving is not None

    def look(
        self,
        barrier: Barrier,
        *,
        best_step: int,
        quarantined: tuple[int, ...],
        rate_scale: float,
        now: bool = False,
    ) -> None:
        """Begin a checkpoint if one is due.

        Args:
            barrier: State of the job, just after a step was applied.
            best_step: Step after which the weights were best so far; 0 if unknown.
            quarantined: Indices of samples that are left out.
            rate_scale: The learning rate that callbacks have set, over the one that the model was compiled with.
            now: Write one in any case, unless there is one of this step.
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
                fingerprint=self._shard.layout.manifest.digest,
                step=barrier.step,
                attempt=uuid.uuid4().hex[:12],
                epoch=barrier.position.epoch,
                consumed=barrier.position.consumed,
                view=barrier.number,
                parts=(),
                created_at=datetime.now(UTC),
                state={
                    "best_step": best_step,
                    "quarantined": list(quarantined),
                    "rate_scale": rate_scale,
                },
            )
        )
        self._saved_at, self._saved_step = time.monotonic(), barrier.step
        saving.awaited = frozenset(barrier.migration.settled.participants)
        order = m.SavePart(barrier.step, saving.manifest.attempt, plan.url, best_step > 0, best_step)
        for aggregator in sorted(saving.awaited - {0}):
            self._to_aggregator(aggregator, order)
        self._shard.save(self._store, order.step, order.attempt, best=order.best, then=self._post)

    def part_saved(self, message: m.PartSaved) -> None:
        """Handle the report of an aggregator that has written its part, or failed to."""
        saving = self._saving
        if saving is None or self._store is None or message.attempt != saving.manifest.attempt:
            return
        saving.parts[message.index] = message.parts
        saving.failure = saving.failure or message.error
        self._end(saving)

    def restarted(self, aggregator: int) -> None:
        """Handle the restart of an aggregator, given by index: the part that it was writing is lost."""
        saving = self._saving
        if saving is not None and aggregator in saving.awaited.difference(saving.parts):
            saving.parts[aggregator] = ()
            saving.failure = "the aggregator that was writing a part of it was restarted"
            self._end(saving)

    def tick(self) -> None:
        """Give up a checkpoint that an aggregator never answers for, so that the next one can begin."""
        saving, now = self._saving, time.monotonic()
        if saving is None or saving.committing:
            return
        if saving.asked_at is not None and now - saving.asked_at > _ASK_AGAIN_S:
            self._ask(saving)
        if now - self._saved_at > _PATIENCE_S:
            self._saving = None
            self._report(m.CheckpointFailed(saving.manifest.step, f"not written within {_PATIENCE_S:.0f} s"))

    def recorded(self, step: int) -> None:
        """Handle the confirmation that all steps up to this one are recorded."""
        saving = self._saving
        if saving is not None and saving.asked_at is not None and saving.manifest.step == step:
            self._commit(saving)

    def committed(self) -> None:
        """Handle the result of the thread that commits a checkpoint."""
        self._saving = None

    def _end(self, saving: _Saving) -> None:
        """Once all aggregators have answered: request the confirmation, or remove the failed attempt."""
        if not saving.awaited <= saving.parts.keys():
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
    awaited: frozenset[int] = frozenset()
    parts: dict[int, tuple[tuple[str, str, int, bool], ...]] = field(default_factory=dict)
    failure: str = ""
    asked_at: float | None = None
    committing: bool = False

    def commit(self, store: CheckpointStore, post: Callable[[m.Message], None], began_at: float) -> None:
        """Commit the checkpoint by writing its manifest; if a part failed, delete the attempt to free space."""
        if self.failure:
            with contextlib.suppress(Exception):  # the failure itself is what matters
                store.discard_unfinished()
            post(m.CheckpointFailed(self.manifest.step, self.failure))
            return
        parts = tuple(CheckpointPart(*part) for index in sorted(self.parts) for part in self.parts[index])
        manifest = msgspec.structs.replace(self.manifest, parts=parts)
        try:
            store.commit(manifest)
        except Exception as error:  # noqa: BLE001 - training goes on after any error of a file system
            post(m.CheckpointFailed(manifest.step, str(error) or type(error).__name__))
            return
        size = sum(part.bytes for part in parts)
        post(m.CheckpointWritten(manifest.step, manifest.epoch, time.monotonic() - began_at, size))
