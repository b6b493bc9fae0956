"""The step in progress at the sequencer: what workers have contributed, and what aggregators have applied."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from scavenger.elastic import steps as st
from scavenger.elastic.view import Piece
from scavenger.train.transport.messages.data import ApplyPart, Contributed, PartApplied, SumsFormed
from scavenger.train.transport.messages.reports import StepReport
from scavenger.train.transport.messages.values import RowCounts


class _Computed(NamedTuple):
    """What workers have contributed to some pieces.

    Attributes:
        samples: Their samples.
        loss: The mean loss over the samples.
        finite: Whether the loss and all gradients are finite.
    """

    pieces: tuple[Piece, ...]
    contributions: list[Contributed]
    samples: int
    loss: float
    finite: bool


class StepInProgress:
    """Contributions to a step, and its application by all aggregators that hold something.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._contributed_at = 0.0
        self._formed: dict[int, tuple[SumsFormed, float]] = {}
        self._ordered: set[int] = set()
        self._contributions: dict[int, Contributed] = {}
        self._known: _Computed | None = None
        self._apply: st.Apply | None = None
        self._order: ApplyPart | None = None
        self._applied: dict[int, PartApplied] = {}

    def is_new(self, pieces: Iterable[Piece]) -> bool:
        """Record the pieces of orders to workers; returns whether one of them was not ordered before."""
        before = len(self._ordered)
        for piece in pieces:
            self._ordered.add(piece.number)
        return len(self._ordered) > before

    def contributed(self, message: Contributed) -> None:
        """Record the contribution of a piece."""
        if message.piece not in self._contributions:
            self._contributed_at = self._clock()
        self._contributions[message.piece], self._known = message, None

    def formed(self, message: SumsFormed) -> None:
        """Record that an aggregator has formed the sums of a list of pieces; a repetition changes nothing."""
        if message.index not in self._formed or self._formed[message.index][0] != message:
            self._formed[message.index] = message, self._clock()

    def rows_of(self, pieces: tuple[int, ...]) -> tuple[tuple[int, RowCounts], ...]:
        """Return the sparse gradients of pieces that were contributed."""
        return tuple((number, self._contributions[number].rows) for number in pieces)

    # ---- applying it ---------------------------------------------------------------------------------------

    def begin_apply(
        self, instruction: st.Apply, *, lr_scale: float, best_step: int = 0, schedule_step: int | None = None
    ) -> bool:
        """Begin to apply the step; returns False if that was begun before."""
        contributions = self._of(instruction.pieces).contributions
        held, taking_part = tuple(each.held for each in contributions), {*instruction.map.participants}
        order = ApplyPart(
            step=instruction.plan.step,
            view=instruction.view.number,
            lr_scale=lr_scale * self._contributions[instruction.pieces[0].number].rate,
            pieces=tuple(
                (piece.number, each.samples, piece.slot, each.rows)
                for piece, each in zip(instruction.pieces, contributions, strict=True)
            ),
            number=instruction.number,
            held=() if all(taking_part.issubset(each) for each in {*held}) else held,
            map=instruction.map.number,
            changed=instruction.map.if_begun(instruction.plan.step),
            best_step=best_step,
            schedule_step=schedule_step,
        )
        if order == self._order:
            return False
        self._order, self._apply = order, instruction
        self._applied.clear()
        return True

    @property
    def order(self) -> ApplyPart | None:
        """The order to all aggregators; None if the step is not being applied."""
        return self._order

    def behind(self) -> tuple[int, ...]:
        """Indices of the aggregators that have the order and have not applied it."""
        if self._order is None or self._apply is None:
            return ()
        return tuple(index for index in self._apply.map.participants if index not in self._applied)

    def applied(self, message: PartApplied) -> None:
        """Record that an aggregator has applied the step to its model shard; other steps are ignored."""
        order = self._order
        answered = (message.step, message.view, message.number)
        if order is not None and answered == (order.step, order.view, order.number):
            self._applied[message.index] = message

    def completed(self) -> st.Apply | None:
        """Return what was applied, once every aggregator has applied it."""
        return self._apply if not self.behind() else None

    def abandon(self) -> None:
        """Do not complete the step: one that only some aggregators have applied is never reported."""
        self._order = self._apply = None

    def close(self) -> None:
        """Forget the step, which was reported."""
        self.abandon()
        self._contributions.clear()
        self._known = None
        self._ordered.clear()
        self._formed.clear()

    # ---- what came of it -----------------------------------------------------------------------------------

    def _of(self, pieces: tuple[Piece, ...]) -> _Computed:
        """Return what was contributed to pieces; it is asked for again and again as the step ends."""
        if self._known is None or self._known.pieces is not pieces:
            found = [self._contributions[piece.number] for piece in pieces]
            samples = sum([each.samples for each in found])
            loss = sum([each.samples * each.loss for each in found]) / max(1, samples)
            # a sum is not finite if one of its terms is not; or if it is too large, though all of them are
            finite = math.isfinite(sum([each.sqnorm for each in found])) or all(
                math.isfinite(each.sqnorm) for each in found
            )
            self._known = _Computed(pieces, found, samples, loss, finite and math.isfinite(loss))
        return self._known

    def counted_slots(self, pieces: tuple[Piece, ...]) -> list[int]:
        """Slots of the pieces that have samples."""
        contributions = self._of(pieces).contributions
        return [piece.slot for piece, each in zip(pieces, contributions, strict=True) if each.samples]

    def not_finite(self, instruction: st.Apply, *, scales_loss: bool = False) -> str:
        """Describe a non-finite loss or gradient; empty if all values are finite.

        What workers have reported tells it before the step is applied, and so before any state is overwritten. That of
        the mean, which aggregators report, can only differ by the rounding of values near the largest of their type.

        Args:
            instruction: What is to be applied, or was applied.
            scales_loss: Whether the loss is scaled dynamically: then aggregators skip a step whose gradients are not
                finite, and only they tell when that does not help any more.
        """
        computed = self._of(instruction.pieces)
        if all(shard.finite for shard in self._applied.values()) and (computed.finite or scales_loss):
            return ""
        loss = computed.loss
        what, value = ("gradient", math.nan) if math.isfinite(loss) else ("loss", loss)
        names = dict.fromkeys(
            piece.worker
            for piece in instruction.pieces
            if not math.isfinite(self._contributions[piece.number].loss)
        )
        where = f" (on {', '.join(names)})" if names else ""
        plan = instruction.plan
        return f"the {what} became {value} at step {plan.step}, epoch {plan.epoch + 1}{where}"

    def _waits_s(self, instruction: st.Apply) -> tuple[tuple[int, float], ...]:
        """What the step has waited for each aggregator that holds something; nothing if no sums arrived."""
        pulled: dict[int, float] = {}
        for each in self._of(instruction.pieces).contributions:
            for index, took_s in each.pulled_s:
                pulled[index] = max(took_s, pulled.get(index, 0.0))
        return tuple(
            (
                index,
                max(0.0, self._formed[index][1] - self._contributed_at)
                + self._applied[index].update_s
                + pulled.get(index, 0.0),
            )
            for index in sorted({*instruction.map.holders})
            if index in self._formed
            and self._formed[index][0].step == instruction.plan.step
            and index in self._applied
        )

    def report(self, instruction: st.Apply, step_time_s: float) -> StepReport:
        """Report the step, which every aggregator has applied."""
        plan, view, pieces = instruction.plan, instruction.view, instruction.pieces
        computed, norms = self._of(pieces), list(self._applied.values())
        contributions = computed.contributions
        compute: dict[str, float] = {}
        for piece, each in zip(pieces, contributions, strict=True):
            # waiting for samples grows with the share, like computing, and is not synchronisation
            spent = each.compute_s + each.data_wait_s
            compute[piece.worker] = compute.get(piece.worker, 0.0) + spent
        counted = [each for each in contributions if each.samples]
        total = max(1, computed.samples)
        noise_s = max([each.noise_s for each in contributions], default=0.0)
        parts, worker_sqnorm = len(counted), sum([each.samples / total * each.sqnorm for each in counted])
        if parts == 1:
            worker_sqnorm = counted[0].half_sqnorm
            parts = 2 if worker_sqnorm > 0 else 0
        mean_sqnorm = sum(shard.mean_sqnorm for shard in norms)
        if not mean_sqnorm:  # as in a step that loss scaling has skipped
            parts, worker_sqnorm = 0, 0.0
        return StepReport(
            step=plan.step,
            view=view.number,
            epoch=plan.epoch,
            workers=view.workers,
            global_batch_size=view.global_batch_size,
            samples=computed.samples,
            step_time_s=max(0.0, step_time_s - noise_s),
            compute_s=max(compute.values(), default=0.0),
            update_s=max(shard.update_s for shard in norms),
            data_wait_s=max([each.data_wait_s for each in contributions], default=0.0),
            loss=computed.loss,
            mean_worker_sqnorm=worker_sqnorm,
            mean_sqnorm=mean_sqnorm,
            noise_parts=parts,
            worker_compute_s=compute,
            pieces=tuple((piece.worker, piece.share.start, piece.share.stop) for piece in pieces),
            aggregator_wait_s=self._waits_s(instruction),
            noise_s=noise_s,
        )
