"""The end of VMs: those of a job that is over, and those that no living job stands behind (`scavenger gc`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from scavenger.cloud.base import Provider
from scavenger.domain.intent import Intent
from scavenger.domain.vm import VmSeen
from scavenger.errors import CloudError, CloudUnavailableError, GoneError, ThrottledError
from scavenger.store import Store

__all__ = ["LIMIT_S", "CleanUp", "Leftover"]

POLL_S = 3.0
LIMIT_S = 300.0
"""A VM that shuts down in order takes a minute or two."""

SETTLED = timedelta(minutes=10)
"""A launch that was not answered has long come to a VM by then, or never will: more than any provider's bound."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A VM that is paid for and serves nobody, and why it is thought so."""

    provider: str
    region: str
    vm: VmSeen
    reason: str

    def __str__(self) -> str:
        return f"{self.provider} VM {self.vm.instance_id} ({self.vm.vm} in {self.vm.zone}): {self.reason}"


class CleanUp:
    """One region of one cloud.

    Args:
        store: Tells which VMs are wanted.
        provider: Where they are.
        clock, sleep: Monotonic seconds, and pauses between two looks.
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
        """What is left over now.

        Raises:
            CredentialsError, ThrottledError, CloudUnavailableError: The cloud does not tell.
        """
        # The cloud first, the store second: an intent is written before its VM can be listed.
        vms = [vm for vm in self._provider.list_owned(self._owner) if vm.state != "gone"]
        found = []
        living = {intent.id: intent for intent in self._intents()}
        driven: dict[str, bool] = {}
        for vm in vms:
            intent = living.get(vm.token)
            if intent is None:
                reason = (
                    "its intent has ended" if self._is_known(vm.token) else "the store knows nothing of it"
                )
            elif intent.instance_id not in ("", vm.instance_id):
                reason = f"its slot has another VM, {intent.instance_id}"
            elif not driven.setdefault(intent.job_id, self._is_driven(intent.job_id)):
                reason = f"nobody drives its job {intent.job_id[:8]}"
            else:
                continue
            found.append(Leftover(self._provider.name, self._provider.region, vm, reason))
        return tuple(found)

    def end(self, leftovers: Sequence[Leftover], *, limit_s: float | None = None) -> tuple[str, ...]:
        """End VMs, wait until they are gone, and put the store right about them.

        Args:
            leftovers: What `find` found, or some of it.
            limit_s: Longest wait; `LIMIT_S` unless told otherwise.

        Returns:
            A line for each thing that may be left behind; none: all is clean.
        """
        until_s = self._clock() + (LIMIT_S if limit_s is None else limit_s)
        left = {one.vm.instance_id: one for one in leftovers}
        why: dict[str, str] = {}
        asked: set[str] = set()
        while left:
            for key, one in list(left.items()):
                try:
                    if key not in asked:
                        self._provider.terminate(key, one.vm.zone)
                        asked.add(key)
                    gone = self._gone(key, one.vm.zone)
                except CloudError as error:
                    why[key] = str(error)
                    continue
                why.pop(key, None)
                if gone is not None:
                    del left[key]
                    self._close(one.vm.token, gone)
            if not left or self._clock() >= until_s:
                break
            self._sleep(POLL_S)
        lines = [f"{one}; {why.get(key, 'asked to end, and not yet gone')}" for key, one in left.items()]
        lines += self._close_ownerless()
        if not lines:
            try:
                self._provider.remove_leftovers(self._owner)
            except CloudError as error:
                lines.append(
                    f"what was made beside VMs in {self._provider.name}/{self._provider.region}: {error}"
                )
        return tuple(lines)

    def _gone(self, instance_id: str, zone: str) -> VmSeen | None:
        """The VM as it was last seen if it is gone, else None."""
        try:
            vm = self._provider.describe(instance_id, zone)
        except GoneError:
            return VmSeen(instance_id, "", zone, False, "gone")
        return vm if vm.state == "gone" else None

    def _close(self, token: str, vm: VmSeen) -> None:
        self._store.mark_gone(None, token, "unwanted", "ended by `scavenger gc`", vm, never=False)

    def _close_ownerless(self) -> list[str]:
        """End intents of jobs that nobody drives, as far as it is certain that they have no VM."""
        lines = []
        for intent in self._intents():
            if self._is_driven(intent.job_id):
                continue
            if not intent.asked:
                self._store.mark_gone(None, intent.id, "unwanted", "never asked for", None, never=True)
            elif intent.instance_id:
                try:
                    vm = self._gone(intent.instance_id, intent.request.zone)
                except (CloudUnavailableError, ThrottledError) as error:
                    lines.append(f"{intent}: {error}")
                    continue
                if vm is not None:
                    self._close(intent.id, vm)
            elif intent.created_at is not None and datetime.now(UTC) - intent.created_at > SETTLED:
                self._store.mark_gone(None, intent.id, "unwanted", "never seen", None, never=False)
            else:
                lines.append(
                    f"{intent}: asked for a moment ago and not seen yet; run `scavenger gc` again later"
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

    def _is_driven(self, job_id: str) -> bool:
        return self._store.is_alive(self._store.job(job_id))
