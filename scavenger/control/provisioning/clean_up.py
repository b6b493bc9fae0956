"""Garbage collection of VMs that belong to no running job (`scavenger gc`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from scavenger.cloud.base import Provider
from scavenger.domain.intent import Intent
from scavenger.domain.providers import capabilities_of
from scavenger.domain.vm import VmSeen
from scavenger.errors import CloudError, GoneError
from scavenger.presentation.formatting import when
from scavenger.store import Store

POLL_S = 3.0
LIMIT_S = 300.0
"""Time limit for ending VMs, seconds; an orderly shutdown takes a minute or two."""

SETTLED = timedelta(minutes=10)
"""Age after which an unanswered launch either shows a VM or never will; longer than any provider's bound."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A VM that is paid for but not used, with the reason.

    Attributes:
        quarantined: Whether the store, restored from a backup, does not know it: it may train a job that was begun
            after the backup, and is ended only when a user says so.
    """

    provider: str
    region: str
    vm: VmSeen
    reason: str
    quarantined: bool = False

    @property
    def key(self) -> str:
        """Names the VM among those of all clouds."""
        return f"{self.provider}/{self.region}/{self.vm.instance_id}"

    def __str__(self) -> str:
        return f"{self.provider} VM {self.vm.instance_id} ({self.vm.vm} in {self.vm.zone}): {self.reason}"


class CleanUp:
    """Garbage collection in one region of one cloud.

    Args:
        store: Holds the intents, which show the wanted VMs.
        provider: The cloud, in that region.
        clock, sleep: Monotonic clock in seconds, and the function that waits.
    """

    def __init__(
        self,
        store: Store,
        provider: Provider,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store, self._provider, self._owner = store, provider, store.installation()
        self._clock, self._sleep = clock, sleep

    def find(self) -> tuple[Leftover, ...]:
        """Find VMs that are not used, and record those that are in quarantine.

        Raises:
            CredentialsError, ThrottledError, CloudUnavailableError: If the cloud cannot list its VMs.
        """
        # List the cloud's VMs before reading the store: an intent is written before its VM can be listed.
        vms = [vm for vm in self._provider.list_owned(self._owner) if vm.state != "gone"]
        found = []
        living = {intent.id: intent for intent in self._intents()}
        has_process: dict[str, bool] = {}
        restore = self._store.last_restore()
        kept = self._kept() if restore is not None else frozenset[str]()
        for vm in vms:
            intent, quarantined = living.get(vm.tags.token), False
            if intent is None and self._is_known(vm.tags.token):
                reason = "its intent has ended"
            elif intent is None and vm.instance_id in kept:
                continue
            elif intent is None:
                quarantined = restore is not None
                reason = "the store has no record of it"
                if restore is not None:
                    reason = (
                        f"quarantine: the store was restored from its backup of {when(restore.backup_at)}"
                    )
            elif intent.instance_id not in ("", vm.instance_id):
                reason = f"its slot has another VM, {intent.instance_id}"
            elif not has_process.setdefault(intent.job_id, self._has_process(intent.job_id)):
                reason = f"no process runs job {intent.job_id[:8]}"
            else:
                continue
            found.append(Leftover(self._provider.name, self._provider.region, vm, reason, quarantined))
        if restore is not None:
            unknown = [one.vm for one in found if one.quarantined]
            unknown += [vm for vm in vms if vm.instance_id in kept]
            self._store.set_quarantine(self._provider.name, self._provider.region, unknown)
        return tuple(found)

    def _kept(self) -> frozenset[str]:
        """VMs of this region that the store does not know, and that a user keeps."""
        here = (self._provider.name, self._provider.region)
        return frozenset(
            one.instance_id
            for one in self._store.quarantined_vms()
            if one.kept_by and (one.provider, one.region) == here
        )

    def end_powered_off(self) -> int:
        """Request the end of VMs that have powered themselves off because no process runs their job.

        Their disks are paid for until they are deleted. VMs that still run are left to power themselves off.

        Returns:
            Number of such VMs.

        Raises:
            CloudError: If the cloud does not answer, or refuses to end one; the others are ended.
        """
        off = [one for one in self.find() if one.vm.state == "stopping" and not one.quarantined]
        refused: CloudError | None = None
        for one in off:
            try:
                self._provider.terminate(one.vm.instance_id, one.vm.zone)
            except CloudError as error:
                refused = error
        self._close_ownerless()
        if refused is not None:
            raise refused
        return len(off)

    def end(self, leftovers: Sequence[Leftover], *, limit_s: float | None = None) -> tuple[str, ...]:
        """End VMs, wait until they are gone, and update the store.

        Args:
            leftovers: Some or all of the VMs that `find` returned.
            limit_s: Longest wait, seconds; `LIMIT_S` by default.

        Returns:
            A line for each resource that may be left behind; empty if everything was removed.
        """
        lines = end_vms(
            self._provider,
            leftovers,
            lambda one, gone: self._close(one.vm.tags.token, gone),
            clock=self._clock,
            sleep=self._sleep,
            limit_s=LIMIT_S if limit_s is None else limit_s,
        )
        lines += self._close_ownerless()
        if not lines and not self._in_quarantine(leftovers):  # VMs that stay may use what they share
            try:
                self._provider.remove_leftovers(self._owner)
            except CloudError as error:
                lines.append(f"shared resources in {self._provider.name}/{self._provider.region}: {error}")
        return tuple(lines)

    def _in_quarantine(self, ended: Sequence[Leftover]) -> bool:
        """Whether VMs of this region are in quarantine, besides those that were ended."""
        gone = {one.vm.instance_id for one in ended}
        here = (self._provider.name, self._provider.region)
        return any(
            (one.provider, one.region) == here and one.instance_id not in gone
            for one in self._store.quarantined_vms()
        )

    def _close(self, token: str, vm: VmSeen) -> None:
        self._store.mark_gone(None, token, "unwanted", "ended by `scavenger gc`", vm, never=False)

    def _close_ownerless(self) -> list[str]:
        """Close intents of jobs that no process runs, if they certainly have no VM."""
        lines = []
        for intent in self._intents():
            if self._has_process(intent.job_id):
                continue
            if not intent.asked:
                self._store.mark_gone(None, intent.id, "unwanted", "never asked for", None, never=True)
            elif intent.instance_id:
                try:
                    vm = _gone(self._provider, intent.instance_id, intent.request.zone)
                except CloudError as error:
                    lines.append(f"{intent}: {error}")
                    continue
                if vm is not None:
                    self._close(intent.id, vm)
            elif (
                intent.times.created_at is not None and datetime.now(UTC) - intent.times.created_at > SETTLED
            ):
                self._store.mark_gone(None, intent.id, "unwanted", "never seen", None, never=False)
            else:
                lines.append(
                    f"{intent}: launched recently and not listed yet; run `scavenger gc` again later"
                )
        return lines

    def _intents(self) -> tuple[Intent, ...]:
        here = (self._provider.name, self._provider.region)
        return tuple(one for one in self._store.intents(living=True) if (one.provider, one.region) == here)

    def _is_known(self, token: str) -> bool:
        return (
            bool(token)
            and token in self._store.situation(self._provider.name, self._provider.region, (token,)).ended
        )

    def _has_process(self, job_id: str) -> bool:
        return self._store.is_alive(self._store.job(job_id))


def end_vms(
    provider: Provider,
    leftovers: Sequence[Leftover],
    is_gone: Callable[[Leftover, VmSeen], object] = lambda leftover, vm: None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    limit_s: float = LIMIT_S,
) -> list[str]:
    """End VMs and wait until they are gone; returns a line for each that may be left.

    Args:
        is_gone: Receives each VM that is gone, with its last state.
        clock, sleep: Monotonic clock in seconds, and the function that waits.
        limit_s: Longest wait, seconds.
    """
    until_s = clock() + limit_s
    left = {one.vm.instance_id: one for one in leftovers}
    why: dict[str, str] = {}
    asked: set[str] = set()
    while left:
        for key, one in list(left.items()):
            try:
                if key not in asked:
                    provider.terminate(key, one.vm.zone)
                    asked.add(key)
                gone = _gone(provider, key, one.vm.zone)
            except CloudError as error:
                why[key] = str(error)
                continue
            why.pop(key, None)
            if gone is not None:
                del left[key]
                is_gone(one, gone)
        if not left or clock() >= until_s:
            break
        sleep(POLL_S)
    asked_for = "its end was requested, but it is not gone yet"
    return [f"{one}; {why.get(key, asked_for)}" for key, one in left.items()]


def _gone(provider: Provider, instance_id: str, zone: str) -> VmSeen | None:
    """The VM's last state if it is gone, else None."""
    try:
        vm = provider.describe(instance_id, zone)
    except GoneError:
        return VmSeen(instance_id, "", zone, False, "gone")
    return vm if vm.state == "gone" else None


def abandoned_regions(store: Store) -> tuple[tuple[str, str], ...]:
    """Regions, as (provider, region), in which disks of VMs may be left whose job no process runs any more."""
    alive: dict[str, bool] = {}
    found = set()
    for intent in store.intents(living=True):
        if capabilities_of(intent.provider).keeps_disks and intent.asked:
            if intent.job_id not in alive:
                alive[intent.job_id] = store.is_alive(store.job(intent.job_id))
            if not alive[intent.job_id]:
                found.add((intent.provider, intent.region))
    return tuple(sorted(found))
