"""The aggregator process: holds model shards, averages gradients, applies optimizers and publishes weights.

`model_shard` does the arithmetic of one shard; `sequencer` is the additional role of a job's first aggregator.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any

import zmq

from scavenger.elastic.barrier import Barrier
from scavenger.elastic.initialization import Endpoint
from scavenger.elastic.membership import worker_slot
from scavenger.elastic.quarantine import Suspects
from scavenger.errors import NotSupportedError, ScavengerError
from scavenger.train.aggregation.arriving_sums import ArrivingSums
from scavenger.train.aggregation.map_changes import MapChanges
from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.aggregation.peers import Peers
from scavenger.train.aggregation.posted import Posted
from scavenger.train.aggregation.remote_workers import RemoteWorkers
from scavenger.train.aggregation.sequencer import Sequencer
from scavenger.train.aggregation.start_up import InitialShard, StartUp, neighbours, new_migration
from scavenger.train.aggregation.upstream import Upstream
from scavenger.train.checkpoints.checkpoint import CheckpointStore
from scavenger.train.names import aggregator_name
from scavenger.train.transport import messages as m
from scavenger.train.transport.authenticator import Authenticator
from scavenger.train.transport.block_file import memory_id, open_block
from scavenger.train.transport.data_router import DataRouter
from scavenger.train.transport.heartbeat import Heartbeat
from scavenger.train.transport.sockets import Dealer, Keys, address_towards

_TICK_MS = 100
_QUARANTINED_SHARE = 100
"""At most one sample in this many may be quarantined, but at least one: beyond that, data is not the cause."""
_ASK_AGAIN_S = 1.0


log = logging.getLogger(__name__)


class Aggregator:
    """The aggregator of one job and one model shard.

    Args:
        context: ZeroMQ context.
        config: Identity of the aggregator.
        control: Connection to the supervisor's hub.
    """

    def __init__(self, context: Any, config: m.ProcessConfiguration, control: Dealer) -> None:
        self._config, self._control = config, control
        keys: Keys = (config.data_public_key.encode(), config.data_secret_key.encode())
        self._fd = open_block(config)
        address = address_towards(config.coordinator)
        # others cannot reach a Unix socket in a private folder; at a port, the key of each process is asked for
        admitted = None if address.startswith("/") else Authenticator(context, may_follow=True)
        self._data = DataRouter(context, keys, address, authenticator=admitted)
        self._address = Endpoint(self._data.address, config.data_public_key, memory_id(self._fd))
        self._poller = zmq.Poller()
        self._poller.register(self._control.socket, zmq.POLLIN)
        self._poller.register(self._data.socket, zmq.POLLIN)
        if admitted is not None:
            self._poller.register(admitted.socket, zmq.POLLIN)
        own: Keys = (config.public_key.encode(), config.secret_key.encode())
        self._upstream = Upstream(context, aggregator_name(self.index), own, self._poller)
        name, memory = aggregator_name(self.index), self._address.memory
        self._peers = Peers(context, name, own, memory=memory, poller=self._poller, upstream=self._upstream)
        self._remote_workers = RemoteWorkers(self._data.send, self._data.drop)
        self._own_workers: set[str] = set()
        self._sums: ArrivingSums | None = None
        self._maps: MapChanges | None = None
        self._shard: ModelShard | None = None
        self._sequencer: Sequencer | None = None
        self._loaded: set[int] = set()
        """The other aggregators that hold their shards."""
        self._start_up = StartUp(
            self._fd, self.index, shares_block=config.memory_fd >= 0, send=self._data.send
        )
        self._posted = Posted()
        self._poller.register(self._posted.fileno(), zmq.POLLIN)
        self._step = 0
        self._running = True
        self._heartbeat = Heartbeat(context, config, self._beat)

    @property
    def index(self) -> int:
        """The index of the model shard."""
        return self._config.index

    def run(self) -> None:
        """Serve until asked to quit."""
        self._heartbeat.start()
        self._data.start(self._poller)
        self._announce()
        try:
            while self._running:
                self._serve_once()
        finally:
            self.close()

    def _serve_once(self) -> None:
        """Process what has arrived, waiting for at most one tick."""
        self._poller.poll(_TICK_MS)
        for message, _ in self._control.receive():
            self._from_control(message)
        for peer, message, payload in self._data.receive():
            self._from_peer(peer, message, payload)
        for message, payload in self._upstream.receive():
            self._from_other(0, message, payload)
        if self._upstream.unheard:
            self._tell_upstream()  # it waits for this, which may have been lost
        for index, message, payload in self._peers.receive():
            self._from_other(index, message, payload)
        for message in self._posted.take():
            self._post_arrived(message)
        if self._maps is not None:
            self._maps.go_on()
        if self._sums is not None:
            self._sums.tick()
        if self._sequencer is not None:
            self._sequencer.tick()
        self._serve(self._start_up.tick())

    def _announce(self) -> None:
        config = self._config
        own = config.memory_fd < 0
        self._control.send(m.AggregatorReady(self.index, self._address, self._shard is not None, own))

    def close(self) -> None:
        """Wait for a checkpoint that is being written, then release all resources."""
        if self._shard is not None:
            self._shard.wait_saved()
            for message in self._posted.take():
                self._post_arrived(message)
        self._heartbeat.close()
        self._data.close()
        if self._data.authenticator is not None:
            self._data.authenticator.close()
        self._upstream.close()
        self._peers.close()
        self._posted.close()
        if self._config.memory_fd < 0:
            os.close(self._fd)

    def _beat(self) -> m.Beat:
        return m.Beat(step=self._step) if self._sequencer is None else self._sequencer.beat

    # ---- messages ------------------------------------------------------------------------------------------

    def _from_control(self, message: m.Message) -> None:
        match message:
            case m.Initialise():
                self._initialise(message)
            case m.RollCall():
                self._announce()
                if self._sequencer is not None:
                    self._control.send(self._sequencer.inform(message.token))
                elif self.index == 0:
                    self._control.send(m.SequencerState(False, 0, None, 0))
            case m.Reconnect():
                if self._upstream.connected:
                    self._connect_upstream(message.aggregators[0])
                self._peers.connect(message.aggregators)
            case m.Admit():
                if (admitted := self._data.authenticator) is not None:
                    for name, key in message.keys.items():
                        if admitted.admit(name, key):
                            self._data.dismiss(name)  # the process that had the name has ended
            case m.Forget():
                if self._data.authenticator is not None:
                    self._data.authenticator.dismiss(message.worker)
                    self._data.dismiss(message.worker)
                self._remote_workers.forget(message.worker)
                self._forget_slots(message.worker)
            case m.Quit():
                self._running = False
            case _ if self._sequencer is not None:
                self._sequencer.from_control(message)
                self._answer_pulls()
            case _:
                pass

    def _from_peer(self, peer: str, message: m.Message, payload: bytes | None) -> None:
        match message:
            case m.Join():
                self._data.send(peer, m.Joined(self._data.offer(peer)))
                self._joined(peer, message)
                self._start_up.joined(peer)
                if self._sequencer is not None:
                    self._sequencer.repeat_to(peer)  # it may have missed messages sent before it connected
            case m.Chunk() if payload is not None:
                self._serve(self._start_up.take(peer, message, payload))
            case m.GradientBucket() if payload is not None and self._sums is not None:
                self._sums.take(peer, message, payload)
            case m.BucketsSent() if self._sums is not None:
                self._sums.answered(peer, message)
            case m.ChunkQuery():
                self._start_up.check(peer, message)
            case m.Pull() | m.PullBuckets():
                self._remote_workers.pull(peer, message)
                self._answer_pulls()
            case m.Lacking():
                self._remote_workers.resend(peer, message, self._applied, self._overwrites)
            case m.Contributed():
                if self._sequencer is not None:
                    self._sequencer.from_worker(peer, message)
                if self._sums is not None:
                    self._sums.contributed(peer, message)
                self._answer_pulls()
            case m.Initialised() if message.index > 0 and peer == aggregator_name(message.index):
                self._loaded.add(message.index)  # also where this one is still to load its own
                if self._sequencer is not None:
                    self._sequencer.from_aggregator(message)
                    self._answer_pulls()
            case _ if self._sequencer is None:
                pass
            case m.Evaluation() | m.Summary() | m.AskView():
                self._sequencer.from_worker(peer, message)
            case (
                m.SumsFormed()
                | m.PartApplied()
                | m.Finalised()
                | m.PartSaved()
                | m.BucketsCopied()
                | m.MapTaken()
            ):
                if message.index > 0 and peer == aggregator_name(message.index):
                    self._sequencer.from_aggregator(message)
                    self._answer_pulls()
            case _:
                pass

    def _from_other(self, index: int, message: m.Message, payload: bytes | None) -> None:
        """Handle a message of another aggregator, to which this one has connected."""
        match message:
            case m.Joined():
                self._peers.joined(index, message)
            case m.Chunk() if self._maps is not None and payload is not None:
                self._maps.copies.take(index, message, payload)
            case m.ChunkQuery() if self._maps is not None:
                self._maps.copies.check(index, message)
            case _ if index == 0:
                self._from_sequencer(message)
            case _:
                pass

    def _from_sequencer(self, message: m.Message) -> None:
        if self._shard is None:
            return
        match message:
            case m.CopyBuckets() if self._maps is not None:
                self._maps.copy(message)
            case m.TakeMap() if self._maps is not None:
                self._maps.confirm(message)
            case m.ExpectPieces() | m.ApplyPart() if self._maps is not None and not self._maps.admits(
                message
            ):
                pass
            case m.ExpectPieces() if self._sums is not None:
                self._sums.expect(message)
            case m.ApplyPart() if self._is_current(self._shard, message):
                if (applied := self._apply(message)) is not None:
                    self._tell_applied(applied)
            case m.KeepBest():
                self._shard.keep_best(message.step)
            case m.Finalise():
                self._shard.see_best(message.best_step, message.step)
                self._shard.finalise(message.step, best=message.best)
                self._upstream.send(m.Finalised(self.index, message.step))
            case m.SavePart():
                store = CheckpointStore(message.url)
                self._shard.see_best(message.best_step, message.step)
                self._shard.save(
                    store, message.step, message.attempt, best=message.best, then=self._posted.put
                )
            case _:
                pass

    def _forget_slots(self, worker: str) -> None:
        if self._config.memory_fd >= 0 and self._shard is not None:  # the supervisor frees the memory
            with contextlib.suppress(ValueError):
                self._shard.forget_slots(worker_slot(worker))
        elif self._sums is not None:
            self._sums.forget(worker)

    # ---- steps ---------------------------------------------------------------------------------------------

    def _joined(self, peer: str, message: m.Join) -> None:
        own = message.memory == self._address.memory
        if own:
            self._own_workers.add(peer)
        if own and self._shard is not None:
            with contextlib.suppress(ValueError):  # the peer is no worker
                self._shard.expect(worker_slot(peer))

    def _is_current(self, shard: ModelShard, order: m.ApplyPart) -> bool:
        """Whether no later list of pieces was applied than that of an order."""
        kept = shard.record
        outdated = order.step == kept.step and (order.view, order.number) < (kept.view, kept.number)
        return order.step in (self._step, self._step + 1) and not outdated

    def _apply(self, order: m.ApplyPart) -> m.PartApplied | None:
        """Apply a step; None if its sums have to be formed first."""
        assert self._shard is not None
        if self._maps is None or not self._maps.admits(order):
            return None
        if self._sums is None or self._shard.applied(order) is not None:
            return self._shard.apply(order)
        if not self._sums.needs_sums(order):
            self._sums.end(order)
            return self._shard.apply(order)
        means = self._sums.prepare(order)
        return None if means is None else self._shard.apply(order, means)

    def _apply_late(self, order: m.ApplyPart) -> None:
        """Apply a step whose sums had to be formed first."""
        if (applied := self._apply(order)) is not None:
            self._tell_applied(applied)

    def _tell_applied(self, applied: m.PartApplied) -> None:
        if self._sequencer is not None:
            self._sequencer.from_aggregator(applied)
        else:
            self._step = applied.step if applied.finite else self._step
            self._upstream.send(applied)
        self._answer_pulls()

    def _tell_formed(self, formed: m.SumsFormed) -> None:
        if self._sequencer is not None:
            self._sequencer.from_aggregator(formed)
        elif self._upstream.connected:
            self._upstream.send(formed)

    def _expect_here(self, message: m.ExpectPieces) -> None:
        assert self._sums is not None
        assert self._maps is not None
        if self._maps.admits(message):
            self._sums.expect(message)

    def _taken(self) -> None:
        """Go on with what the shard holds now."""
        assert self._shard is not None
        self._step = max(self._step, self._shard.record.step)
        if self._sums is not None:
            self._sums.hold()

    def _end(self) -> None:
        self._running = False

    def _to_aggregator(self, index: int, order: m.Message) -> None:
        """Send an order of the sequencer; of migrations, it may be for this aggregator."""
        if index:
            self._data.send(aggregator_name(index), order)
        else:
            self._from_sequencer(order)

    def _answer_sequencer(self, answer: m.Message) -> None:
        if self._sequencer is not None:
            self._posted.put(answer)  # the sequencer may be in the middle of its orders
        elif self._upstream.connected:
            self._upstream.send(answer)

    @property
    def _overwrites(self) -> int | None:
        return None if self._sums is None else self._sums.overwrites

    def _post_arrived(self, message: m.Message) -> None:
        if self._sequencer is not None:
            self._sequencer.from_aggregator(message)
        else:
            self._upstream.send(message)

    # ---- start-up ------------------------------------------------------------------------------------------

    def _initialise(self, message: m.Initialise) -> None:
        if message.aggregators[self.index : self.index + 1] != (self._address,):
            return  # addressed to an earlier process of this name
        if self._shard is not None:
            if self._start_up.ready is not None:
                self._control.send(self._start_up.ready)  # the first one may have been lost
            return
        try:
            started = self._start_up.begin(message)
        except NotSupportedError as error:
            self._control.send(m.Failed("unsupported", str(error)))
        except ScavengerError as error:
            self._control.send(m.Failed("restore", str(error)))
        else:
            self._serve(started)

    def _serve(self, started: InitialShard | None) -> None:
        """Start to serve, with the shard in its initial or restored state; do nothing while there is none."""
        if started is None:
            return
        message, shard, record = started.order, started.shard, started.record
        self._shard, self._step = shard, record.step
        self._remote_workers.open(shard.payload)
        self._peers.connect(message.aggregators)
        self._maps = MapChanges(
            shard,
            shard.layout.map_number,
            beside=neighbours(message.aggregators, self.index),
            peers=self._peers,
            answer=self._answer_sequencer,
            taken=self._taken,
            lost=self._end,
            wake=self._posted.wake,
        )
        self._peers.stored = self._maps.copies.store
        if self._data.authenticator is not None:  # some worker may be on another host
            self._sums = ArrivingSums(
                shard,
                self._own_workers,
                ask=self._data.send,
                formed=self._tell_formed,
                ready=self._apply_late,
            )
        if self.index == 0:
            self._sequence(started)
        else:
            self._connect_upstream(message.aggregators[0])
        position = record.position
        log.info("holds its model shard as of step %d", record.step)
        self._start_up.ready = m.Initialised(self.index, record.step, position.epoch, position.consumed)
        self._control.send(self._start_up.ready)
        self._answer_pulls()

    def _sequence(self, started: InitialShard) -> None:
        message, shard, record = started.order, started.shard, started.record
        manifest, current = message.manifest, started.maps.current
        if message.checkpoint is not None and not message.recover:
            with contextlib.suppress(
                ScavengerError, OSError
            ):  # remove a checkpoint that an earlier attempt left unfinished
                CheckpointStore(message.checkpoint.url).discard_unfinished()
        barrier = Barrier(
            manifest.dataset_size,
            manifest.validation_size,
            aggregators=len(message.aggregators),
            step=record.step,
            position=record.position,
            number=max(record.number, message.number),
            suspects=Suspects(samples_max=max(1, manifest.dataset_size // _QUARANTINED_SHARE)),
            asks_first=bool(manifest.callbacks),
            asks_each=manifest.batch_hooks,
            sums=self._sums is not None,
            in_place=message.in_place,
            migration=new_migration(shard.layout, started.maps),
        )
        barrier.token = message.token
        self._sequencer = Sequencer(
            shard,
            barrier,
            to_worker=self._data.send,
            to_aggregator=self._to_aggregator,
            report=self._control.send,
            post=self._posted.put,
            checkpoint=message.checkpoint,
            best_step=record.best_step,
            seed=self._config.seed,
            quarantined=tuple(sorted({*message.quarantined, *started.quarantined})),
            rate_scale=record.rate_scale,
            expect=self._expect_here,
            apply=self._apply,
            loaded=self._loaded,
        )
        if started.quarantined:
            self._control.send(
                m.SamplesQuarantined(started.quarantined, "workers crashed on them in an earlier attempt")
            )
        if message.recover and current.number:
            # the process before may have died between recording it and reporting it
            self._control.send(m.MapChanged(current))
        if message.recover and (report := shard.block.read_report(record.step)) is not None:
            step_report = m.decode(report)
            if isinstance(step_report, m.StepReport) and step_report.step == record.step:
                self._control.send(step_report)  # the first one may have been lost

    def _connect_upstream(self, first: Endpoint) -> None:
        self._upstream.connect(first)
        self._tell_upstream()

    def _tell_upstream(self) -> None:
        self._upstream.send(m.Initialised(self.index, self._step, 0, 0))

    @property
    def _applied(self) -> int:
        return self._sequencer.step if self._sequencer is not None else self._step

    def _answer_pulls(self) -> None:
        self._remote_workers.answer(self._applied, self._overwrites)
