"""The aggregator process: holds the master weights, averages gradients, applies the optimizer, publishes.

It only carries out what `scavenger.elastic.barrier` decides.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import zmq

from scavenger.elastic import barrier as b
from scavenger.elastic.view import Member, StepPlan, View
from scavenger.errors import NotSupportedError
from scavenger.train import messages as m
from scavenger.train.memory import Block, Layout
from scavenger.train.optimizer import MasterWeights, average
from scavenger.train.wire import Dealer, Keys, Router

__all__ = ["Aggregator"]


def view_body(view: View) -> m.ViewBody:
    """A view as it travels."""
    return m.ViewBody(
        number=view.number,
        first_step=view.first_step,
        global_batch_size=view.global_batch_size,
        members=tuple(m.MemberBody(member.worker, member.slot) for member in view.members),
        epoch=view.position.epoch,
        consumed=view.position.consumed,
    )


class Aggregator:
    """One job's aggregator.

    Args:
        control: To the coordinator.
        data_keys: Its own keys on the data channel.
        memory_fd: The job's block.
    """

    def __init__(self, context: Any, control: Dealer, data_keys: Keys, memory_fd: int) -> None:
        self._control = control
        self._data = Router(context, data_keys)
        self._fd = memory_fd
        self._poller = zmq.Poller()
        self._poller.register(self._control.socket, zmq.POLLIN)
        self._poller.register(self._data.socket, zmq.POLLIN)
        self._running = True
        self._contributed: dict[str, m.Contributed] = {}
        self._summary: dict[str, float] = {}
        self._opened_at = 0.0
        self._evaluating_since = 0.0
        self._barrier: b.Barrier | None = None
        self._failed = False
        self._has_best = False
        self._finishing: m.Finish | None = None

    @property
    def address(self) -> str:
        return self._data.address

    def run(self) -> None:
        """Serve until told to quit."""
        self._control.send(m.AggregatorReady(self.address))
        while self._running:
            self._poller.poll()
            for message in self._control.receive():
                self._from_coordinator(message)
            for peer, message in self._data.receive():
                self._from_worker(peer, message)
        self._data.close()

    # ---- messages ------------------------------------------------------------------------------------------

    def _from_coordinator(self, message: m.Message) -> None:
        match message:
            case m.Initialise():
                self._initialise(message)
            case m.Announcement() if self._barrier is not None:
                members = tuple(Member(body.worker, body.slot) for body in message.members)
                self._feed(
                    b.Announce(
                        number=message.number,
                        members=members,
                        global_batch_size=message.global_batch_size,
                        urgent=message.urgent,
                        reason=message.reason,
                    )
                )
            case m.VerdictGiven():
                if message.keep_best:
                    self._has_best = True
                    layout = self._layout
                    self._block.copy(layout.weights_at(self._state.step), layout.best_at)
                self._feed(b.Verdict(stop=message.stop))
            case m.Probe():
                state = self._barrier
                self._control.send(m.Missing(state.step + 1, state.missing) if state else m.Missing(0, ()))
            case m.Finish() if self._barrier is not None:
                self._finishing = message
                self._feed(b.Halt())
            case m.Quit():
                self._running = False
            case _:
                pass

    def _from_worker(self, peer: str, message: m.Message) -> None:
        if self._failed:
            return
        match message:
            case m.Join():
                self._data.send(peer, m.Joined())
            case _ if self._barrier is None:
                pass
            case m.Contributed():
                follows = self._state.handle(b.Contribution(peer, message.view, message.step))
                if not any(isinstance(instruction, b.Refuse) for instruction in follows):
                    self._contributed[peer] = message
                self._carry_out(follows)
            case m.Evaluation():
                self._feed(b.Evaluated(peer, message.view, message.step))
            case m.Summary():
                self._summary = message.metrics
                self._feed(b.Summed(peer, message.view, message.step))
            case _:
                pass

    @property
    def _state(self) -> b.Barrier:
        assert self._barrier is not None
        return self._barrier

    def _feed(self, event: b.Event) -> None:
        self._carry_out(self._state.handle(event))

    def _carry_out(self, queue: list[b.Instruction]) -> None:
        self._work_off(queue)
        if self._finishing is not None and (self._failed or self._state.phase is b.Phase.STOPPED):
            self._finish(self._finishing)
            self._finishing = None

    def _work_off(self, queue: list[b.Instruction]) -> None:
        while queue:
            instruction = queue.pop(0)
            match instruction:
                case b.Apply():
                    if not self._apply(instruction):
                        return
                    queue += self._state.handle(b.Applied(instruction.plan.step))
                case b.Proceed():
                    self._proceed(instruction)
                case b.Sum():
                    self._sum(instruction)
                case b.Report():
                    self._report_epoch(instruction.plan)
                case b.Installed():
                    view = instruction.view
                    self._control.send(
                        m.ViewInstalled(
                            view.number, view.first_step, view.workers, view.global_batch_size, view.reason
                        )
                    )
                case b.Refuse():
                    print(f"refused {instruction.worker}: {instruction.reason}", flush=True)

    # ---- instructions --------------------------------------------------------------------------------------

    def _initialise(self, message: m.Initialise) -> None:
        manifest = message.manifest
        self._layout = Layout.of(manifest, message.slots)
        self._block = Block(self._fd, self._layout)
        self._trainable = sum(1 for tensor in manifest.tensors if tensor.role == "trainable")
        self._weights = [self._block.state(self._layout.weights_at(step)) for step in (0, 1)]
        self._slots: dict[int, list[Any]] = {}
        self._slot_metrics: dict[int, list[Any]] = {}
        trainable = manifest.tensors[: self._trainable]
        try:
            self._master = MasterWeights(trainable, self._weights[0][: self._trainable], manifest.optimizer)
        except NotSupportedError as error:
            self._control.send(m.Failed("unsupported", str(error)))
            return
        self._mean = [np.empty(tensor.shape, dtype=tensor.dtype) for tensor in trainable]
        self._epoch_sums = [np.zeros(shape) for shape in manifest.metrics]
        self._barrier = b.Barrier(manifest.dataset_size)

    def _slot(self, slot: int) -> tuple[list[Any], list[Any]]:
        if slot not in self._slots:
            self._slots[slot] = self._block.state(self._layout.slot_at(slot))
            self._slot_metrics[slot] = self._block.metrics(self._layout.slot_metrics_at(slot))
        return self._slots[slot], self._slot_metrics[slot]

    def _apply(self, instruction: b.Apply) -> bool:
        plan, view = instruction.plan, instruction.view
        cut = self._trainable
        contributions = []
        for member, share in zip(view.members, plan.shares, strict=True):
            said = self._contributed[member.worker]
            state, metrics = self._slot(member.slot)
            contributions.append((share.samples, state, metrics, said))
        counted = [c for c in contributions if c[0] > 0]
        worker_sqnorm, sqnorm = average([(n, state[:cut]) for n, state, _, _ in counted], self._mean)
        parts = len(counted)
        if len(counted) == 1:
            worker_sqnorm = counted[0][3].half_sqnorm
            parts = 2 if worker_sqnorm > 0 else 0
        loss = sum(n * said.loss for n, _, _, said in counted) / plan.samples
        if not (np.isfinite(sqnorm) and np.isfinite(loss)):
            self._refuse_step(instruction, loss, sqnorm)
            return False

        out = self._weights[plan.step % 2]
        self._master.apply(self._mean, out[:cut])
        for index in range(cut, len(out)):
            target: Any = out[index]
            first = counted[0][1][index]
            target[...] = first
            if self._layout.manifest.tensors[index].role == "mean":
                # as differences, so that what no worker changed (frozen layers) keeps its every bit
                for n, state, _, _ in counted[1:]:
                    target += (n / plan.samples) * (state[index] - first)
        for _, _, metrics, _ in counted:
            for total, part in zip(self._epoch_sums, metrics, strict=True):
                total += part
        now = time.perf_counter()
        self._control.send(
            m.StepReport(
                step=plan.step,
                view=view.number,
                epoch=plan.epoch,
                workers=view.workers,
                global_batch_size=view.global_batch_size,
                samples=plan.samples,
                step_time_s=now - self._opened_at,
                compute_s=max(said.compute_s for _, _, _, said in contributions),
                loss=loss,
                mean_worker_sqnorm=worker_sqnorm,
                mean_sqnorm=sqnorm,
                noise_parts=parts,
            )
        )
        self._opened_at = now
        if plan.ends_epoch:
            self._evaluating_since = now
        return True

    def _refuse_step(self, instruction: b.Apply, loss: float, sqnorm: float) -> None:
        """A non-finite gradient is not applied: the weights of the step before stay the job's."""
        self._failed = True
        plan = instruction.plan
        what = "loss" if not np.isfinite(loss) else "gradient"
        culprits = ", ".join(
            member.worker
            for member, share in zip(instruction.view.members, plan.shares, strict=True)
            if share.samples and not np.isfinite(self._contributed[member.worker].loss)
        )
        where = f" (on {culprits})" if culprits else ""
        self._control.send(
            m.Failed(
                "nonfinite",
                f"the {what} became {loss if what == 'loss' else sqnorm} at step {plan.step}, epoch "
                f"{plan.epoch + 1}{where}; the step was not applied. Lower the learning rate, or check the data",
            )
        )

    def _proceed(self, instruction: b.Proceed) -> None:
        if instruction.action == "train" and self._evaluating_since:
            self._evaluating_since = 0.0
            self._opened_at = time.perf_counter()
        elif self._opened_at == 0.0:
            self._opened_at = time.perf_counter()
        self._data.send(
            instruction.worker, m.Order(instruction.action, instruction.step, view_body(instruction.view))
        )

    def _sum(self, instruction: b.Sum) -> None:
        """Put the epoch's sums where the members can read them, and ask the first for the metrics."""
        training = self._block.metrics(self._layout.sums_at(validation=False))
        validation = self._block.metrics(self._layout.sums_at(validation=True))
        for target, total in zip(training, self._epoch_sums, strict=True):
            target[...] = total
        for index, target in enumerate(validation):
            target[...] = sum(self._slot(member.slot)[1][index] for member in instruction.view.members)
        view = instruction.view
        self._data.send(view.members[0].worker, m.Summarise(view.number, instruction.plan.step))

    def _report_epoch(self, plan: StepPlan) -> None:
        for total in self._epoch_sums:
            total[...] = 0
        self._control.send(
            m.EpochReport(
                epoch=plan.epoch,
                step=plan.step,
                metrics=self._summary,
                evaluation_s=time.perf_counter() - self._evaluating_since,
            )
        )

    def _finish(self, message: m.Finish) -> None:
        step = self._state.step
        out = self._weights[step % 2]
        if message.best and self._has_best:
            # the best weights of an earlier epoch take the place of the last ones
            self._block.copy(self._layout.best_at, self._layout.weights_at(step))
        else:
            self._master.finalise(out[: self._trainable])
        self._control.send(m.Done(step))
