"""The worker process: computes gradients on its share of the samples of every step.

A worker holds no state that it cannot fetch again, so it may join, leave or die at any time.
"""

from __future__ import annotations

import contextlib
import logging
import math
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from scavenger.elastic.initialization import Endpoint
from scavenger.elastic.membership import worker_slot
from scavenger.elastic.migration import BucketMap
from scavenger.elastic.view import Piece, WorkerView, step_range
from scavenger.train.failpoints import fail_here
from scavenger.train.failure import describe_disk_failure
from scavenger.train.transport import messages as m
from scavenger.train.transport.block_file import memory_id, open_block
from scavenger.train.transport.buckets import rounded_tensors
from scavenger.train.transport.heartbeat import Heartbeat
from scavenger.train.transport.messages.values import RowCounts
from scavenger.train.transport.replication import (
    CHUNK_BYTES,
    WeightsInbox,
)
from scavenger.train.transport.shared_memory import OptimizerMemory
from scavenger.train.transport.sockets import Dealer, Keys
from scavenger.train.worker.connections import AggregatorConnections
from scavenger.train.worker.loading import load_program, seed_worker
from scavenger.train.worker.memory import InitialWeights, WorkerMemory, keep_freed_memory
from scavenger.train.worker.noise_rhythm import NoiseRhythm
from scavenger.train.worker.orders import Orders
from scavenger.train.worker.parts import InParts
from scavenger.train.worker.results import Results
from scavenger.train.worker.rounding import Rounding
from scavenger.train.worker.samples import Samples
from scavenger.train.worker.saved_optimizer import SavedOptimizer

_WARM_UP_SAMPLES = 4
_ASK_AGAIN_S = 1.0

