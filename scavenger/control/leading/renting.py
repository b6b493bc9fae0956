"""The VM of one leader: rented, awaited and ended as any VM is, with an intent on record before it is requested."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from scavenger.cloud.base import AdmittingProvider
from scavenger.control.provisioning.booting import BootingProvider
from scavenger.control.provisioning.clean_up import CleanUp, Leftover
from scavenger.control.provisioning.fleet import new_boot_key
from scavenger.control.provisioning.vm_group import VmGroup
from scavenger.domain.intent import FleetSpec, Intent, PlacementOption, VmSlot
from scavenger.domain.vm import LaunchTemplate, VmRequest, VmSeen
from scavenger.errors import CloudError, GoneError, ScavengerError, TransientError
from scavenger.policy.provisioning.config import ProvisioningConfig
from scavenger.policy.provisioning.slots import LEADER_SLOT
from scavenger.store import Store
from scavenger.store.records import LIVE_STATES

_LOOK_S = 1.0
_FINAL = ("no_placement", "unaffordable", "loop", "credentials", "refused")
"""What no waiting changes."""


@dataclass(frozen=True, slots=True)
class LeaderVmSpec:
    """What is rented.

    Attributes:
        options: Placement options in the order to try.
        template: Of the launch, without user data.
        script: What cloud-init runs; it has a secret and is not stored.
        wait_max_s: Longest wait until a VM is there and lets the command in, seconds.
    """

    options: tuple[PlacementOption, ...]
    template: LaunchTemplate
    script: str
    wait_max_s: float


class _Booting(BootingProvider):
    """Gives the launch the script, which is not on record."""

    def __init__(self, provider: AdmittingProvider, store: Store, script: str) -> None:
        super().__init__(provider, store)
        self._script = script

    def launch(self, request: VmRequest) -> VmSeen:
        template = replace(request.template, user_data=self._script)
        return self._provider.launch(replace(request, template=template))


class LeaderVm:
    """The VM of one leader.

    Args:
        store: Of this leader alone.
        provider: The cloud, in its region.
        inform: Shows progress and warnings to the user.
        config: Time limits and intervals; None for the defaults.
        clock, sleep: Monotonic seconds, and how to wait.
    """

    def __init__(
        self,
        store: Store,
        provider: AdmittingProvider,
        *,
        inform: Callable[[str], None],
        config: ProvisioningConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store, self._provider, self._inform = store, provider, inform
        self._config = config or ProvisioningConfig(provider.visibility_s)
        self._clock, self._sleep = clock, sleep

    def rent(
        self, job_id: str, spec: LeaderVmSpec, lets_in: Callable[[VmSeen], bool]
    ) -> tuple[Intent, VmSeen]:
        """Rent the VM and wait until it lets the command in; a VM that does not is replaced.

        Args:
            job_id: Of the record in the store.
            spec: What is rented.
            lets_in: Tries to log in to a running VM, within seconds.

        Raises:
            TransientError, CloudError: None can be had, or none lets the command in.
        """
        group = VmGroup(
            self._store,
            self._provider,
            job_id,
            agents=None,  # the leader itself renews its VM
            show=self._inform,
            failing="renting the leader's VM",
            config=self._config,
            launching=_Booting(self._provider, self._store, spec.script),
        )
        group.want(
            FleetSpec(
                job_id=job_id,
                provider=self._provider.name,
                region=self._provider.region,
                slots=(VmSlot(LEADER_SLOT),),
                options=spec.options,
                template=spec.template,
                vms_max=2,
                budget_usd=math.inf,
                boot_key=new_boot_key().hex(),
            )
        )
        group.start()
        try:
            return self._awaited(group, spec, lets_in)
        finally:
            group.stop()

    def _awaited(
        self, group: VmGroup, spec: LeaderVmSpec, lets_in: Callable[[VmSeen], bool]
    ) -> tuple[Intent, VmSeen]:
        until_s, told, reason = self._clock() + spec.wait_max_s, "", "none was there in time"
        here = (self._provider.name, self._provider.region)
        while self._clock() < until_s:
            self._store.heartbeat(group.job_id)
            for kind, message in self._store.shortages(group.job_id, *here).items():
                if kind in _FINAL:
                    raise TransientError(f"the leader's VM cannot be rented: {message}")
                reason = message
            for intent in group.read():
                if intent.state != "UP":
                    continue
                if told != intent.instance_id:
                    told = intent.instance_id
                    self._inform(f"the leader's VM is {told} ({intent.option}); it boots")
                vm = self.seen(intent)
                if vm is not None and vm.state == "running" and lets_in(vm):
                    self._store.acknowledge_vm(intent.id)
                    return intent, vm
            self._sleep(_LOOK_S)
        raise TransientError(f"no leader's VM after {spec.wait_max_s / 60:g} min: {reason}")

    def living(self) -> Intent | None:
        """The record of the VM; None if there is none any more."""
        found = [
            one for one in self._store.intents(living=True) if one.slot == LEADER_SLOT and one.instance_id
        ]
        return found[-1] if found else None

    def seen(self, intent: Intent) -> VmSeen | None:
        """The VM as the cloud shows it; None if it is gone, or the cloud does not answer now."""
        try:
            return self._provider.describe(intent.instance_id, intent.request.zone)
        except GoneError:
            return replace(_GONE, instance_id=intent.instance_id)
        except CloudError as error:
            self._inform(f"the cloud does not show the leader's VM: {error}")
            return None

    def let_in(self, intent: Intent, networks: tuple[str, ...]) -> None:
        """Let SSH in from these networks, and from no others.

        Raises:
            CloudError: The cloud does not allow that, or does not answer.
        """
        settings = replace(intent.request.template.settings, logins_from=networks)
        template = replace(intent.request.template, settings=settings)
        self._provider.let_in(replace(intent.request, template=template))

    def leftovers(
        self, job_id: str, *, used: bool, ending: bool
    ) -> tuple[CleanUp, tuple[Leftover, ...]] | None:
        """What no job uses of the VM and of those that it rented; None while it leads a job, or is about to.

        Args:
            job_id: Of the record in the store.
            used: Whether a job was submitted to it.
            ending: Whether it was to be ended before.

        Raises:
            CloudError: The cloud does not list them.
        """
        clean_up = CleanUp(self._store, self._provider, clock=self._clock, sleep=self._sleep)
        if ending:
            self._finish(job_id)
            return clean_up, self._all("its end had failed")
        listed = self._provider.list_owned(self._store.installation())
        there = any(vm.tags.slot == LEADER_SLOT and vm.state in ("pending", "running") for vm in listed)
        if (there and used) or self._store.running_jobs():
            return None
        return clean_up, clean_up.find()

    def end(self, job_id: str) -> tuple[str, ...]:
        """End the VM, those that it rented and what belongs to them; returns a line for each that may be left.

        Raises:
            CloudError: The cloud does not list them.
        """
        self._finish(job_id)
        clean_up = CleanUp(self._store, self._provider, clock=self._clock, sleep=self._sleep)
        return clean_up.end(self._all("its leader is ended"))

    def _finish(self, job_id: str) -> None:
        """End the record, so that what it wanted is wanted no more; what it rented is ended even if that fails."""
        try:
            if self._store.job(job_id).state in LIVE_STATES:
                self._store.finish_job(job_id, state="stopped", report=None, exit_code=None)
        except ScavengerError as error:
            self._inform(f"the record of the leader's VM cannot be changed: {error}")

    def _all(self, reason: str) -> tuple[Leftover, ...]:
        """The VM and those that it rented: what the cloud lists, and what is on record, which it may not list yet."""
        listed = {vm.instance_id: vm for vm in self._provider.list_owned(self._store.installation())}
        for intent in self._store.intents(living=True):
            if intent.instance_id:
                unlisted = VmSeen(
                    intent.instance_id,
                    intent.option.vm,
                    intent.request.zone,
                    False,
                    "pending",
                    intent.request.tags,
                )
                listed.setdefault(intent.instance_id, unlisted)
        here = (self._provider.name, self._provider.region)
        return tuple(Leftover(*here, vm, reason) for vm in listed.values() if vm.state != "gone")


_GONE = VmSeen("", "", "", False, "gone")
