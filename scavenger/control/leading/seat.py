"""The machine of a job's leader, as its command sees it: a VM, or a pod.

What begins, follows and ends a leader is told once, over this interface. A seat holds nothing that is not on record,
so that any command can take it up where another one was lost.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Any, ClassVar, Literal

from scavenger.client import Client, ServerAddress
from scavenger.control.leading.pod_tunnel import PodTunnel
from scavenger.control.leading.record import LeaderRecord, Leaders
from scavenger.control.leading.ssh import Tunnel
from scavenger.control.leading.start import LeaderStart
from scavenger.control.provisioning.clean_up import Leftover
from scavenger.domain.vm import VmSeen
from scavenger.errors import GoneError, ScavengerError
from scavenger.policy.leaders import what_is_lost
from scavenger.store import Store
from scavenger.store.records import LIVE_STATES
from scavenger.train.engines.vm.job_archive import Archive

Presence = Literal["there", "gone", "unknown"]


def job_archive(start: LeaderStart) -> Archive:
    """The job's folder as a leader is sent it, without outputs.

    Raises:
        ConfigurationError: It is too large, or cannot be read.
    """
    folder = start.prepared.folder
    return Archive(folder, leave_out=(folder / start.prepared.job.output,))


class Seat(ABC):
    """The machine of one leader.

    Args:
        leaders: Records of leaders on this machine.
        inform: Shows progress and warnings to the user.
        environment: Environment variables of the command.
        provider: The cloud or cluster, in the leader's region; None: opened when it is first needed.
        clock, sleep: Monotonic seconds, and how to wait.

    Attributes:
        record: Of the leader, as it was written last.
    """

    kind: ClassVar[str]
    """Of machine, in messages."""
    beginning: ClassVar[str]
    """What is done to have it, in messages."""
    leading_states: ClassVar[tuple[str, ...]]
    """States in which the cloud shows a machine that may still lead its job."""

    def __init__(
        self,
        leaders: Leaders,
        record: LeaderRecord,
        *,
        inform: Callable[[str], None],
        environment: Mapping[str, str] = os.environ,
        provider: Any = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.leaders, self.record, self.inform, self.environment = leaders, record, inform, environment
        self.clock, self.sleep = clock, sleep
        self._provider = provider

    # ---- of each kind --------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def folder(self) -> str:
        """Where the leader has the job's folder, as `job`, and its store."""

    @abstractmethod
    def prepare(self, start: LeaderStart) -> Callable[[str], None]:
        """Check and make what needs no machine yet.

        Returns:
            Rents the machine, sends the job and what the leader is told, and starts it; takes the token of its API.

        Raises:
            ScavengerError: The job cannot be led there; nothing was rented.
        """

    @abstractmethod
    def tunnel(self, *, here: int = 0) -> AbstractContextManager[Tunnel | PodTunnel]:
        """Forward a port of this machine to the leader's API within the block.

        Args:
            here: The port; 0 for any that is free.

        Raises:
            TransientError: The leader cannot be reached.
        """

    @abstractmethod
    def look(self) -> Literal["there", "gone"]:
        """Ask the cloud whether the machine is there.

        Raises:
            ScavengerError: It does not tell.
        """

    @abstractmethod
    def is_leader(self, vm: VmSeen) -> bool:
        """Whether it is the leader's machine, not one that the leader has rented."""

    @abstractmethod
    def listed(self, owner: str) -> tuple[VmSeen, ...]:
        """List the machine and those that its leader rented, running or recently ended.

        Raises:
            CloudError: The cloud does not list them.
        """

    @abstractmethod
    def clear(self, leftovers: Sequence[Leftover], *, limit_s: float | None = None) -> tuple[str, ...]:
        """End machines that `leftovers` has found, and what belongs to them; returns a line for each that may be left.

        Raises:
            CloudError: The cloud does not answer.
        """

    @abstractmethod
    def end(self) -> tuple[str, ...]:
        """End the machine, those that its leader rented and what belongs to them.

        Returns:
            A line for each that may be left.

        Raises:
            CloudError: The cloud does not list them.
        """

    # ---- of all --------------------------------------------------------------------------------------------

    def open_store(self) -> Store:
        """The store of this leader alone."""
        return self.leaders.open_store(self.record)

    def change(self, **fields: Any) -> LeaderRecord:
        """Change the record, and write it."""
        self.record = self.leaders.change(self.record, **fields)
        return self.record

    @contextmanager
    def api(self) -> Iterator[Client]:
        """The leader's API, through a port that is forwarded within the block.

        Raises:
            TransientError: It cannot be reached.
            NotFoundError: It was never set up.
        """
        token = self.leaders.token(self.record)
        with (
            self.tunnel() as tunnel,
            Client(ServerAddress(f"http://127.0.0.1:{tunnel.port}", token)) as client,
        ):
            yield client

    def state(self) -> Presence:
        """Whether the machine is there, as far as the cloud tells."""
        try:
            return self.look()
        except ScavengerError as error:
            self.inform(f"whether the leader's {self.kind} is there is not known: {error}")
            return "unknown"

    def let_in(self) -> None:
        """Let this machine in from its present address.

        Raises:
            GoneError: The leader's machine is gone.
            ScavengerError: The cloud does not answer.
        """
        if self.look() == "gone":
            record = self.record
            lost = f"and with it {what_is_lost(record.checkpoints, record.checkpoint_every_s)}"
            words = f"its folder is kept on the claim {record.claim}" if record.claim else lost
            raise GoneError(
                f"the leader's {self.kind} of job {record.name} is gone, {words}; "
                f"`scavenger resume {record.name}` lets it go on under a new one"
            )

    def fetch(self, job_id: str, file: IO[bytes]) -> None:
        """Write an archive of a job's outputs, as they are there.

        Raises:
            TransientError: They cannot be fetched.
        """
        with self.api() as client:
            client.fetch_outputs(job_id, file)

    def leftovers(self) -> tuple[Leftover, ...] | None:
        """Find what no job uses of the machine and of those that its leader rented.

        Returns:
            None while it leads a job, or is about to.

        Raises:
            CloudError: The cloud does not list them.
        """
        if self.record.ending:
            return self.all_of_it("its end had failed")
        with self.open_store() as store:
            listed, begins = self.listed(store.installation()), bool(store.running_jobs())
        leads = any(self.is_leader(vm) and vm.state in self.leading_states for vm in listed)
        if begins or (leads and self.record.job_id):
            return None
        return self._leftover(listed, "it leads no job" if leads else "its leader is gone")

    def all_of_it(self, reason: str) -> tuple[Leftover, ...]:
        """End the record, so that what it wanted is wanted no more; returns the machine and what its leader rented."""
        with self.open_store() as store:
            try:
                if store.has_job(self.record.id) and store.job(self.record.id).state in LIVE_STATES:
                    store.finish_job(self.record.id, state="stopped", report=None, exit_code=None)
            except ScavengerError as error:  # what it rented is ended all the same
                self.inform(f"the record of the leader's {self.kind} cannot be changed: {error}")
            listed = {vm.instance_id: vm for vm in self.listed(store.installation())}
            for intent in store.intents(living=True):  # the cloud may not list it yet
                if one := intent.instance_id:
                    request = intent.request
                    unlisted = VmSeen(one, intent.option.vm, request.zone, False, "pending", request.tags)
                    listed.setdefault(one, unlisted)
        return self._leftover(listed.values(), reason)

    def _leftover(self, vms: Iterable[VmSeen], reason: str) -> tuple[Leftover, ...]:
        here = (self.record.provider, self.record.region)
        return tuple(Leftover(*here, vm, reason) for vm in vms if vm.state != "gone")
