"""One aggregator's part of one job: its tensors, their optimizer, and nothing of the protocol."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scavenger.errors import ScavengerError
from scavenger.train.aggregation.update import Norms, Update
from scavenger.train.checkpoints.checkpoint import CheckpointStore
from scavenger.train.failpoints import fail_here
from scavenger.train.transport.messages import ApplyPart, PartApplied, PartSaved
from scavenger.train.transport.messages.values import SlotSpec
from scavenger.train.transport.shared_memory import Block, Layout, OptimizerMemory, PartRecord

__all__ = ["ModelShard"]

Array = npt.NDArray[Any]


class ModelShard:
    """The arithmetic on one part.

    Args:
        fd: The job's block.
        layout: Of the block.
        index: Which part.

    Raises:
        NotSupportedError: If the optimizer cannot be built from its configuration.
    """

    def __init__(self, fd: int, layout: Layout, index: int) -> None:
        self.block, self.layout, self.index = Block(fd, layout), layout, index
        tensors = layout.manifest.tensors
        self._all = layout.parts[index]
        self._trainable = [i for i in self._all if tensors[i].role == "trainable"]
        self._states = [i for i in self._all if tensors[i].role != "trainable"]
        self._update = Update([tensors[i] for i in self._trainable], layout.manifest.optimizer)
        self._optimizer = OptimizerMemory(fd, layout, index, self._update.slots)
        self._weights = [self._section(turn, self._trainable) for turn in (0, 1)]
        self._slots: dict[int, list[Array]] = {}
        self._saving: threading.Thread | None = None
        self._saving_step = 0
        self._copied = threading.Event()
        self._copied.set()

    def _section(self, step: int, indices: Sequence[int]) -> list[Array]:
        return self.block.tensors(self.layout.state_at(step), indices)

    # ---- beginnings ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The initial weights are in the block; the optimizer starts from them."""
        initial = self._update.initial_slots(self._weights[0])
        for target, value in zip(self._optimizer.slots(0), initial, strict=True):
            target[...] = value
        self.block.write_part(self.index, PartRecord())

    def load(self, step: int, tensors: dict[str, Array]) -> None:
        """Begin with what a checkpoint holds, as it was after `step`.

        Raises:
            ScavengerError: If it lacks a tensor, or has one of another form.
        """
        for name, target in self._named(step):
            value = tensors.get(name)
            if value is None or value.shape != target.shape or value.dtype != target.dtype:
                raise ScavengerError(f"the checkpoint has no fitting {name}: it is of another model")
            target[...] = value
        for index, target in zip(self._all, self.block.tensors(self.layout.best_at, self._all), strict=True):
            if (value := tensors.get(f"best.{index}")) is not None:
                target[...] = value
        self.block.write_part(self.index, PartRecord(step))

    # ---- steps ---------------------------------------------------------------------------------------------

    def apply(self, order: ApplyPart) -> PartApplied:
        """Average the pieces, update, and write what belongs to the step beside what belonged to the one before.

        A view gives a step one list of pieces, so what was applied under it is not applied again: the step after
        may be overwriting what it was made of. Under a newer view it is, since nothing came after it then.
        """
        kept = self.block.read_part(self.index)
        if kept is not None and (kept.step, kept.view) == (order.step, order.view):
            return PartApplied(self.index, kept.step, True, kept.mean_worker_sqnorm, kept.mean_sqnorm, 0.0)
        started = time.perf_counter()
        fail_here("aggregator.applying")
        step = order.step
        if (step - self._saving_step) % 2 == 0:
            self._copied.wait()  # a checkpoint may still be reading what is to be overwritten
        counted = [(samples, slot) for _, samples, slot in order.pieces if samples > 0]
        if not counted:  # all of it is quarantined: the step changes nothing
            self._carry_over(step)
            self.block.write_part(self.index, PartRecord(step, order.view))
            return PartApplied(self.index, step, True, 0.0, 0.0, time.perf_counter() - started)
        norms = (
            self._update.apply(
                [(samples, self._slot(slot)) for samples, slot in counted],
                self._weights[(step - 1) % 2],
                self._optimizer.slots(step - 1),
                self._weights[step % 2],
                self._optimizer.slots(step),
                step=step,
                lr_scale=order.lr_scale,
            )
            if self._trainable
            else Norms(0.0, 0.0, True)
        )
        if norms.finite:
            self._merge_states(step, counted)
            self.block.write_part(
                self.index, PartRecord(step, order.view, norms.mean_worker_sqnorm, norms.mean_sqnorm)
            )
        fail_here("aggregator.applied")
        return PartApplied(
            self.index,
            step,
            norms.finite,
            norms.mean_worker_sqnorm,
            norms.mean_sqnorm,
            time.perf_counter() - started,
        )

    def _carry_over(self, step: int) -> None:
        for target, value in zip(
            self._section(step, self._all), self._section(step - 1, self._all), strict=True
        ):
            target[...] = value
        for target, value in zip(self._optimizer.slots(step), self._optimizer.slots(step - 1), strict=True):
            target[...] = value

    def expect(self, slot: int) -> None:
        """A worker will write to a slot: map its pages while nobody waits for them."""
        begin, end = self.layout.part_ranges[self.index]
        place = (self.layout.slot_at(slot) + begin, end - begin)
        threading.Thread(target=self.block.touch, args=place, name="touch", daemon=True).start()

    def _slot(self, slot: int) -> list[Array]:
        place = self.layout.place_of(slot)
        if place not in self._slots:
            self._slots[place] = self.block.tensors(self.layout.slot_at(slot), self._trainable)
        return self._slots[place]

    def _merge_states(self, step: int, counted: list[tuple[int, int]]) -> None:
        """State that the forward pass updates: a mean over samples, or that of the first piece."""
        if not self._states:
            return
        total = sum(samples for samples, _ in counted)
        said = [self.block.tensors(self.layout.slot_at(slot), self._states) for _, slot in counted]
        for place, (index, target) in enumerate(
            zip(self._states, self._section(step, self._states), strict=True)
        ):
            first = said[0][place]
            target[...] = first
            if self.layout.manifest.tensors[index].role == "mean":
                # as differences, so that what no worker changed (frozen layers) keeps its every bit
                for (samples, _), values in zip(counted[1:], said[1:], strict=True):
                    target += (samples / total) * (values[place] - first)

    def sum_metrics(self, step: int, slots: Sequence[int], *, begins_epoch: bool) -> None:
        """The epoch's metric sums as they are after the step. They lie with the first part."""
        old = self.block.metrics(self.layout.state_at(step - 1))
        new = self.block.metrics(self.layout.state_at(step))
        said = [self.block.metrics(self.layout.slot_at(slot)) for slot in slots]
        for place, target in enumerate(new):
            target[...] = 0 if begins_epoch else old[place]
            for values in said:
                target += values[place]

    def metric_sums(self, step: int) -> list[npt.NDArray[np.float64]]:
        return self.block.metrics(self.layout.state_at(step))

    # ---- ends ----------------------------------------------------------------------------------------------

    def keep_best(self, step: int) -> None:
        """The part's weights after `step` are the best so far."""
        self._copied.wait()
        begin, end = self.layout.part_ranges[self.index]
        source, target = self.layout.state_at(step), self.layout.best_at
        size = end - begin
        self.block.range(target + begin, size)[:] = self.block.range(source + begin, size)

    def finalise(self, step: int, *, best: bool) -> None:
        """Put the weights that the model is to have in the place of those after `step`."""
        self._copied.wait()
        begin, end = self.layout.part_ranges[self.index]
        if best:
            source, target = self.layout.best_at, self.layout.state_at(step)
            size = end - begin
            self.block.range(target + begin, size)[:] = self.block.range(source + begin, size)
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
        """Write the part as it is after `step`, in a thread, and tell `then` how that went.

        Training goes on meanwhile. It only waits where the step after the next comes before the copy is made.
        """
        if self._saving is not None and self._saving.is_alive():
            then(PartSaved(self.index, step, attempt, (), "the checkpoint before it is still being written"))
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
            tensors = {name: array.copy() for name, array in self._named(step)}
            if best:
                kept = self.block.tensors(self.layout.best_at, self._all)
                tensors |= {f"best.{i}": array.copy() for i, array in zip(self._all, kept, strict=True)}
        finally:
            self._copied.set()
        fail_here("aggregator.saving")
        try:
            part = store.write_part(step, attempt, str(self.index), tensors)
        except Exception as error:  # noqa: BLE001 - whoever waits must be answered
            then(PartSaved(self.index, step, attempt, (), str(error) or type(error).__name__))
            return
        then(PartSaved(self.index, step, attempt, ((part.name, part.sha256, part.bytes, part.finite),), ""))

    def wait_saved(self) -> None:
        """Until no checkpoint is being written any more."""
        if self._saving is not None:
            self._saving.join()

    def _named(self, step: int) -> list[tuple[str, Array]]:
        """Everything that the part is after a step, under the names that a checkpoint has for it."""
        named = [(f"weight.{i}", a) for i, a in zip(self._all, self._section(step, self._all), strict=True)]
        slots = zip(self._update.slots, self._optimizer.slots(step), strict=True)
        named += [(self._slot_name(spec), array) for spec, array in slots]
        if self.index == 0:
            named += [(f"sums.{j}", array) for j, array in enumerate(self.metric_sums(step))]
        return named

    def _slot_name(self, slot: SlotSpec) -> str:
        """By the tensor's place in the manifest, which is the same however the tensors are shared out."""
        owner = "shared" if slot.tensor < 0 else self._trainable[slot.tensor]
        return f"slot.{owner}.{slot.number}"
