"""How a job begins, or begins anew: whose initial weights it has, and who takes up which part of the model.

The first worker that greets is prepared alone, and puts its initial weights in place, unless there is a checkpoint.
The aggregators take up their parts then, and all other workers get ready. The same happens where parts are lost
together with their memory; an aggregator that was restarted beside its memory goes on from that.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from scavenger.elastic.barrier import Announce
from scavenger.elastic.membership import Membership, WorkerState
from scavenger.train.failpoints import fail_here
from scavenger.train.names import SUPERVISOR, aggregator_name
from scavenger.train.transport import messages as m
from scavenger.train.transport.sockets import EVERYBODY

__all__ = ["Initialization"]


class Initialization:
    """One job's.

    Args:
        membership: Who could bring the initial weights.
        token: The coordinator's; one that takes over has everybody connect anew where an aggregator is new.
        send: Sends to a process by its name.
        announce: Announces a view, if there is one to announce.

    Attributes:
        informed: It is known where the job stands; before, nobody is told anything.
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
        self._brief: m.Brief | None = None
        self._manifest: m.Manifest | None = None
        self._aggregators: dict[int, m.AggregatorAddress] = {}
        self._asked: dict[int, m.AggregatorAddress] = {}
        self._holding: set[int] = set()
        self._begun: set[int] = set()
        self._rewinding: set[int] = set()
        self._reconnect = token > 1
        self._seeder, self._seeder_memory = "", ""
        self._greeted: list[str] = []
        self._seeding: str | None = None
        self._seeded = False

    # ---- what happens --------------------------------------------------------------------------------------

    def take_over(self, brief: m.Brief) -> None:
        """The coordinator leads the job from now on."""
        self._brief = brief
        self._rewinding = set(brief.rewinding)
        if brief.begun:
            self._begun = set(range(len(brief.aggregators))) - self._rewinding
        self._seeded = brief.restore is not None or (brief.begun and not self._rewinding)

    def rewind(self, restore: m.Restore | None) -> None:
        """All aggregators have been ended; those that follow begin with this, or with initial weights."""
        assert self._brief is not None
        self._brief = msgspec.structs.replace(self._brief, restore=restore)
        self.worker_ready()

    def quarantined(self, samples: tuple[int, ...]) -> None:
        """Samples are left out from now on, also by an aggregator that is restarted."""
        if self._brief is not None:
            known = tuple(sorted({*self._brief.quarantined, *samples}))
            self._brief = msgspec.structs.replace(self._brief, quarantined=known)

    def aggregator_ready(self, message: m.AggregatorReady) -> bool:
        """An aggregator can be connected to; returns False where all have to begin anew for it."""
        before = self._aggregators.get(message.index)
        self._aggregators[message.index] = message.at
        if message.initialised:
            self._holding.add(message.index)
            self._begun.add(message.index)
        else:
            self._holding.discard(message.index)
            self._reconnect = self._reconnect or before not in (None, message.at)
            if message.own_memory and message.index in self._begun:
                self._roll_back(f"{aggregator_name(message.index)} was lost together with its memory")
                return False
        return True

    def initialised(self, index: int) -> None:
        """An aggregator, by its place, holds its part."""
        self._holding.add(index)
        self._begun.add(index)
        self._rewinding.discard(index)

    def hello(self, worker: str, manifest: m.Manifest) -> None:
        """A worker has built the model, and waits for what comes next."""
        self._check(worker, manifest)
        fail_here("coordinator.greeted")
        self._greeted.append(worker)
        self._prepare_greeted()

    def present(self, worker: str, message: m.Present) -> None:
        """A worker has said how far it is."""
        if message.seeded and not self._rewinding:
            self._seed(worker, message.memory)
        if not message.ready and not message.prepared:
            self.hello(worker, message.manifest)
            return
        self._check(worker, message.manifest)
        if not message.ready and not self._seeded:
            self._seeding = worker

    def seeded_by(self, worker: str, memory: str) -> None:
        """A worker has put its initial weights where, in its memory, the job's weights begin."""
        self._seed(worker, memory)
        self.proceed()

    def worker_ready(self) -> None:
        """There may be a worker now that can bring the initial weights."""
        self._choose_seeder()
        self._initialise()

    def proceed(self) -> None:
        """Tell aggregators and workers what can be told by now."""
        self._initialise()
        self._prepare_greeted()

    def lost(self, worker: str) -> None:
        """A worker is gone."""
        if worker in self._greeted:
            self._greeted.remove(worker)
        if worker == self._seeding and not self._seeded:
            self._seeding = None
            self._prepare_greeted()
        if worker == self._seeder and self._seeded:
            self._lost_seeder()

    # ---- what follows --------------------------------------------------------------------------------------

    def _roll_back(self, cause: str) -> None:
        """A part of the model is lost: have all aggregators begin anew, where the last checkpoint stands."""
        assert self._brief is not None
        for known in (self._aggregators, self._asked, self._holding, self._begun):
            known.clear()
        self._rewinding = set(range(len(self._brief.aggregators)))
        self._reconnect, self._seeded, self._seeding = True, False, None
        self._send(SUPERVISOR, m.RollBack(cause))

    def _seed(self, worker: str, memory: str) -> None:
        self._seeder, self._seeder_memory = worker, memory
        self._seeded = True

    def _choose_seeder(self) -> None:
        """Where all begins anew and there is no checkpoint, it does with the initial weights of a worker."""
        if self._seeded or not self._rewinding or self._brief is None:
            return
        if self._brief.restore is not None:
            self._seeded = True
        elif able := self._membership.workers(WorkerState.TRAINING, WorkerState.STANDBY):
            self._seed(able[0], "")

    def _needs_seeder(self, index: int) -> bool:
        """The aggregator cannot read the initial weights from its memory."""
        assert self._brief is not None
        own = self._aggregators[index].memory != self._seeder_memory
        return self._brief.restore is None and (own or index in self._rewinding)

    @property
    def _addresses(self) -> tuple[m.AggregatorAddress, ...]:
        return tuple(self._aggregators[index] for index in sorted(self._aggregators))

    @property
    def complete(self) -> bool:
        """All aggregators can be connected to."""
        return self._brief is not None and len(self._aggregators) == len(self._brief.aggregators)

    def _check(self, worker: str, manifest: m.Manifest) -> None:
        if self._manifest is None:
            self._manifest = manifest
            self._initialise()
        elif manifest != self._manifest:
            self._send(
                SUPERVISOR,
                m.Failed(
                    "mismatch",
                    f"{worker} built another model or data set than the workers before it: the training module "
                    "must give every worker the same (check for randomness in shapes or data)",
                ),
            )

    def _prepare_greeted(self) -> None:
        """Let workers map the block and warm up: first one alone, whose initial weights become the job's."""
        if not self.complete or self._manifest is None or not self.informed:
            return
        if not self._seeded and self._seeding is not None:
            return
        while self._greeted:
            worker = self._greeted.pop(0)
            initial = not self._seeded
            self._send(worker, m.Prepare(self._manifest, self._addresses, initial))
            if initial:
                self._seeding = worker
                return

    def _initialise(self) -> None:
        """Have aggregators take up their parts: new ones, and those that have been restarted."""
        if not self._seeded or not self.complete or not self.informed or self._manifest is None:
            return
        addresses = self._aggregators
        due = [i for i in addresses if i not in self._holding and self._asked.get(i) != addresses[i]]
        if not due:
            return
        if self._reconnect:
            self._reconnect = False
            self._send(EVERYBODY, m.Reconnect(self._addresses))
        for index in due:
            self._asked[index] = addresses[index]
            self._send_initialise(index)
        if 0 in due:
            # it knows nothing of views: the newest one begins anew, under a new number
            self._announce(self._membership.renew())

    def _send_initialise(self, index: int) -> None:
        assert self._brief is not None
        assert self._manifest is not None
        self._send(
            self._brief.aggregators[index],
            m.Initialise(
                manifest=self._manifest,
                aggregators=self._addresses,
                restore=self._brief.restore,
                checkpoint=self._brief.checkpoint,
                recover=index not in self._rewinding,
                seeder=self._seeder if self._needs_seeder(index) else "",
                number=self._membership.number,
                token=self._token,
                quarantined=self._brief.quarantined,
            ),
        )

    def _lost_seeder(self) -> None:
        """Who has the initial weights is gone: if somebody still needs them, begin with another's."""
        waiting = [i for i in self._aggregators if i not in self._holding and self._needs_seeder(i)]
        self._seeder = ""
        if not waiting or (self._begun and not self._rewinding):
            return
        if self._asked:
            self._roll_back("the worker with the initial weights was lost")
        else:
            self._seeded, self._seeding = False, None
            self._choose_seeder()
            self._prepare_greeted()
