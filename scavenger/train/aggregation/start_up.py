"""How an aggregator gets the model shard that it serves.

The shard is new, or as the process before has left it in the job's memory block, or from a checkpoint, or has the
weights that a worker sends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from scavenger.elastic.initialization import Endpoint
from scavenger.elastic.migration import BucketMap, Migration
from scavenger.elastic.view import Position
from scavenger.errors import ScavengerError
from scavenger.train.aggregation.map_changes import take_map
from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.checkpoints.checkpoint import Checkpoint, CheckpointStore
from scavenger.train.checkpoints.manifest import OLDEST_VERSION
from scavenger.train.transport import messages as m
from scavenger.train.transport.divisibility import Divisibility, divisibility
from scavenger.train.transport.layout import Layout
from scavenger.train.transport.replication import WeightsInbox
from scavenger.train.transport.shared_memory import BUCKETS_MAX, Block, ProgressRecord

_ASK_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Maps:
    """The newest map of buckets, and the one before if it was decided for a step that is not complete."""

    current: BucketMap
    before: BucketMap | None = None


@dataclass(frozen=True, slots=True)
class InitialShard:
    """A shard in its initial or restored state.

    Attributes:
        order: What the coordinator asked for.
        maps: The maps of buckets.
        record: The state of the job that the shard begins with.
        quarantined: Samples that an earlier attempt has left out.
    """

    order: m.Initialise
    shard: ModelShard
    maps: Maps
    record: ProgressRecord
    quarantined: tuple[int, ...] = ()


@dataclass(slots=True)
class _Seeding:
    """Transfer of the initial weights from a worker."""

    order: m.Initialise
    shard: ModelShard
    inbox: WeightsInbox
    maps: Maps
    asked_at: float = 0.0


class StartUp:
    """The start of one aggregator's shard.

    Args:
        fd: File descriptor of the memory block.
        index: Index of the shard.
        shares_block: Whether the block is the supervisor's, which other processes use too.
        send: Sends a message to a worker.

    Attributes:
        ready: What the coordinator was told of the shard; None before it is there.
    """

    def __init__(
        self, fd: int, index: int, *, shares_block: bool, send: Callable[[str, m.Message], None]
    ) -> None:
        self._fd, self._index, self._shares_block, self._send = fd, index, shares_block, send
        self._seeding: _Seeding | None = None
        self.ready: m.Initialised | None = None

    def begin(self, order: m.Initialise) -> InitialShard | None:
        """Make the shard; None if a worker has to send the weights first.

        Raises:
            NotSupportedError: If the optimizer cannot be built from its configuration.
            ScavengerError: If the checkpoint that it is to begin with cannot be read.
        """
        shard, maps = self._new_shard(order)
        started, self._seeding = self._restored(order, shard, maps), None
        if started is None:
            inbox = WeightsInbox(shard.block, (self._index,), shard.layout)
            inbox.want(0, optimizers=shard.seeded_optimizer)
            self._seeding = _Seeding(order, shard, inbox, maps)
        return started

    def _new_shard(self, order: m.Initialise) -> tuple[ModelShard, Maps]:
        """Make the shard, under the newest map of buckets that is known."""
        index = self._index
        layout = Layout.of(order.manifest, len(order.aggregators))
        block = Block(self._fd, layout)
        current, job = BucketMap(0, 0, layout.holders), block.read_job()
        in_place = order.in_place and not self._shares_block
        if order.map is not None:
            current = order.map
        before = current
        if order.recover and (recorded := block.read_maps()) is not None:
            current, before = recorded
        if before == current or (job is not None and current.since <= job.step):
            layout = layout.moved(current.holders, current.number)
            return ModelShard(self._fd, layout, index, in_place=in_place), Maps(current)
        # it was decided for the step in progress
        layout = layout.moved(before.holders, before.number)
        shard = ModelShard(self._fd, layout, index, in_place=in_place)
        held = shard.prepare(layout.moved(current.holders, current.number))
        take_map(shard, current, held, beside=neighbours(order.aggregators, index))
        return shard, Maps(current, before)

    def _restored(self, order: m.Initialise, shard: ModelShard, maps: Maps) -> InitialShard | None:
        """Initialise or restore the shard; None if a worker has to send the weights."""
        index = self._index
        kept, job = shard.block.read_part(index), shard.block.read_job()
        if order.recover and kept is not None and (index or job is not None):
            record = job if job is not None and not index else ProgressRecord(step=kept.step)
            return InitialShard(order, shard, maps, record)
        shard.block.forget(index)
        quarantined: tuple[int, ...] = ()
        if order.restore is None:
            if order.seeder:
                return None
            shard.begin()
            record = ProgressRecord()
        else:
            checkpoint = checkpoint_of(order.restore, order.manifest)
            manifest = checkpoint.manifest
            with checkpoint.arrays() as saved:
                shard.load(manifest.step, saved)
            quarantined = tuple(int(sample) for sample in manifest.state.get("quarantined", ()))
            # without the view number: the coordinator of this attempt counts its own
            record = ProgressRecord(
                manifest.step,
                Position(manifest.epoch, manifest.consumed),
                best_step=int(manifest.state.get("best_step", 0)),
                rate_scale=float(manifest.state.get("rate_scale", 1.0)),
            )
        if index == 0:
            shard.block.write_job(record)
        return InitialShard(order, shard, maps, record, quarantined)

    # ---- initial weights of a worker on another host -------------------------------------------------------

    def joined(self, peer: str) -> None:
        """Note that a process has connected: the one whose weights are awaited is asked again at once."""
        if self._seeding is not None and peer == self._seeding.order.seeder:
            self._seeding.asked_at = 0.0

    def tick(self) -> InitialShard | None:
        """Request the initial weights until all have arrived; returns the shard once it is whole."""
        seeding = self._seeding
        if seeding is None:
            return None
        if not seeding.inbox.lacking:
            return self._seeded(seeding)
        if time.monotonic() - seeding.asked_at > _ASK_AGAIN_S:
            seeding.asked_at = time.monotonic()
            holders = seeding.shard.layout.holders
            self._send(seeding.order.seeder, m.Seed(seeding.inbox.number, holders))
        return None

    def take(self, peer: str, chunk: m.Chunk, payload: bytes) -> InitialShard | None:
        """Take a part of the initial weights; returns the shard once it is whole."""
        seeding = self._seeding
        if seeding is None or peer != seeding.order.seeder:
            return None
        seeding.asked_at = time.monotonic()
        seeding.inbox.take(self._index, chunk, payload)
        return None if seeding.inbox.lacking else self._seeded(seeding)

    def check(self, peer: str, check: m.ChunkQuery) -> None:
        """Report missing chunks of the initial weights."""
        if self._seeding is not None and peer == self._seeding.order.seeder:
            lacking = self._seeding.inbox.check(self._index, check)
            if lacking is not None:
                self._send(peer, lacking)

    def _seeded(self, seeding: _Seeding) -> InitialShard:
        self._seeding = None
        seeding.shard.begin()
        if self._index == 0:
            seeding.shard.block.write_job(ProgressRecord())
        return InitialShard(seeding.order, seeding.shard, seeding.maps, ProgressRecord())


def checkpoint_of(restore: m.RestorePoint, model: m.Manifest) -> Checkpoint:
    """Return the checkpoint that was chosen, or the newest from which a job can resume.

    All aggregators have to find the same one. So what is verified here is the same for all: the manifest of the chosen
    one, or all parts of the newest, and not only those parts that this one will read.

    Raises:
        ScavengerError: If there is none, or it belongs to another model or has an older format.
    """
    url, store = restore.url, CheckpointStore(restore.url)
    # the chosen one may have been superseded while the job ran
    checkpoint = (store.open(restore.folder) if restore.folder else None) or store.latest(finite=True)
    if checkpoint is None:
        raise ScavengerError(f"{url} holds no checkpoint that can be read")
    manifest = checkpoint.manifest
    if manifest.fingerprint != model.digest:
        raise ScavengerError(
            f"the checkpoint in {url} belongs to another model or data set than the training code defines now"
        )
    if manifest.version < OLDEST_VERSION:
        raise ScavengerError(
            f"the checkpoint in {url} was written by an older Scavenger (format {manifest.version}), which did not "
            "always record which tensor a part of the optimizer's state belongs to; resume the job with that "
            "version, or start a new job"
        )
    return checkpoint


def neighbours(aggregators: tuple[Endpoint, ...], index: int) -> frozenset[int]:
    """Return the indices of the other aggregators that use the block of one."""
    own = aggregators[index].memory
    return frozenset(other for other, at in enumerate(aggregators) if at.memory == own and other != index)


def new_migration(layout: Layout, maps: Maps) -> Migration:
    """Return the migrations of a job."""
    refusal = ""
    if divisibility(layout.manifest.optimizer) is Divisibility.MODEL:
        refusal = "the optimizer needs all gradients at once: the whole model stays with the first aggregator"
    elif len(layout.buckets) > BUCKETS_MAX:
        refusal = f"maps of {len(layout.buckets)} buckets cannot be recorded"
    return Migration(
        maps.current,
        aggregators=layout.aggregators,
        sizes=[end - begin for begin, end in layout.buckets],
        before=maps.before,
        refusal=refusal,
    )
