"""One aggregator's shard of a job's model: its tensors and their optimizer, without any protocol."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scavenger.errors import NotSupportedError, ScavengerError
from scavenger.train.aggregation.constraints import read_constraint
from scavenger.train.aggregation.gradient_sums import GradientSums
from scavenger.train.aggregation.loss_scale import ScaledUpdate, make_update
from scavenger.train.aggregation.shard_state import ShardState
from scavenger.train.aggregation.update import Differing, Norms
from scavenger.train.checkpoints.checkpoint import CheckpointStore
from scavenger.train.checkpoints.ranges import SavedArrays, range_name
from scavenger.train.failpoints import fail_here
from scavenger.train.transport.buckets import buckets
from scavenger.train.transport.layout import Layout, Segment
from scavenger.train.transport.messages import ApplyPart, PartApplied, PartSaved, Pull
from scavenger.train.transport.messages.values import RowCounts
from scavenger.train.transport.replication import Payload, weights_payload
from scavenger.train.transport.rows import Rows
from scavenger.train.transport.shared_memory import Block, OptimizerMemory, PartRecord

__all__ = ["ModelShard"]

Array = npt.NDArray[Any]


class ModelShard:
    """The tensors of one shard, in shared memory, and the operations on them.

    Args:
        fd: File descriptor of the job's shared-memory block.
        layout: Layout of the block.
        index: Index of the shard, which is that of its aggregator.

    Raises:
        NotSupportedError: If the optimizer cannot be built from its configuration.
    """

    def __init__(self, fd: int, layout: Layout, index: int) -> None:
        self.block, self.layout, self.index = Block(fd, layout), layout, index
        segments = layout.segments
        self._all = layout.parts[index]
        self._trainable = [n for n in self._all if segments[n].spec.role == "trainable"]
        self._states = [n for n in self._all if segments[n].spec.role != "trainable"]
        texts = dict(layout.manifest.constraints)
        constraints = {
            place: constraint
            for place, n in enumerate(self._trainable)
            if (text := texts.get(segments[n].tensor)) is not None
            and (constraint := read_constraint(text)) is not None
        }
        self._update = make_update(
            [segments[n].spec for n in self._trainable], layout.manifest.optimizer, constraints
        )
        for slot in self._update.slots:
            owner = None if slot.tensor < 0 else segments[self._trainable[slot.tensor]]
            if owner is not None and not owner.is_whole and slot.shape != owner.spec.shape:
                raise NotSupportedError(f"{slot.path} belongs to a tensor that is cut, and has another shape")
        self._optimizer = OptimizerMemory(fd, layout, index, self._update.slots)
        self._weights = [self._section(turn, self._trainable) for turn in (0, 1)]
        self._slots: dict[int, list[Array]] = {}
        self.sums = GradientSums({number: segments[number] for number in self._all}, buckets(layout, index))
        self._differing: Differing = [None] * len(self._trainable)  # of the states of even and odd steps
        self._saving: threading.Thread | None = None
        self._saving_step = 0
        self._copied = threading.Event()
        self._copied.set()

    def _section(self, step: int, numbers: Sequence[int]) -> list[Array]:
        return self.block.segments(self.layout.state_at(step), numbers)

    # ---- start-up ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Initialise the optimizer from the initial weights, which are in the block, as may be its own state."""
        if not self.layout.manifest.iterations:
            initial = self._update.initial_slots(self._weights[0])
            for target, value in zip(self._optimizer.slots(0), initial, strict=True):
                target[...] = value
        self.block.write_part(self.index, PartRecord())

    @property
    def seeded_optimizer(self) -> dict[int, OptimizerMemory]:
        """Where a worker puts the optimizer's state before the first step, by aggregator; empty if `begin` makes it."""
        begun = self.layout.manifest.iterations > 0 and bool(self._trainable)
        return {self.index: self._optimizer} if begun else {}

    def load(self, step: int, saved: SavedArrays) -> None:
        """Restore the state after `step` from a checkpoint, whose shards may have been others.

        Raises:
            ScavengerError: If an array is missing, or has another size or type.
        """
        for record in self._records(step):
            if not self._read(saved, record):
                raise ScavengerError(
                    f"the checkpoint has no matching {record.key}: it belongs to another model"
                )
        for record in self._best():
            self._read(saved, record)
        self.block.write_part(self.index, PartRecord(step))

    def _read(self, saved: SavedArrays, record: _Record) -> bool:
        if (segment := record.cut) is None:
            return saved.read(record.key, record.array)
        size = math.prod(self.layout.manifest.tensors[segment.tensor].shape)
        return saved.read(record.key, record.array, first=segment.elements[0], size=size)

    # ---- steps ---------------------------------------------------------------------------------------------

    @property
    def record(self) -> PartRecord:
        """What was applied last."""
        return self.block.read_part(self.index) or PartRecord()

    def applied(self, order: ApplyPart) -> PartApplied | None:
        """Return the answer to an order that was carried out; None for another one."""
        kept = self.record
        if (kept.step, kept.view, kept.number) != (order.step, order.view, order.number):
            return None
        return PartApplied(self.index, kept.step, True, kept.mean_sqnorm, 0.0, kept.view, kept.number)

    def begin_sums(self, step: int) -> None:
        """Begin `sums` of a step, whose new weights' memory they use."""
        self._wait_copied(step)
        self.sums.begin(dict(zip(self._all, self._section(step, self._all), strict=True)))

    def _wait_copied(self, step: int) -> None:
        if (step - self._saving_step) % 2 == 0:
            self._copied.wait()  # a checkpoint may still be reading the state to be overwritten

    def apply(self, order: ApplyPart, means: Sequence[Array | Rows] | None = None) -> PartApplied:
        """Average the gradients, apply the optimizer, and write the new state next to that of the step before.

        A repeated order is not applied again: the following step may already be overwriting its inputs. Under a newer
        list of pieces the step is applied again, because no later step has begun.

        Args:
            order: The order.
            means: The mean gradients, from `sums`; None to compute them from the slots.
        """
        if (answer := self.applied(order)) is not None:
            return answer
        started = time.perf_counter()
        fail_here("aggregator.applying")
        step = order.step
        self._wait_copied(step)
        for place, number in enumerate(self._trainable):
            if number in self.sums.dense:
                self._differing[place] = None
        counted = [piece[1:] for piece in order.pieces if piece[1] > 0]
        if not counted:  # all samples are quarantined: the step changes nothing
            self._carry_over(step)
            self.block.write_part(self.index, PartRecord(step, order.view, order.number))
            return self._answer(order, Norms(0.0, True), started)
        norms = (
            self._update.apply(
                [(samples, self._gradients(slot, rows)) for samples, slot, rows in counted]
                if means is None
                else [(1, means)],
                self._state(step - 1),
                self._state(step),
                step=step + self.layout.manifest.iterations,
                lr_scale=order.lr_scale,
                differing=self._differing,
            )
            if self._trainable
            else Norms(0.0, True)
        )
        if norms.finite:
            if means is None:
                self._merge_states(step, [(samples, slot) for samples, slot, _ in counted])
            self.block.write_part(self.index, PartRecord(step, order.view, order.number, norms.mean_sqnorm))
        fail_here("aggregator.applied")
        return self._answer(order, norms, started)

    def _answer(self, order: ApplyPart, norms: Norms, started: float) -> PartApplied:
        update_s = time.perf_counter() - started
        return PartApplied(
            self.index, order.step, norms.finite, norms.mean_sqnorm, update_s, order.view, order.number
        )

    def _state(self, step: int) -> ShardState:
        return ShardState(self._weights[step % 2], self._optimizer.slots(step))

    def _carry_over(self, step: int) -> None:
        for target, value in zip(
            self._section(step, self._all), self._section(step - 1, self._all), strict=True
        ):
            target[...] = value
        for target, value in zip(self._optimizer.slots(step), self._optimizer.slots(step - 1), strict=True):
            target[...] = value

    def expect(self, slot: int) -> None:
        """Map the pages of a slot in advance, before a new worker writes to it."""
        at = self.layout.slot_at(slot)

        def touch() -> None:
            for begin, end in self.layout.part_ranges[self.index]:
                self.block.touch(at + begin, end - begin)

        threading.Thread(target=touch, name="touch", daemon=True).start()

    def _gradients(self, slot: int, rows: RowCounts) -> list[Array | Rows]:
        """Return views of the gradients in a slot, of which some are sparse."""
        place, at, counts = self.layout.place_of(slot), self.layout.slot_at(slot), dict(rows)
        if place not in self._slots:
            self._slots[place] = self.block.segments(at, self._trainable)
        return [
            self.block.rows(at, number, counts[number]) if number in counts else dense
            for number, dense in zip(self._trainable, self._slots[place], strict=True)
        ]

    def _merge_states(self, step: int, counted: list[tuple[int, int]]) -> None:
        """Merge state that the forward pass updates: the mean over samples, or the value of the first piece."""
        if not self._states:
            return
        total = sum(samples for samples, _ in counted)
        contributed = [self.block.segments(self.layout.slot_at(slot), self._states) for _, slot in counted]
        for place, (number, target) in enumerate(
            zip(self._states, self._section(step, self._states), strict=True)
        ):
            first = contributed[0][place]
            target[...] = first
            if self.layout.segments[number].spec.role == "mean":
                # computed from differences, so that values that no worker changed (frozen layers) stay bit-identical
                for (samples, _), values in zip(counted[1:], contributed[1:], strict=True):
                    target += (samples / total) * (values[place] - first)

    def sum_metrics(self, step: int, slots: Sequence[int], *, begins_epoch: bool) -> None:
        """Update the epoch's metric sums after a step; only the first shard holds them."""
        old = self.block.metrics(self.layout.state_at(step - 1))
        new = self.block.metrics(self.layout.state_at(step))
        contributed = [self.block.metrics(self.layout.slot_at(slot)) for slot in slots]
        for place, target in enumerate(new):
            target[...] = 0 if begins_epoch else old[place]
            for values in contributed:
                target += values[place]

    def metric_sums(self, step: int) -> list[npt.NDArray[np.float64]]:
        """Return the epoch's metric sums as of a step, one array per metric variable."""
        return self.block.metrics(self.layout.state_at(step))

    def payload(self, pull: Pull) -> Payload:
        """Return the shard's weights, and the optimizer's state if it is requested, as a payload."""
        return weights_payload(self.block, self.index, pull, self._optimizer if pull.optimizer else None)

    @property
    def scales_loss(self) -> bool:
        """Whether the optimizer scales the loss dynamically, and so skips steps that are not finite."""
        return isinstance(self._update, ScaledUpdate)

    def loss_scale(self, step: int) -> float:
        """Return the factor on the loss whose gradients belong to the step after `step`; 1 without loss scaling."""
        if not isinstance(self._update, ScaledUpdate):
            return 1.0
        slots = self._optimizer.slots(step)
        return self._update.loss_scale(slots) if slots else 1.0

    # ---- end -----------------------------------------------------------------------------------------------

    def keep_best(self, step: int) -> None:
        """Keep the shard's weights after `step` as the best so far."""
        self._copied.wait()
        self._copy(self.layout.state_at(step), self.layout.best_at)

    def _copy(self, source: int, target: int) -> None:
        for begin, end in self.layout.part_ranges[self.index]:
            size = end - begin
            self.block.range(target + begin, size)[:] = self.block.range(source + begin, size)

    def finalise(self, step: int, *, best: bool) -> None:
        """Replace the weights after `step` by the final ones: the best, or as the optimizer finalises them."""
        self._copied.wait()
        self._differing[:] = [None] * len(self._trainable)
        if best:
            self._copy(self.layout.best_at, self.layout.state_at(step))
        elif self._trainable:
            weights = self._weights[step % 2]
            self._update.finalise(weights, self._optimizer.slots(step), weights)

    # ---- checkpoints ---------------------------------------------------------------------------------------

    def save(
        self,
        store: CheckpointStore,
        step: int,
        attempt: str,
        *,
        best: bool,
        then: Callable[[PartSaved], None],
    ) -> None:
        """Write the shard as of `step` to a checkpoint, in a thread, and pass the result to `then`.

        Training goes on meanwhile. It waits only if the step after the next begins before the copy is made.
        """
        if self._saving is not None and self._saving.is_alive():
            then(PartSaved(self.index, step, attempt, (), "the previous checkpoint is still being written"))
            return
        self._copied.clear()
        self._saving_step = step
        self._saving = threading.Thread(
            target=self._save, args=(store, step, attempt, best, then), name="checkpoint", daemon=True
        )
        self._saving.start()

    def _save(
        self,
        store: CheckpointStore,
        step: int,
        attempt: str,
        best: bool,
        then: Callable[[PartSaved], None],
    ) -> None:
        try:
            records = self._records(step) + (self._best() if best else [])
            tensors = {record.name: record.array.copy() for record in records}
        finally:
            self._copied.set()
        fail_here("aggregator.saving")
        try:
            part = store.write_part(step, attempt, str(self.index), tensors)
        except Exception as error:  # noqa: BLE001 - the sequencer must get an answer
            then(PartSaved(self.index, step, attempt, (), str(error) or type(error).__name__))
            return
        then(PartSaved(self.index, step, attempt, ((part.name, part.sha256, part.bytes, part.finite),), ""))

    def wait_saved(self) -> None:
        """Wait until no checkpoint is being written."""
        if self._saving is not None:
            self._saving.join()

    def _records(self, step: int) -> list[_Record]:
        """Return all arrays of the shard as of a step."""
        records = self._of_section("weight", self.layout.state_at(step))
        for slot, array in zip(self._update.slots, self._optimizer.slots(step), strict=True):
            if slot.tensor < 0:
                records.append(_Record(f"slot.shared.{slot.number}", None, array))
            else:
                segment = self.layout.segments[self._trainable[slot.tensor]]
                records.append(_Record.of(f"slot.{segment.tensor}.{slot.number}", segment, array))
        if self.index == 0:
            records += [_Record(f"sums.{j}", None, array) for j, array in enumerate(self.metric_sums(step))]
        return records

    def _best(self) -> list[_Record]:
        return self._of_section("best", self.layout.best_at)

    def _of_section(self, kind: str, at: int) -> list[_Record]:
        arrays = zip(self._all, self.block.segments(at, self._all), strict=True)
        of = self.layout.segments
        return [_Record.of(f"{kind}.{of[number].tensor}", of[number], array) for number, array in arrays]


@dataclass(frozen=True, slots=True)
class _Record:
    """An array of a shard as checkpoints know it.

    Attributes:
        key: Its key: of a tensor or a slot, by the tensor's index in the manifest, which does not depend on how tensors
            are sharded.
        cut: The segment that it is a range for, if the tensor is cut.
        array: The array.
    """

    key: str
    cut: Segment | None
    array: Array

    @classmethod
    def of(cls, key: str, segment: Segment, array: Array) -> _Record:
        return cls(key, None if segment.is_whole else segment, array)

    @property
    def name(self) -> str:
        return range_name(self.key, None if self.cut is None else self.cut.elements[0])
