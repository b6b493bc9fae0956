"""The VMs of one record: of a job, of a study between its trials, of a pool, or of a leader.

Whoever wants VMs says which slots; this brings them there. A reconciler runs on a thread of its own, for all VMs of the
region as long as this process holds its lease; agents of the record's own VMs are admitted, heard and renewed.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from scavenger.cloud.base import Provider
from scavenger.control.provisioning.bill import counted_usd
from scavenger.control.provisioning.booting import booting
from scavenger.control.provisioning.clean_up import LIMIT_S
from scavenger.control.provisioning.fleet_agents import VmAgents
from scavenger.control.provisioning.lease_holder import holder_name, is_known_dead
from scavenger.control.provisioning.reconciler import Reconciler
from scavenger.domain.intent import FleetSpec, Intent
from scavenger.domain.vm import VmRequest
from scavenger.errors import ScavengerError, StoreBusyError
from scavenger.policy.provisioning.actions import Alarm
from scavenger.policy.provisioning.config import ProvisioningConfig
from scavenger.store import Store

LOOK_S = 1.0
_HEARTBEAT_S, _COST_S = 5.0, 30.0
UNSEEN = "its VMs were not seen to end; run `scavenger gc`"
"""What may be left of a record whose end was interrupted."""

log = logging.getLogger(__name__)


class VmGroup:
    """The VMs of one record. Nothing is read or launched before `start`.

    Args:
        store, provider: Where they are on record, and their cloud in the region.
        agents: Those on its VMs; None of VMs that are renewed from elsewhere.
        show, alarm: Show a warning, and an alarm, to the user; called on the reconciler's thread.
        failing: What cannot be done while an iteration fails, for a warning.
        booted: See `Reconciler`; None: VMs boot by what is on record.

    Attributes:
        intents: All VMs that were ever requested for the record, as read last.
    """

    def __init__(
        self,
        store: Store,
        provider: Provider,
        job_id: str,
        *,
        agents: VmAgents | None,
        show: Callable[[str], None] = lambda message: log.warning("%s", message),
        alarm: Callable[[Alarm], None] | None = None,
        failing: str = "managing the VMs",
        config: ProvisioningConfig,
        booted: Callable[[VmRequest], VmRequest] | None = None,
    ) -> None:
        self.store, self.provider, self.job_id, self.config = store, provider, job_id, config
        self._agents, self._show, self._failing = agents, show, failing
        self.intents: tuple[Intent, ...] = ()
        self._done_at: dict[str, float] = {}
        self._reconciler = Reconciler(
            store,
            provider,
            owner=store.installation(),
            holder=holder_name(),
            renew=self._renew,
            alarm=(lambda alarm: show(alarm.message)) if alarm is None else alarm,
            config=config,
            booted=booted or booting(store, provider.name, provider.region),
            is_dead=is_known_dead,
        )
        self._stopping, self._waking = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="scavenger-vms", daemon=True)

    # ---- the reconciler, on its thread ---------------------------------------------------------------------

    def start(self) -> None:
        """Start the reconciler. Idempotent."""
        if not self._thread.ident:
            self._thread.start()

    def wake(self) -> None:
        """Have the reconciler look at once."""
        self._waking.set()

    def stop(self, within_s: float | None = None) -> None:
        """Stop the reconciler, waiting at most `within_s` seconds for an iteration in progress."""
        self._stopping.set()
        self._waking.set()
        if self._thread.ident:
            self._thread.join(self.config.look.actions_s if within_s is None else within_s)

    @property
    def acts(self) -> bool:
        """Whether this process holds the region's lease."""
        return self._reconciler.acts

    @property
    def denied(self) -> str:
        """See `Reconciler.denied`."""
        return self._reconciler.denied

    def _run(self) -> None:
        self._reconciler.run(self._stopping, self._failed, wake=self._waking)

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, StoreBusyError):
            self._show(f"{self._failing} failed and is retried: {error}")

    def _renew(self, intent: Intent, life_s: float) -> bool:
        """Renew a VM's lease; VMs of other records are renewed by those."""
        if intent.job_id != self.job_id:
            return self._agents is not None
        return self._agents is not None and self._agents.renewed(intent, life_s)

    # ---- about once a second -------------------------------------------------------------------------------

    def want(self, spec: FleetSpec) -> None:
        """Store which VMs are wanted.

        Raises:
            ScavengerError: The store cannot be used.
        """
        self.store.want_vms(spec)
        self.wake()

    def read(self) -> tuple[Intent, ...]:
        """Read the record's VMs."""
        self.intents = self.store.intents(self.job_id)
        return self.intents

    def attend(self, now: float) -> None:
        """Admit and hear the agents; renew their VMs where another process holds the lease, which cannot reach them."""
        if self._agents is None:
            return
        self._agents.verify(self.intents)
        self._agents.acknowledge(now)
        if not self.acts:
            self._agents.renew(self.intents, self.config.vm.life_s, now)

    def keep_record(self, now: float) -> bool:
        """Keep a record alive that is no job's, with what its VMs have cost; returns whether it was due."""
        if due := self._is_due("heartbeat", _HEARTBEAT_S, now):
            self.store.heartbeat(self.job_id)
        if self._is_due("cost", _COST_S, now):
            self.store.update_job(self.job_id, cost_usd=self.spent_usd)
        return due

    @property
    def spent_usd(self) -> float:
        """What the VMs have cost, as read last."""
        return counted_usd(self.intents)

    def _is_due(self, what: str, every_s: float, now: float) -> bool:
        if now - self._done_at.get(what, -math.inf) < every_s:
            return False
        self._done_at[what] = now
        return True

    # ---- the end -------------------------------------------------------------------------------------------

    def end_record(
        self,
        spec: FleetSpec,
        *,
        before: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """End all VMs of a record that is no job's, remove what they have shared, and end the record.

        Args:
            spec, before, clock, sleep: See `await_end`.
        """
        left = UNSEEN
        try:
            left = self.await_end(spec, before=before, then=self.remove_shared, clock=clock, sleep=sleep)
        finally:
            self.stop()
            if left:
                log.error("VMs may be left: %s", left)
            with contextlib.suppress(ScavengerError):  # then the next command ends it
                self.store.finish_job(
                    self.job_id,
                    state="failed" if left else "stopped",
                    report=None,
                    error=left and f"{left}; run `scavenger gc`",
                    exit_code=None,
                    cost_usd=self.spent_usd,
                )

    def await_end(
        self,
        spec: FleetSpec,
        *,
        within_s: float | None = None,
        before: Iterable[str] = (),
        between: Callable[[], None] = lambda: None,
        then: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> str:
        """Have all VMs ended, and wait until they are gone, also while the store or the cloud cannot be used.

        Args:
            spec: What was wanted of them until now.
            within_s: Longest wait; None: as long as an unanswered launch may take to be listed.
            before: Ids of earlier records whose VMs are to be gone, too.
            between: Called after each look at what is left.
            then: Is done once they are gone; repeated where that fails.
            clock, sleep: Monotonic seconds, and how to wait.

        Returns:
            What may be left; empty for nothing.
        """
        until = clock() + (max(LIMIT_S, 1.5 * self.config.settle_s) if within_s is None else within_s)
        asked, error = False, "they did not end in time"
        while True:
            try:
                if not asked:
                    self.want(nothing_of(spec))
                    asked = True
                self.store.heartbeat(self.job_id)  # somebody has them until they have ended
                self.read()
                if all(map(self.store.is_clean, (self.job_id, *before))):
                    then()
                    return ""
                self.start()
            except ScavengerError as failed:
                error = str(failed)
            between()
            if clock() > until:
                return f"{self.living}: {error}"
            self.wake()
            sleep(min(LOOK_S, self.config.look.interval_s))

    @property
    def living(self) -> str:
        """The VMs that have not ended, as read last."""
        left = "; ".join(f"{one}: {one.reason}" for one in self.intents if one.state != "GONE")
        return left or f"VMs of {self.job_id[:8]}"

    def remove_shared(self) -> None:
        """Remove what VMs of the region have shared, unless there are some yet.

        Raises:
            StoreError, CloudError: It may be left.
        """
        here = (self.provider.name, self.provider.region)
        if not any((one.provider, one.region) == here for one in self.store.intents(living=True)):
            self.provider.remove_leftovers(self.store.installation())


def new_record(
    store: Store, name: str, spec: Mapping[str, Any], job_file: Path, phase: str, detail: str
) -> str:
    """Put VMs on record that are no job's: so they are found, charged and ended as those of any; returns its id.

    Raises:
        StoreError: The store cannot be used.
    """
    with store.together():
        record = store.create_job(name, spec=spec, job_file=job_file)
        store.update_job(record.id, state="running", phase=phase, detail=detail)
    return record.id


def nothing_of(spec: FleetSpec) -> FleetSpec:
    """The same with no VM wanted, and no secrets on record."""
    return replace(spec, slots=(), boot_key="", template=replace(spec.template, user_data=""))
