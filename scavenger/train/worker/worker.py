"""The worker process: computes gradients on its share of the samples of every step.

A worker holds no state that it cannot fetch again, so it may join, leave or die at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
import math
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import zmq

from scavenger.elastic.membership import worker_slot
from scavenger.elastic.order import epoch_order
from scavenger.elastic.quarantine import without
from scavenger.elastic.view import Piece, View, plan_step
from scavenger.errors import NotSupportedError, TrainingCodeError
from scavenger.sdk.job import KerasJob
from scavenger.train.failpoints import fail_here
from scavenger.train.failure import describe_disk_failure
from scavenger.train.transport import messages as m
from scavenger.train.transport.block_file import memory_id, open_block
from scavenger.train.transport.heartbeat import Heartbeat
from scavenger.train.transport.replication import (
    CHUNK_BYTES,
    Outbox,
    Payload,
    WeightsInbox,
    initial_payload,
    pack,
)
from scavenger.train.transport.shared_memory import Block, Layout
from scavenger.train.transport.sockets import Dealer, Keys
from scavenger.train.worker.orders import Orders
from scavenger.train.worker.prefetch import Prefetcher
from scavenger.train.worker.program import Gradient, Program
from scavenger.train.worker.results import Results

__all__ = ["Worker", "load_program", "seed_worker"]

_WARM_UP_SAMPLES = 4
_ASK_AGAIN_S = 1.0

log = logging.getLogger(__name__)


def load_program(train: str, job_dir: str, seed: int) -> Program:
    """Build the job that `module:object` names, after seeding every random generator that Keras controls.

    Raises:
        TrainingCodeError: If the module has no such object, or the object is not a job.
        NotSupportedError: If the module asks for another backend of Keras.
    """
    module_name, _, attribute = train.partition(":")
    sys.path.insert(0, job_dir)
    keras.utils.set_random_seed(seed % (1 << 32))
    module = importlib.import_module(module_name)
    if (backend := os.environ.get("KERAS_BACKEND") or "tensorflow") != "tensorflow":
        raise NotSupportedError(
            f"{module.__file__} or a module that it imports sets KERAS_BACKEND to {backend!r}, but workers compute "
            "with TensorFlow: leave it out"
        )
    try:
        job = getattr(module, attribute)
    except AttributeError:
        raise TrainingCodeError(f"{module.__file__} has no object {attribute!r}") from None
    if callable(job) and not isinstance(job, KerasJob):
        job = job()
    if not isinstance(job, KerasJob):
        raise TrainingCodeError(
            f"{train} must be, or return, a scavenger.sdk.KerasJob, not {type(job).__name__}"
        )
    return Program(job)


def seed_worker(seed: int, name: str) -> None:
    """Seed NumPy, Python and TensorFlow's own random operations differently for each worker.

    `load_program` gives all workers the same seeds; from this call on, each worker draws other numbers. The
    generators of Keras layers are not affected.
    """
    digest = hashlib.blake2b(name.encode(), digest_size=4, key=(seed % (1 << 64)).to_bytes(8, "little"))
    keras.utils.set_random_seed(int.from_bytes(digest.digest(), "little"))


class _QuitRequested(Exception):  # noqa: N818 - it is no error
    """The coordinator has ended this worker."""


class _Superseded(Exception):  # noqa: N818 - it is no error
    """The job moved to another step while this worker waited, so its current order is obsolete."""


class Worker:
    """One worker of one job.

    Args:
        context: ZeroMQ context.
        config: Identity of the worker, and location of the training code.
        control: Connection to the supervisor's hub.
        keys: The worker's own key pair for the data channel.
    """

    def __init__(self, context: Any, config: m.ProcessConfiguration, control: Dealer, keys: Keys) -> None:
        self._context, self._config, self._control, self._keys = context, config, control, keys
        self._name = config.name
        self._program = load_program(config.train, config.job_dir, config.seed)
        seed_worker(config.seed, config.name)
        self._batches = Prefetcher(self._program.train)
        self._fd = open_block(config)
        self._memory = memory_id(self._fd)
        self._poller = zmq.Poller()
        self._poller.register(self._control.socket, zmq.POLLIN)
        self._aggregators: list[Dealer] = []
        self._remote: tuple[int, ...] = ()
        self._inbox: WeightsInbox | None = None
        self._packed_initial: memoryview | None = None
        self._seed_outboxes: list[Outbox] = []
        self._orders = Orders()
        self._initial_weights: list[Any] | None = None
        self._joined: set[int] = set()
        self._epoch: tuple[int, Any] | None = None
        self._slot_arrays: dict[int, list[Any]] = {}
        self._quarantined: tuple[int, ...] = ()
        self._prepared = self._seeded = self._ready = False
        self._step = self._view = 0
        self._running = True
        self._heartbeat = Heartbeat(context, config, lambda: m.Beat(step=self._step, view=self._view))

    def run(self) -> None:
        """Register with the coordinator, and work until asked to quit."""
        self._heartbeat.start()
        fail_here("worker.joining")
        self._control.send(m.Hello(self._program.manifest))
        with contextlib.suppress(_QuitRequested):
            while self._running:
                self._poller.poll()
                for message, _ in self._control.receive():
                    self._from_control(message)
                self._receive_from_aggregators()
                while self._running and (order := self._orders.next()) is not None:
                    with contextlib.suppress(_Superseded):
                        self._from_sequencer(order)
                    self._receive_from_aggregators()
        self._batches.close()
        self._heartbeat.close()

    # ---- messages ------------------------------------------------------------------------------------------

    def _from_control(self, message: m.Message) -> None:
        match message:
            case m.Prepare():
                self._prepare(message)
            case m.Reconnect() if self._prepared:
                self._connect(message.aggregators)
            case m.RollCall():
                manifest = self._program.manifest
                self._control.send(
                    m.Present(manifest, self._prepared, self._seeded, self._ready, self._memory)
                )
            case m.Save():
                self._save(message)
            case m.Quit():
                self._running = False
            case _:
                pass

    def _receive_from_aggregators(self) -> None:
        """Process what has arrived from the aggregators: weights at once; orders are queued."""
        for index, dealer in enumerate(self._aggregators):
            for message, payload in dealer.receive():
                match message:
                    case m.Chunk() if payload is not None and self._inbox is not None:
                        self._inbox.take(index, message, payload)
                    case m.Check() if self._inbox is not None:
                        if (lacking := self._inbox.check(index, message)) is not None:
                            dealer.send(lacking)
                    case m.Seed() if self._packed_initial is not None:
                        self._seed_outboxes[index].push(self._seed(index, message.number), dealer.send)
                    case m.Lacking():
                        self._resend(index, message)
                    case m.Joined():
                        self._joined.add(index)
                        if len(self._joined) == len(self._aggregators) and not self._ready:
                            self._ready = True
                            self._control.send(m.Ready())
                    case m.Order() | m.Summarise() | m.TakeView():
                        self._orders.add(message)
                    case _:
                        pass

    def _resend(self, index: int, answer: m.Lacking) -> None:
        """Send the chunks that an aggregator reports as missing."""
        dealer = self._aggregators[index]
        if answer.step == 0:
            if self._packed_initial is not None:
                self._seed_outboxes[index].resend(answer, self._seed(index, answer.piece), dealer.send)
        elif (result := self._results.resend(index, answer, dealer.send)) is not None and index == 0:
            self._send_to_sequencer(result)

    def _seed(self, index: int, number: int) -> Payload:
        assert self._packed_initial is not None
        return initial_payload(self._layout, index, self._packed_initial, number)

    def _from_sequencer(self, message: m.Order | m.Summarise) -> None:
        match message:
            case m.Order():
                view = self._orders.view(message.view)
                if view is None:
                    self._send_to_sequencer(
                        m.AskView(message.view)
                    )  # the sequencer repeats the order with the view
                elif message.action == "train":
                    self._train(message, view)
                elif message.action == "evaluate":
                    self._evaluate(message, view)
                else:
                    self._batches.forget()
            case m.Summarise():
                shapes = self._program.manifest.metrics
                training, validation = (
                    [np.frombuffer(data).reshape(shape) for data, shape in zip(sums, shapes, strict=True)]
                    for sums in (message.training, message.validation)
                )
                metrics = self._program.summarise(training, validation)
                self._send_to_sequencer(m.Summary(message.view, message.step, metrics))

    def _send_to_sequencer(self, message: m.Message) -> None:
        self._aggregators[0].send(message)

    # ---- start-up ------------------------------------------------------------------------------------------

    def _prepare(self, message: m.Prepare) -> None:
        if self._prepared:
            if (
                message.initial and self._initial_weights is not None
            ):  # the worker that was asked first is gone
                self._publish(self._initial_weights)
            return  # contribution again
        self._prepared = True
        self._layout = Layout.of(message.manifest, len(message.aggregators))
        self._block = Block(self._fd, self._layout)
        self._results = Results(self._block)
        self._seed_outboxes = [Outbox() for _ in message.aggregators]
        arrays = [self._block.tensors(self._layout.state_at(turn)) for turn in (0, 1)]
        self._views = [self._program.alias(turn) for turn in arrays]
        self._initial_weights = initial = self._program.initial_state()
        if message.initial:
            self._publish(initial)
        if any(at.memory != self._memory for at in message.aggregators):
            # an aggregator on another host has its own memory, and needs some worker's initial weights
            self._packed_initial = pack(self._layout, initial)
        # trace the functions and allocate memory before other workers wait for this one; results are discarded
        some = self._program.train.batch(np.arange(min(_WARM_UP_SAMPLES, len(self._program.train))))
        for halves in (False, True) if len(self._program.train) > 1 else (False,):
            self._write_result(
                self._program.gradient(initial, some, seed=0, position=0, halves=halves),
                worker_slot(self._name),
            )
        for turn in (0, 1):
            self._block.touch(self._layout.state_at(turn), self._layout.state_bytes)
        self._program.evaluate(
            initial, 0, min(_WARM_UP_SAMPLES, message.manifest.validation_size), _WARM_UP_SAMPLES
        )
        self._connect(message.aggregators)

    def _publish(self, initial: list[Any]) -> None:
        """Write the initial weights to this host's shared memory, as the weights of step 0."""
        for target, value in zip(self._block.tensors(self._layout.state_at(0)), initial, strict=True):
            target[...] = value
        self._initial_weights, self._seeded = None, True
        self._control.send(m.Seeded(self._memory))

    def _connect(self, aggregators: tuple[m.AggregatorAddress, ...]) -> None:
        if self._aggregators:
            log.info("reconnecting to the aggregators")
        for dealer in self._aggregators:
            self._poller.unregister(dealer.socket)
            dealer.close()
        self._joined.clear()
        self._orders = (
            Orders()
        )  # the sequencer may be a new process; it repeats its orders to a worker that joins
        self._remote = tuple(i for i, at in enumerate(aggregators) if at.memory != self._memory)
        self._inbox = WeightsInbox(self._block, self._remote)
        self._aggregators = [
            Dealer(self._context, self._name, at.address, at.key.encode(), self._keys) for at in aggregators
        ]
        for dealer in self._aggregators:
            self._poller.register(dealer.socket, zmq.POLLIN)
            dealer.send(m.Join())

    # ---- work ----------------------------------------------------------------------------------------------

    def _weights(self, step: int, order: m.Order | None = None) -> list[Any]:
        """Return the weights after a step, fetched from aggregators on other hosts where necessary.

        Args:
            order: The order that needs the weights; None at the end of the job, when the weights may have changed
                since they were fetched.

        Raises:
            _Superseded: If a later order arrives meanwhile.
        """
        assert self._inbox is not None
        self._inbox.want(step, changed=order is None)
        moved_at, received = -math.inf, self._inbox.received_bytes
        while lacking := self._inbox.lacking:
            if self._inbox.received_bytes != received:
                moved_at, received = time.monotonic(), self._inbox.received_bytes
            if time.monotonic() - moved_at >= _ASK_AGAIN_S:
                moved_at = time.monotonic()
                for index in lacking:
                    self._aggregators[index].send(m.Pull(step, self._inbox.number))
                fail_here("worker.pulling")
            self._poller.poll(int(_ASK_AGAIN_S * 1000))
            self._receive_from_aggregators()
            inbox = self._inbox
            for message, _ in self._control.receive():
                self._from_control(message)
            if not self._running:
                raise _QuitRequested
            if order is not None and self._orders.superseded(order):
                raise _Superseded
            if self._inbox is not inbox:  # reconnected
                if order is not None:
                    raise _Superseded
                moved_at, received = -math.inf, 0
                self._inbox.want(step)
        return self._views[step % 2]

    def _save(self, message: m.Save) -> None:
        """Write the model to the requested path, or send the file if the supervisor is on another host."""
        try:
            self._write_model(message)
        except Exception as error:
            if not (cause := describe_disk_failure(error)):
                raise
            self._control.send(m.Unsaved(cause))
            return
        self._control.send(m.Saved())

    def _write_model(self, message: m.Save) -> None:
        weights = self._weights(message.step)
        if message.path:
            self._program.save(weights, Path(message.path))
        else:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.keras"
                self._program.save(weights, path)
                with path.open("rb") as file:
                    while data := file.read(CHUNK_BYTES):
                        self._control.send(m.SavedPart(file.tell() - len(data), data))

    def _epoch_order(self, epoch: int) -> Any:
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, epoch_order(self._config.seed, epoch, len(self._program.train)))
        return self._epoch[1]

    def _samples(self, epoch: int, start: int, stop: int) -> Any:
        """Return the samples at these positions of the epoch's order, without quarantined ones."""
        return without(self._epoch_order(epoch)[start:stop], self._quarantined)

    def _train(self, order: m.Order, view: View) -> None:
        step = order.step + 1
        self._quarantined, self._initial_weights = order.quarantined, None
        if order.cautious:
            self._batches.forget()
        if view.number > self._view:
            self._view = view.number
            log.info("view %d holds from step %d on", view.number, view.first_step)
        fail_here("worker.leased")
        plan = plan_step(view, step, len(self._program.train))
        for body in order.pieces:
            piece = m.piece_of(body)
            result = self._results.begin("train", step, piece)
            if not isinstance(result, m.Contributed):
                result = self._compute(order, plan.epoch, view, piece)
            self._push(result)
        self._step = step

    def _compute(self, order: m.Order, epoch: int, view: View, piece: Piece) -> m.Contributed:
        step = order.step + 1
        share = piece.share
        indices = self._samples(epoch, share.start, share.stop)
        weights = self._weights(order.step, order) if len(indices) else []
        # the time to fetch weights from other hosts is not compute time
        started, waited_before = time.perf_counter(), self._batches.waited_s
        loss = half_sqnorm = 0.0
        if len(indices):
            batch = self._batches.take((epoch, share.start, share.stop), indices)
            if not order.cautious:
                self._prefetch(step + 1, view)
            result = self._program.gradient(
                weights,
                batch,
                seed=self._config.seed,
                position=epoch * len(self._program.train) + share.start,
                # a single worker estimates the gradient noise from the two halves of its batch
                halves=view.workers == 1 and len(indices) > 1,
            )
            self._write_result(result, piece.slot)
            loss, half_sqnorm = result.loss, result.half_sqnorm
        waited = self._batches.waited_s - waited_before
        fail_here("worker.computed")
        contribution = m.Contributed(
            view=view.number,
            step=step,
            piece=piece.number,
            samples=len(indices),
            held=tuple(i for i in range(len(self._aggregators)) if i not in self._remote),
            compute_s=time.perf_counter() - started - waited,
            data_wait_s=waited,
            loss=loss,
            half_sqnorm=half_sqnorm,
        )
        self._results.add_gradient(step, piece, contribution)
        return contribution

    def _write_result(self, result: Gradient, slot: int) -> None:
        """Write the results for a piece to its slot, where the aggregators read them."""
        if slot not in self._slot_arrays:
            at = self._layout.slot_at(slot)
            self._slot_arrays[slot] = [*self._block.tensors(at), *self._block.metrics(at)]
        values = (*result.gradients, *result.states, *result.metrics)
        for target, value in zip(self._slot_arrays[slot], values, strict=True):
            np.copyto(target, value)

    def _push(self, result: m.Contributed) -> None:
        self._results.push(result, {index: self._aggregators[index].send for index in self._remote})
        self._send_to_sequencer(result)
        fail_here("worker.pushed")

    def _evaluate(self, order: m.Order, view: View) -> None:
        for body in order.pieces:
            piece = m.piece_of(body)
            result = self._results.begin("evaluate", order.step, piece)
            if not isinstance(result, m.Evaluation):
                share = piece.share
                sums = self._program.evaluate(
                    self._weights(order.step, order),
                    share.start,
                    share.stop,
                    view.local_batch_size,
                    seed=self._config.seed,
                    step=order.step,
                )
                packed = tuple(np.asarray(value, dtype=np.float64).tobytes() for value in sums)
                result = m.Evaluation(view.number, order.step, piece.number, packed)
                self._results.add_evaluation(order.step, piece, result)
                fail_here("worker.evaluated")
            self._send_to_sequencer(result)
        if not order.cautious:
            self._prefetch(order.step + 1, view)

    def _prefetch(self, step: int, view: View) -> None:
        """Request the samples that the next step needs according to this view."""
        rank = view.rank(self._name)
        if rank is None:
            return
        plan = plan_step(view, step, len(self._program.train))
        share = plan.shares[rank]
        if share.samples:
            key = (plan.epoch, share.start, share.stop)
            self._batches.want(key, self._samples(plan.epoch, share.start, share.stop))
