"""Initialises or restarts a job: carries out the actions that `scavenger.elastic.initialization` decides."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from scavenger.elastic import initialization as i
from scavenger.elastic.membership import Membership
from scavenger.elastic.migration import BucketMap, spared
from scavenger.elastic.steps import Announce
from scavenger.train.failpoints import fail_here
from scavenger.train.names import SUPERVISOR
from scavenger.train.transport import messages as m
from scavenger.train.transport.sockets import EVERYBODY


class JobInitializer:
    """The initialization of one job by one coordinator.

    Args:
        membership: Numbers the views.
        token: The coordinator's token; above 1, it takes over a job that another coordinator led.
        send: Sends a message to a process by its name.
        announce: Announces a view; does nothing for None.

    Attributes:
        informed: Whether the coordinator knows the job's current view and members; before, nothing is sent.
    """

    def __init__(
        self,
        membership: Membership,
        *,
        token: int,
        send: Callable[[str, m.Message], None],
        announce: Callable[[Announce | None], None],
    ) -> None:
        self._membership, self._token, self._send, self._announce = membership, token, send, announce
        self.informed = True
        self._machine = i.Initialization()
        self._brief: m.Brief | None = None
        self._manifest: m.Manifest | None = None

    @property
    def complete(self) -> bool:
        """Whether the addresses of all aggregators are known, so that workers can connect to them."""
        return self._machine.complete

    def take_over(self, brief: m.Brief) -> None:
        """Begin to lead the job."""
        self._brief = brief
        self.informed = self._token == 1
        self._handle(
            i.TakeOver(
                parts=brief.aggregators,
                restoring=brief.restore is not None,
                held=brief.held,
                rewinding=brief.rewinding,
                workers=() if self.informed else brief.workers,
                informed=self.informed,
                spare=brief.spare,
            )
        )

    def proceed(self) -> None:
        """Send the messages that had to wait until the coordinator knew the job's view and members."""
        if self.informed:
            self._handle(i.Informed())

    def rewind(self, restore: m.RestorePoint | None) -> None:
        """Note that all aggregators have been ended; their successors begin with `restore`, or initial weights."""
        assert self._brief is not None
        self._brief = msgspec.structs.replace(self._brief, restore=restore)
        self._handle(i.Rewound(restoring=restore is not None))

    def quarantined(self, samples: tuple[int, ...]) -> None:
        """Leave out more samples from now on, also after an aggregator has been restarted."""
        if self._brief is not None:
            known = tuple(sorted({*self._brief.quarantined, *samples}))
            self._brief = msgspec.structs.replace(self._brief, quarantined=known)

    def map_changed(self, body: BucketMap, *, settled: bool = False) -> None:
        """Note the newest map of buckets, under which aggregators begin again that have lost their memory.

        Args:
            settled: Whether the first step under it was applied.
        """
        brief = self._brief
        if brief is None or (brief.map is not None and body.number < brief.map.number):
            return
        spare = spared(brief.spare, body, len(brief.aggregators), settled=settled)
        self._brief = msgspec.structs.replace(brief, map=body, spare=tuple(sorted(spare)))
        self._handle(i.Spared(spare))

    def aggregator_ready(self, message: m.AggregatorReady) -> None:
        """Handle the address of an aggregator that is ready for connections."""
        ready = i.PartReady(
            message.index, message.at, holds=message.initialised, own_memory=message.own_memory
        )
        self._handle(ready)

    def initialised(self, index: int) -> None:
        """Note that an aggregator holds its model shard."""
        self._handle(i.PartLoaded(index))

    def hello(self, worker: str, manifest: m.Manifest) -> None:
        """Handle the greeting of a worker that has built the model and waits for `Prepare`."""
        self._check(worker, manifest)
        fail_here("coordinator.greeted")
        self._handle(i.Greeted(worker))

    def present(self, worker: str, message: m.Present) -> None:
        """Handle a worker's answer to the roll call."""
        self._check(worker, message.manifest)
        prepared = message.prepared or message.ready
        self._handle(i.WorkerPresent(worker, prepared, seeded=message.seeded, memory=message.memory))

    def seeded_by(self, worker: str, memory: str) -> None:
        """Note that a worker has written its initial weights to its memory."""
        self._handle(i.WeightsSeeded(worker, memory))

    def lost(self, worker: str) -> None:
        """Note that a worker is lost, or is released."""
        self._handle(i.WorkerLeft(worker))

    # ---- carrying out --------------------------------------------------------------------------------------

    def _handle(self, event: i.Event) -> None:
        for action in self._machine.handle(event):
            match action:
                case i.PrepareWorker():
                    assert self._manifest is not None
                    at = action.endpoints
                    self._send(action.worker, m.Prepare(self._manifest, at, action.initial))
                case i.ReconnectAll():
                    self._send(EVERYBODY, m.Reconnect(action.endpoints))
                case i.InitializePart():
                    self._initialise(action)
                case i.RenewView():
                    self._announce(self._membership.renew())
                case i.RestartAggregators():
                    self._send(SUPERVISOR, m.ShardLost(action.cause))

    def _initialise(self, action: i.InitializePart) -> None:
        assert self._brief is not None
        assert self._manifest is not None
        self._send(
            self._brief.aggregators[action.index],
            m.Initialise(
                manifest=self._manifest,
                aggregators=action.endpoints,
                restore=None if action.spare else self._brief.restore,
                checkpoint=self._brief.checkpoint,
                recover=action.recover,
                seeder=action.seeder,
                number=self._membership.number,
                token=self._token,
                quarantined=self._brief.quarantined,
                map=self._brief.map,
                in_place=action.in_place,
            ),
        )

    def _check(self, worker: str, manifest: m.Manifest) -> None:
        if self._manifest is None:
            self._manifest = manifest
        elif msgspec.structs.replace(manifest, data=self._manifest.data) != self._manifest:
            self._send(
                SUPERVISOR,
                m.Failed(
                    "mismatch",
                    f"{worker} built another model or data set than the workers before it: the training module "
                    "must give every worker the same (check for randomness in shapes or data)",
                ),
            )
