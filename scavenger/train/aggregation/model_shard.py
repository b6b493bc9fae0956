"""One aggregator's shard of a job's model: its tensors and their optimizer, without any protocol."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from scavenger.elastic.view import SLOTS_PER_WORKER
from scavenger.errors import ScavengerError
from scavenger.train.aggregation.gradient_sums import GradientSums
from scavenger.train.aggregation.holding import Holding
from scavenger.train.aggregation.loss_scale import ScaledUpdate
from scavenger.train.aggregation.update import Norms
from scavenger.train.checkpoints.checkpoint import CheckpointStore
from scavenger.train.checkpoints.ranges import SavedArrays, range_name
from scavenger.train.failpoints import fail_here
from scavenger.train.transport.arrivals import Arrivals, copied_payload
from scavenger.train.transport.layout import Layout, Ranges, Segment
from scavenger.train.transport.messages import ApplyPart, PartApplied, PartSaved, Pull, PullBuckets
from scavenger.train.transport.replication import Payload, weights_payload
from scavenger.train.transport.rows import Rows
from scavenger.train.transport.shared_memory import Block, OptimizerMemory, PartRecord

Array = npt.NDArray[Any]


class ModelShard:
    """The tensors of one shard, in shared memory, and the operations on them.

    Args:
        fd: File descriptor of the job's shared-memory block.
        layout: Layout of the block.
        index: Index of the shard, which is that of its aggregator.
        in_place: Whether the optimizer's state may be updated in place: no step is applied again.

    Raises:
        NotSupportedError: If the optimizer cannot be built from its configuration.
    """

    def __init__(self, fd: int, layout: Layout, index: int, *, in_place: bool = False) -> None:
        self._fd, self.block, self.index, self._in_place = fd, Block(fd, layout), index, in_place
        self.arrivals = Arrivals(fd, layout, index)
        self._holdings = [(0, Holding(fd, self.block, layout, index, in_place=in_place))]
        self.held.accept(self.arrivals)
        """What it holds and from which step on, ascending: at most the last two maps that are still asked for."""
        self._saving: threading.Thread | None = None
        self._saving_step = self._best_step = 0
        self._copied = threading.Event()
        self._copied.set()

    @property
    def held(self) -> Holding:
        """What it holds under the newest map."""
        return self._holdings[-1][1]

    def _held_in(self, step: int) -> Holding:
        """Return what it held when a step was applied, which is also what it has of the state after that step."""
        return next((held for first, held in reversed(self._holdings) if first <= step), self._holdings[0][1])

    @property
    def layout(self) -> Layout:
        """The layout, with the newest map."""
        return self.held.layout

    @property
    def sums(self) -> GradientSums:
        """Mean gradients of a step that are formed as gradients arrive."""
        return self.held.sums

    # ---- another map ---------------------------------------------------------------------------------------

    def prepare(self, layout: Layout) -> Holding:
        """Make what it will hold under another map. Nothing changes yet, so another thread may do it during a step.

        Args:
            layout: The layout of the same block with that map; see `Layout.moved`.

        Raises:
            NotSupportedError: If the optimizer cannot be built from its configuration.
        """
        before = self.held
        held = Holding(self._fd, self.block, layout, self.index, before, in_place=self._in_place)
        held.trace()
        held.touch(before)
        return held

    def take(self, held: Holding, first: int, *, beside: Iterable[int] = ()) -> None:
        """Work under another map from the step `first` on, whose sums have not begun; the state before it is complete.

        What comes from another block has to be recorded in `arrivals`. A checkpoint that reads what is given up is
        waited for, since nobody else would wait.

        Args:
            held: What it holds under the map, from `prepare`.
            first: The step. Another map that was taken for it, or for a later one, does not hold.
            beside: Other aggregators of the same block.
        """
        before, kept = self._held_in(first - 1), [one for one in self._holdings if one[0] < first]
        if len(kept) == len(self._holdings):  # else the step may have been applied by others
            held.keep_differing(before)
        self._holdings = [*kept, (first, held)]
        if not {*before.numbers} <= {*held.numbers}:
            self._copied.wait()
        held.accept(self.arrivals)
        self.arrivals.keep_best(self.block, held.layout.map_number)
        if held.update is not None and before.update is None:
            segments, parts = before.layout.segments, before.layout.parts
            for other in beside:
                if any(segments[number].spec.role == "trainable" for number in parts[other]):
                    held.optimizer.copy_shared(other, first - 1)
                    break

    def _forget_maps(self, step: int) -> None:
        """Forget the maps that are older than that of `step`."""
        while len(self._holdings) > 1 and self._holdings[1][0] <= step:
            del self._holdings[0]
        for _, held in self._holdings:
            held.release(self.arrivals, step)

    def _forget_arrivals(self) -> None:
        self.held.release(self.arrivals, math.inf)
        self.arrivals.forget()

    # ---- start-up ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Initialise the optimizer from the initial weights, which are in the block, as may be its own state."""
        self._forget_arrivals()
        held = self.held
        if held.update is not None and not self.layout.manifest.iterations:
            state = held.state(0)
            for target, value in zip(state.slots, held.update.initial_slots(state.weights), strict=True):
                target[...] = value
        self.block.write_part(self.index, PartRecord())

    @property
    def seeded_optimizer(self) -> dict[int, OptimizerMemory]:
        """Where a worker puts the optimizer's state before the first step, by aggregator; empty if `begin` makes it."""
        begun = self.layout.manifest.iterations > 0 and bool(self.held.trainable)
        return {self.index: self.held.optimizer} if begun else {}

    def load(self, step: int, saved: SavedArrays) -> None:
        """Restore the state after `step` from a checkpoint, whose shards may have been others.

        Raises:
            ScavengerError: If an array is missing, or has another size or type.
        """
        self._forget_arrivals()
        for record in self._records(self.held, step):
            if not self._read(saved, record):
                raise ScavengerError(
                    f"the checkpoint has no matching {record.key}: it belongs to another model"
                )
        for record in self._best(self.held):
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
        held = self.held
        held.sums.begin(dict(zip(held.numbers, held.section(step, held.numbers), strict=True)))

    def _wait_copied(self, step: int, *, in_place: bool = False) -> None:
        if in_place or (step - self._saving_step) % 2 == 0:
            self._copied.wait()  # a checkpoint may still be reading the state to be overwritten

    def apply(self, order: ApplyPart, means: Sequence[Array | Rows] | None = None) -> PartApplied:
        """Average the gradients, apply the optimizer, and write the new state next to that of the step before.

        A repeated order is not applied again: the following step may already be overwriting its inputs. Under a newer
        list of pieces the step is applied again, because no later step has begun; where the optimizer's state is
        updated in place, no such list may follow.

        Args:
            means: The mean gradients, from `sums`; None to compute them from the slots.
        """
        if (answer := self.applied(order)) is not None:
            return answer
        self.see_best(order.best_step, order.step - 1)
        started = time.perf_counter()
        fail_here("aggregator.applying")
        step, held = order.step, self._held_in(order.step)
        self._forget_maps(step - 1)  # which may still be asked for
        self._wait_copied(step, in_place=held.in_place)
        for place, number in enumerate(held.trainable):
            if number in held.sums.dense:
                held.differing[place] = None
        counted = [piece[1:] for piece in order.pieces if piece[1] > 0]
        if not counted:  # all samples are quarantined: the step changes nothing
            held.carry_over(step)
            self.block.write_part(self.index, PartRecord(step, order.view, order.number))
            return self._answer(order, Norms(0.0, True), started)
        norms = (
            held.update.apply(
                [(samples, held.gradients(slot, rows)) for samples, slot, rows in counted]
                if means is None
                else [(1, means)],
                held.state(step - 1),
                held.state(step),
                step=step + self.layout.manifest.iterations,
                lr_scale=order.lr_scale,
                schedule_step=order.schedule_step,
                differing=held.differing,
            )
            if held.update is not None
            else Norms(0.0, True)
        )
        if norms.finite:
            if means is None:
                held.merge_states(step, [(samples, slot) for samples, slot, _ in counted])
            self.block.write_part(self.index, PartRecord(step, order.view, order.number, norms.mean_sqnorm))
        fail_here("aggregator.applied")
        return self._answer(order, norms, started)

    def _answer(self, order: ApplyPart, norms: Norms, started: float) -> PartApplied:
        update_s = time.perf_counter() - started
        return PartApplied(
            self.index, order.step, norms.finite, norms.mean_sqnorm, update_s, order.view, order.number
        )

    def expect(self, slot: int) -> None:
        """Map the pages of a slot in advance, before a new worker writes to it."""
        at = self.layout.slot_at(slot)

        def touch() -> None:
            for begin, end in self.layout.part_ranges[self.index]:
                self.block.touch(at + begin, end - begin)

        threading.Thread(target=touch, name="touch", daemon=True).start()

    def forget_slots(self, first: int) -> None:
        """Drop the mappings of a worker's slots, beginning with slot `first`: each takes a descriptor."""
        places = [self.layout.place_of(slot) for slot in range(first, first + SLOTS_PER_WORKER)]
        for _, held in self._holdings:
            held.forget_slots(places)
        self.block.unmap_slots(first)

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

    def payload(self, pull: Pull | PullBuckets) -> Payload:
        """Return the shard's weights, and the optimizer's state if it is requested, or some buckets, as a payload."""
        held = self._held_in(pull.step)
        if isinstance(pull, PullBuckets):
            own = [n for n, holder in enumerate(held.layout.holders) if holder == self.index]
            asked = msgspec.structs.replace(pull, buckets=tuple({*pull.buckets}.intersection(own)))
            return copied_payload(self.block, held.layout, held.optimizer, held.slots_owned, asked)
        return weights_payload(
            self.block, held.layout, self.index, pull, held.optimizer if pull.optimizer else None
        )

    @property
    def scales_loss(self) -> bool:
        """Whether the optimizer scales the loss dynamically, and so skips steps that are not finite."""
        return isinstance(self.held.update, ScaledUpdate)

    def loss_scale(self, step: int) -> float:
        """Return the factor on the loss whose gradients belong to the step after `step`; 1 without loss scaling."""
        held = self._held_in(step)
        return (
            held.update.loss_scale(held.state(step).slots) if isinstance(held.update, ScaledUpdate) else 1.0
        )

    # ---- end -----------------------------------------------------------------------------------------------

    def keep_best(self, step: int) -> None:
        """Keep the shard's weights after `step` as the best so far."""
        self._copied.wait()
        layout = self._held_in(step).layout
        self._copy(layout.part_ranges[self.index], layout.state_at(step), layout.best_at)
        self._best_step = step

    def see_best(self, best_step: int, step: int) -> None:
        """Keep the weights after `step` as the best so far if they are, and this process has not done it.

        The process before, or the message that said so, may have been lost. It can be made good until the second step
        after that overwrites them.

        Args:
            best_step: The step after which the weights were best so far.
            step: The last step of which the state is whole.
        """
        if best_step == step != self._best_step:
            self.keep_best(step)

    def _copy(self, ranges: Ranges, source: int, target: int) -> None:
        for begin, end in ranges:
            size = end - begin
            self.block.range(target + begin, size)[:] = self.block.range(source + begin, size)

    def finalise(self, step: int, *, best: bool) -> None:
        """Replace the weights after `step` by the final ones: the best, or as the optimizer finalises them."""
        self._copied.wait()
        held = self._held_in(step)
        held.differing[:] = [None] * len(held.trainable)
        if best:
            layout = held.layout
            self._copy(layout.part_ranges[self.index], layout.best_at, layout.state_at(step))
        elif held.update is not None:
            state = held.state(step)
            held.update.finalise(state.weights, state.slots, state.weights)

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

        Training goes on meanwhile. It waits only if the step after the next, or where the optimizer's state is updated
        in place the next, is applied before the copy is made.
        """
        if self._saving is not None and self._saving.is_alive():
            then(PartSaved(self.index, step, attempt, (), "the previous checkpoint is still being written"))
            return
        self._copied.clear()
        self._saving_step = step
        held = self._held_in(step)
        self._saving = threading.Thread(
            target=self._save, args=(held, store, step, attempt, best, then), name="checkpoint", daemon=True
        )
        self._saving.start()

    def _save(
        self,
        held: Holding,
        store: CheckpointStore,
        step: int,
        attempt: str,
        best: bool,
        then: Callable[[PartSaved], None],
    ) -> None:
        try:
            records = self._records(held, step) + (self._best(held) if best else [])
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

    def _records(self, held: Holding, step: int) -> list[_Record]:
        """Return all arrays of the shard as of a step."""
        records = _of_section("weight", held, held.section(step, held.numbers))
        for segment, number, array in held.slots(step):
            if segment is None:
                records.append(_Record(f"slot.shared.{number}", None, array))
            else:
                records.append(_Record.of(f"slot.{segment.tensor}.{number}", segment, array))
        if self.index == 0:
            records += [_Record(f"sums.{j}", None, array) for j, array in enumerate(self.metric_sums(step))]
        return records

    def _best(self, held: Holding) -> list[_Record]:
        return _of_section("best", held, self.block.segments(held.layout.best_at, held.numbers))


def _of_section(kind: str, held: Holding, arrays: Sequence[Array]) -> list[_Record]:
    segments = (held.layout.segments[number] for number in held.numbers)
    return [
        _Record.of(f"{kind}.{one.tensor}", one, array) for one, array in zip(segments, arrays, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Record:
    """An array of a shard as checkpoints know it.

    Attributes:
        key: Its key: of a tensor or a slot, by the tensor's index in the manifest, which does not depend on how tensors
            are sharded.
        cut: The segment that it is a range for, if the tensor is cut.
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