log = logging.getLogger(__name__)


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
    """

    def __init__(self, context: Any, config: m.ProcessConfiguration, control: Dealer) -> None:
        keys: Keys = (config.public_key.encode(), config.secret_key.encode())
        self._config, self._control = config, control
        self._program = load_program(
            config.train,
            config.job_dir,
            config.seed,
            data=config.data,
            params=config.params,
            schedule_batch=config.schedule_batch,
        )
        self._in_parts = InParts(self._program, lambda samples: control.send(m.MemoryExceeded(samples)))
        seed_worker(config.seed, config.name)
        self._samples = Samples(self._program.train, config.seed, self._program.manifest.passes)
        self._fd = open_block(config)
        self._memory_id = memory_id(self._fd)
        self._connections = AggregatorConnections(
            context, config.name, keys, memory=self._memory_id, control=control
        )
        self._orders, self._rhythm = self._no_orders(), NoiseRhythm()
        # None before `Prepare`
        self._memory: WorkerMemory | None = None
        self._results: Results | None = None
        self._initial: InitialWeights | None = None
        self._inbox: WeightsInbox | None = None
        self._ready, self._running = False, True
        self._beat = m.Beat()
        self._heartbeat = Heartbeat(context, config, lambda: self._beat)

    def run(self) -> None:
        """Register with the coordinator, and work until asked to quit."""
        self._heartbeat.start()
        fail_here("worker.joining")
        self._control.send(m.Hello(self._program.manifest))
        with contextlib.suppress(_QuitRequested):
            while self._running:
                self._connections.wait()
                for message, _ in self._control.receive():
                    self._from_control(message)
                self._receive_from_aggregators()
                while self._running and (order := self._orders.next()) is not None:
                    with contextlib.suppress(_Superseded):
                        self._from_sequencer(order)
                    self._receive_from_aggregators()
        self._samples.close()
        self._connections.close()
        self._heartbeat.close()

    # ---- messages ------------------------------------------------------------------------------------------

    def _from_control(self, message: m.Message) -> None:
        match message:
            case m.Prepare():
                self._prepare(message)
            case m.Reconnect() if self._memory is not None:
                self._connect(message.aggregators)
            case m.RollCall():
                seeded = self._initial is not None and self._initial.seeded
                prepared = self._memory is not None
                self._control.send(
                    m.Present(self._program.manifest, prepared, seeded, self._ready, self._memory_id)
                )
            case m.RunCallbacks():
                with contextlib.suppress(_Superseded):
                    self._run_callbacks(message)
            case m.Save():
                self._save(message)
            case m.Quit():
                self._running = False
            case _:
                pass

    def _receive_from_aggregators(self) -> None:
        """Process what has arrived from the aggregators: weights at once; orders are queued."""
        for index, connection, message, payload in self._connections.receive():
            match message:
                case m.Chunk() if payload is not None and self._inbox is not None:
                    self._inbox.take(index, message, payload)
                case m.ChunkQuery() if self._inbox is not None:
                    if (lacking := self._inbox.check(index, message)) is not None:
                        connection.send(lacking)
                case m.Seed() if self._initial is not None:
                    self._initial.send(index, message, connection.send)
                case m.Lacking():
                    if self._initial is not None:
                        self._initial.resend(index, message, connection.send)
                case m.AskBuckets() if self._results is not None:
                    self._results.answer(index, message, connection.send)
                case m.Joined():
                    if self._connections.joined(index, message.payloads) and not self._ready:
                        self._ready = True
                        self._control.send(m.Ready())
                case m.Order() | m.Go() | m.Summarise() | m.TakeView() | m.TakeMap():
                    self._orders.add(message)
                case _:
                    pass

    def _from_sequencer(self, message: m.Order | m.Summarise) -> None:
        match message:
            case m.Order():
                view = self._orders.view(message.view)
                buckets = self._orders.map(message.map)
                if view is None or buckets is None:  # the sequencer repeats the order with them
                    self._connections.to_sequencer(m.AskView(message.view))
                    return
                self._take_map(buckets)
                if message.action == "train":
                    self._train(message, view)
                elif message.action == "evaluate":
                    self._evaluate(message, view)
                else:
                    self._samples.forget()
            case m.Summarise():
                training, validation = self._summed(message.training), self._summed(message.validation)
                metrics = self._program.summarise(training, validation)
                self._connections.to_sequencer(m.Summary(message.view, message.step, metrics))

    def _summed(self, sums: tuple[bytes, ...]) -> list[npt.NDArray[np.float64]]:
        """Unpack the sums of the metric variables."""
        shapes = self._program.manifest.metrics
        return [np.frombuffer(data).reshape(shape) for data, shape in zip(sums, shapes, strict=True)]

    # ---- start-up ------------------------------------------------------------------------------------------

    def _prepare(self, message: m.Prepare) -> None:
        if self._initial is not None:
            if message.initial:  # the worker that was asked first is gone
                self._publish()
            return
        program = self._program
        values = program.initial_state()
        rounded = rounded_tensors(message.manifest) if self._config.gradients == "bfloat16" else ()
        rounding = Rounding(rounded)
        self._memory = memory = WorkerMemory(
            self._fd, message.manifest, len(message.aggregators), program, rounding
        )
        self._results = Results(memory.block, rounded)
        # an aggregator on another host has its own memory, and needs some worker's initial weights
        packed = any(at.memory != self._memory_id for at in message.aggregators)
        self._initial = InitialWeights(
            memory, values, packed=packed, fd=self._fd, slots=program.initial_slots()
        )
        if message.initial:
            self._publish()
        # trace the functions and allocate memory before other workers wait for this one; results are discarded
        some = program.train.batch(np.arange(min(_WARM_UP_SAMPLES, len(program.train))))
        keep_freed_memory()
        gradient = program.gradient(values, some, seed=0, position=0)
        self._in_parts.with_noise(gradient, values, some, seed=0, position=0)
        memory.write(gradient, worker_slot(self._config.name))
        rounding.forget()
        memory.touch()
        program.evaluate(values, 0, min(_WARM_UP_SAMPLES, message.manifest.validation_size), _WARM_UP_SAMPLES)
        self._connect(message.aggregators)

    def _no_orders(self) -> Orders:
        return Orders(self._config.name, self._program.manifest.dataset_size)

    def _publish(self) -> None:
        """Write the initial weights to this host's shared memory, as the weights of step 0."""
        assert self._initial is not None
        if self._initial.publish():
            self._control.send(m.Seeded(self._memory_id))

    def _connect(self, aggregators: tuple[Endpoint, ...]) -> None:
        assert self._memory is not None
        # the sequencer may be a new process; it repeats its orders to a worker that joins
        self._orders = self._no_orders()
        self._connections.connect(aggregators)
        self._inbox = WeightsInbox(self._memory.block, self._connections.remote, self._memory.layout)

    def _take_newest_map(self) -> bool:
        """Take the newest map of buckets that has arrived; returns whether it is another one."""
        body, before = self._orders.newest_map, self._inbox and self._inbox.layout
        if body is not None:
            self._take_map(body)
        return self._inbox is not None and self._inbox.layout is not before

    def _take_map(self, body: BucketMap) -> None:
        """Expect weights from the aggregators that hold them under a map of buckets."""
        assert self._memory is not None
        assert self._inbox is not None
        if self._memory.layout.map_number != body.number:
            self._memory.layout = self._memory.layout.moved(body.holders, body.number)
            self._known.take(self._memory.layout)
        self._inbox.layout = self._memory.layout

    # ---- work ----------------------------------------------------------------------------------------------

    def _weights(
        self,
        step: int,
        order: m.Order | None = None,
        optimizers: Mapping[int, OptimizerMemory] | None = None,
    ) -> list[Any]:
        """Return the weights after a step, fetched from aggregators on other hosts where necessary.

        Args:
            order: The order that needs the weights; None at the end of the job, when the weights may have changed
                since they were fetched.
            optimizers: Where to put the optimizer's state, by aggregator, if it is to be fetched too.

        Raises:
            _Superseded: If a later order arrives meanwhile.
        """
        assert self._inbox is not None
        assert self._memory is not None
        changed = order is None or optimizers is not None  # the weights alone may be here
        if optimizers is not None:
            self._take_newest_map()  # an order names its map
        self._inbox.want(step, changed=changed, optimizers=optimizers)
        moved_at, received = -math.inf, self._inbox.received_bytes
        while lacking := self._inbox.lacking:
            if self._inbox.received_bytes != received:
                moved_at, received = time.monotonic(), self._inbox.received_bytes
            if time.monotonic() - moved_at >= _ASK_AGAIN_S:
                moved_at = time.monotonic()
                for index in lacking:
                    self._connections.to_aggregator(index).send(self._inbox.pull())
                fail_here("worker.pulling")
            self._connections.wait(_ASK_AGAIN_S)
            self._receive_from_aggregators()
            inbox = self._inbox
            if optimizers is not None and self._take_newest_map():
                inbox.want(step, optimizers=optimizers)
            for message, _ in self._control.receive():
                if not isinstance(message, m.RunCallbacks):  # it needs weights, too, and is sent again
                    self._from_control(message)
            if not self._running:
                raise _QuitRequested
            if order is not None and self._orders.superseded(order):
                raise _Superseded
            if self._inbox is not inbox:  # reconnected
                if order is not None:
                    raise _Superseded
                moved_at, received = -math.inf, 0
                self._inbox.want(step, optimizers=optimizers)
        return self._memory.weights(step)

    def _save(self, message: m.Save) -> None:
        """Write the model to the requested path, or send the file if the supervisor is on another host."""
        try:
            self._write_model(message)
        except Exception as error:
            if not (cause := describe_disk_failure(error)):
                raise
            self._control.send(m.Unsaved(cause))
            return
        if message.callbacks is not None:
            self._program.callbacks.end(message.callbacks)
        self._control.send(m.Saved())

    def _write_model(self, message: m.Save) -> None:
        assert self._memory is not None
        saved = SavedOptimizer(self._fd, self._memory.layout)
        weights = self._weights(message.step, optimizers=saved.memories)
        state = saved.state(message.step, message.lr_scale)
        if message.path:
            self._program.save(weights, Path(message.path), state)
        else:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.keras"
                self._program.save(weights, path, state)
                with path.open("rb") as file:
                    while data := file.read(CHUNK_BYTES):
                        self._control.send(m.SavedPart(file.tell() - len(data), data))

    def _run_callbacks(self, request: m.RunCallbacks) -> None:
        """Run the callbacks for the end of an epoch or step, or repeat the answer.

        Raises:
            _Superseded: If the job has gone on without them, as after a rollback.
        """
        callbacks = self._program.callbacks
        answer = callbacks.answer_to(request)
        if answer is None:
            if callbacks.needs_model(request):
                assert self._memory is not None
                saved = SavedOptimizer(self._fd, self._memory.layout)
                now = m.Order("callbacks", request.step, self._beat.view, (), (), False)
                weights = self._weights(request.step, now, saved.memories)
                self._program.restore(weights, saved.state(request.step, 1.0))
            so_far = None if request.ends_epoch else self._program.summarise(self._summed(request.sums))
            answer = callbacks.run(request, so_far)
            fail_here("worker.called")
        self._control.send(answer)

    def _train(self, order: m.Order, view: WorkerView) -> None:
        step = order.step + 1
        assert self._initial is not None
        self._initial.drop()
        self._samples.leave_out(order.quarantined)
        if order.cautious:
            self._samples.forget()
        if view.number > self._beat.view:
            self._beat = msgspec.structs.replace(self._beat, view=view.number)
            log.info("view %d holds from step %d on", view.number, view.first_step)
        fail_here("worker.leased")
        epoch = step_range(view, step, self._program.manifest.dataset_size).epoch
        for piece in order.pieces:
            result = self._known.begin("train", step, piece)
            if not isinstance(result, m.Contributed):
                result = self._compute(order, epoch, view, piece)
            self._push(result, view.workers)
            self._receive_from_aggregators()  # which may ask for what was computed
        self._beat = msgspec.structs.replace(self._beat, step=step)

    def _compute(self, order: m.Order, epoch: int, view: WorkerView, piece: Piece) -> m.Contributed:
        step = order.step + 1
        samples = len(self._samples.indices(epoch, piece.share))
        weights = self._weights(order.step, order) if samples else []
        # the time to fetch weights from other hosts is not compute time
        started, waited_before = time.perf_counter(), self._samples.waited_s
        loss = half_sqnorm = sqnorm = noise_s = 0.0
        rows: RowCounts = ()
        if samples:
            assert self._memory is not None
            batch = self._samples.read(epoch, piece.share)
            if not order.cautious:
                self._samples.read_ahead(view, step + 1)
            program, given = self._in_parts, (weights, batch)
            position = epoch * self._program.manifest.dataset_size + piece.share.start
            at: dict[str, Any] = {
                "seed": self._config.seed,
                "position": position,
                "loss_scale": order.loss_scale,
            }
            result = program.gradient(*given, **at)
            if view.workers == 1 and self._rhythm.is_due(view.global_batch_size):
                began = time.perf_counter()
                result = program.with_noise(result, *given, **at)
                noise_s = time.perf_counter() - began
            rows, sqnorm = self._memory.write(result, piece.slot)
            loss, half_sqnorm = result.loss, result.half_sqnorm
        waited = self._samples.waited_s - waited_before
        compute_s = time.perf_counter() - started - waited - noise_s
        if view.workers == 1:
            self._rhythm.took(compute_s, noise_s)
        fail_here("worker.computed")
        contribution = m.Contributed(
            view=view.number,
            step=step,
            piece=piece.number,
            samples=samples,
            held=self._connections.local,
            compute_s=compute_s,
            data_wait_s=waited,
            loss=loss,
            half_sqnorm=half_sqnorm,
            rows=rows,
            sqnorm=sqnorm,
            rate=self._program.rate(order.step, epoch, piece.share.start),
            pulled_s=() if self._inbox is None else self._inbox.took_s(),
            noise_s=noise_s,
        )
        self._known.add_gradient(step, piece, contribution)
        return contribution

    @property
    def _known(self) -> Results:
        """The recent results; there are orders only after `Prepare`."""
        assert self._results is not None
        return self._results

    def _push(self, result: m.Contributed, workers: int) -> None:
        connections = self._connections
        senders = {i: connections.to_aggregator(i).send for i in connections.remote}
        self._known.push(result, senders, workers)
        connections.offer(result)
        fail_here("worker.pushed")

    def _evaluate(self, order: m.Order, view: WorkerView) -> None:
        for piece in order.pieces:
            result = self._known.begin("evaluate", order.step, piece)
            if not isinstance(result, m.Evaluation):
                share = piece.share
                sums = self._in_parts.evaluate(
                    self._weights(order.step, order),
                    share.start,
                    share.stop,
                    view.local_batch_size,
                    seed=self._config.seed,
                    step=order.step,
                    whole_batch_size=view.global_batch_size,
                )
                packed = tuple(np.asarray(value, dtype=np.float64).tobytes() for value in sums)
                result = m.Evaluation(view.number, order.step, piece.number, packed)
                self._known.add_evaluation(order.step, piece, result)
                fail_here("worker.evaluated")
            self._connections.to_sequencer(result)
        if not order.cautious:
            self._samples.read_ahead(view, order.step + 1)
