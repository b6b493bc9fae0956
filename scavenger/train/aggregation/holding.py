"""What one aggregator holds under one map of buckets: its segments, their optimizer, and views of their arrays."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scavenger.errors import NotSupportedError
from scavenger.train.aggregation.constraints import Constraint, read_constraint
from scavenger.train.aggregation.gradient_sums import GradientSums
from scavenger.train.aggregation.loss_scale import ScaledUpdate, make_update
from scavenger.train.aggregation.shard_state import ShardState
from scavenger.train.aggregation.update import Differing, Update
from scavenger.train.transport.arrivals import Arrivals, ArrivedState, Owned
from scavenger.train.transport.buckets import Bucket, buckets
from scavenger.train.transport.layout import Layout, Segment, joined
from scavenger.train.transport.messages.values import RowCounts
from scavenger.train.transport.rows import Rows
from scavenger.train.transport.shared_memory import Block, OptimizerMemory

Array = npt.NDArray[Any]


class Holding:
    """The segments of one aggregator under one map; everything else about its model shard does not depend on the map.

    Args:
        fd: File descriptor of the job's shared-memory block.
        layout: Layout of the block, with the map.
        index: Index of the aggregator.
        before: What it holds under another map, whose objects are used again where they fit.
        in_place: Whether the optimizer's state may be updated in place, so that there is no way back to that of the
            step before.

    Attributes:
        numbers: The indices of all its segments.
        trainable: Those that have a gradient.
        states: Those that the forward pass updates.
        update: The optimizer of the trainable segments; None without any.
        in_place: Whether the optimizer's state is updated in place. With loss scaling it is not, as a step may be
            skipped.
        optimizer: The optimizer's state; that of no tensor, which all that have trainable segments keep, included.
        buckets: All buckets in which gradients are sent, whoever holds them.
        sums: Mean gradients that are formed as gradients arrive.
        differing: How the states of even and odd steps differ, by trainable segment; see `Update.apply`.

    Raises:
        NotSupportedError: If the optimizer cannot be built from its configuration.
    """

    def __init__(
        self,
        fd: int,
        block: Block,
        layout: Layout,
        index: int,
        before: Holding | None = None,
        *,
        in_place: bool = False,
    ) -> None:
        self.layout, self._block, self._index = layout, block, index
        segments = layout.segments
        self.numbers = layout.parts[index]
        self.trainable = [n for n in self.numbers if segments[n].spec.role == "trainable"]
        self.states = [n for n in self.numbers if segments[n].spec.role != "trainable"]
        same = before is not None and before.trainable == self.trainable
        self.update: Update | ScaledUpdate | None
        if before is not None and same:
            self.update = before.update
        else:
            self.update = _update(layout, self.trainable) if self.trainable else None
        slots, owners = self.update.slots if self.update else (), [segments[n] for n in self.trainable]
        self.in_place = in_place and not isinstance(self.update, ScaledUpdate)
        mapped = None if before is None else before.optimizer
        self.optimizer: OptimizerMemory = OptimizerMemory(
            fd, layout, index, slots, owners, mapped, in_place=self.in_place
        )
        self._weights = [self.section(turn, self.trainable) for turn in (0, 1)]
        self._gradients: dict[int, list[Array]] = {}
        self.buckets: tuple[Bucket, ...] = buckets(layout) if before is None else before.buckets
        self.sums = GradientSums({n: segments[n] for n in self.numbers}, self.buckets)
        self.differing: Differing = [None] * len(self.trainable)
        self._found: ArrivedState | None = None
        self._arrived_step = -1
        self._arrived: ShardState | None = None
        self._arrived_states: dict[int, Array] = {}

    @property
    def slots_owned(self) -> tuple[Owned, ...]:
        """The optimizer's arrays, each with the index of its segment; -1 for state of no tensor."""
        specs = self.update.slots if self.update is not None else ()
        return tuple((slot, -1 if slot.tensor < 0 else self.trainable[slot.tensor]) for slot in specs)

    def section(self, step: int, numbers: Sequence[int]) -> list[Array]:
        """Return views of some segments after a step."""
        return self._block.segments(self.layout.state_at(step), numbers)

    def state(self, step: int) -> ShardState:
        """Return the trainable segments and the optimizer's state after a step."""
        if self._arrived is not None and step == self._arrived_step:
            return self._arrived
        return ShardState(self._weights[step % 2], self.optimizer.slots(step))

    def fits(self, layout: Layout) -> bool:
        """Whether this was made for the same map, of which others' shares may not have been known; if so, use it."""
        same = (self.layout.map_number, self.numbers) == (layout.map_number, layout.parts[self._index])
        if same:
            self.layout = layout
        return same

    def accept(self, arrivals: Arrivals) -> None:
        """Use what has arrived of other blocks for this map as the state before the map's first step."""
        found = arrivals.recorded
        if found is None or found.number != self.layout.map_number:
            return
        self._found = found
        segments, places = self.layout.segments, {*found.buckets}
        gained = {number for number in self.numbers if segments[number].bucket in places}
        step = self._arrived_step = found.first - 1
        self._arrived_states = {n: arrivals.weights(n) for n in self.states if n in gained}
        weights = [
            arrivals.weights(number) if number in gained else array
            for number, array in zip(self.trainable, self._weights[step % 2], strict=True)
        ]
        if not gained.isdisjoint(self.trainable):
            gained.add(-1)
        slots = [
            arrivals.slot(slot, segment)
            if segment in gained and not (found.slots_held and segment >= 0)
            else array
            for (slot, segment), array in zip(self.slots_owned, self.optimizer.slots(step), strict=True)
        ]
        self._arrived = ShardState(weights, slots)

    def release(self, arrivals: Arrivals, step: float) -> None:
        """Free the memory of what has arrived, once no step up to `step` is applied again."""
        if self._found is not None and self._found.first <= step:
            arrivals.release(self._found.buckets)
            self._found, self._arrived, self._arrived_states, self._arrived_step = None, None, {}, -1

    def touch(self, before: Holding) -> None:
        """Map the pages of what is gained now, so that the first steps do not wait for it."""
        old = {before.layout.segments[number].bucket for number in before.numbers}
        new = {self.layout.segments[number].bucket for number in self.numbers} - old
        for begin, end in joined(self.layout.buckets[bucket] for bucket in sorted(new)):
            for turn in (0, 1):
                self._block.touch(self.layout.state_at(turn) + begin, end - begin)
        for (_, segment), *arrays in zip(
            self.slots_owned, self.optimizer.slots(0), self.optimizer.slots(1), strict=True
        ):
            if segment >= 0 and self.layout.segments[segment].bucket in new:
                for array in arrays:
                    array.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE].max(initial=0)

    def gradients(self, slot: int, rows: RowCounts) -> list[Array | Rows]:
        """Return views of the gradients in a slot, of which some are sparse."""
        place, at, counts = self.layout.place_of(slot), self.layout.slot_at(slot), dict(rows)
        if place not in self._gradients:
            self._gradients[place] = self._block.segments(at, self.trainable)
        return [
            self._block.rows(at, number, counts[number]) if number in counts else dense
            for number, dense in zip(self.trainable, self._gradients[place], strict=True)
        ]

    def forget_slots(self, places: Iterable[int]) -> None:
        """Drop the views of slots, by their indices in the block, whose worker is gone."""
        for place in places:
            self._gradients.pop(place, None)

    def slots(self, step: int) -> list[tuple[Segment | None, int, Array]]:
        """Return the optimizer's arrays after a step: the segment, or None for state of no tensor, and the number."""
        specs = self.update.slots if self.update is not None else ()
        return [
            (
                None if slot.tensor < 0 else self.layout.segments[self.trainable[slot.tensor]],
                slot.number,
                array,
            )
            for slot, array in zip(specs, self.optimizer.slots(step), strict=True)
        ]

    def trace(self) -> None:
        """Do now what the first step would have to wait for."""
        if self.update is not None:
            self.update.trace()

    def keep_differing(self, before: Holding) -> None:
        """Take over from the holding before how the two states of segments that are in both differ."""
        known = dict(zip(before.trainable, before.differing, strict=True))
        self.differing[:] = [known.get(number) for number in self.trainable]

    def carry_over(self, step: int) -> None:
        """Make the state after a step equal to that of the step before."""
        before, after = self.state(step - 1), self.state(step)
        states = self.section(step - 1, self.states)
        if step - 1 == self._arrived_step:
            states = [self._arrived_states.get(n, old) for n, old in zip(self.states, states, strict=True)]
        targets = (*after.weights, *after.slots, *self.section(step, self.states))
        for target, value in zip(targets, (*before.weights, *before.slots, *states), strict=True):
            target[...] = value

    def merge_states(self, step: int, counted: Sequence[tuple[int, int]]) -> None:
        """Merge state that the forward pass updates: the mean over samples, or the value of the first piece.

        Args:
            counted: Samples and slot of each piece that has samples.
        """
        if not self.states:
            return
        total = sum(samples for samples, _ in counted)
        contributed = [self._block.segments(self.layout.slot_at(slot), self.states) for _, slot in counted]
        for place, (number, target) in enumerate(
            zip(self.states, self.section(step, self.states), strict=True)
        ):
            first = contributed[0][place]
            target[...] = first
            if self.layout.segments[number].spec.role == "mean":
                # computed from differences, so that values that no worker changed (frozen layers) stay bit-identical
                for (samples, _), values in zip(counted[1:], contributed[1:], strict=True):
                    target += (samples / total) * (values[place] - first)


def _update(layout: Layout, trainable: Sequence[int]) -> Update | ScaledUpdate:
    """Build the optimizer of some segments."""
    segments, texts = [layout.segments[n] for n in trainable], dict(layout.manifest.constraints)
    constraints: dict[int, Constraint] = {}
    for place, segment in enumerate(segments):
        text = texts.get(segment.tensor)
        if text is not None and (constraint := read_constraint(text)) is not None:
            constraints[place] = constraint
    update = make_update([one.spec for one in segments], layout.manifest.optimizer, constraints)
    for slot in update.slots:
        owner = None if slot.tensor < 0 else segments[slot.tensor]
        if owner is not None and not owner.is_whole and slot.shape != owner.spec.shape:
            raise NotSupportedError(f"{slot.path} belongs to a tensor that is cut, and has another shape")
    return update
