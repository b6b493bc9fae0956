"""The reconciler's interface to the store, and the stepwise execution of its calls.

An iteration of the reconciler yields every call to the store and the cloud before it is made. `perform` makes the
calls; a simulation injects crashes, stalls and lost answers between them, with the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar, cast

from scavenger.cloud.base import Provider
from scavenger.domain.intent import Ending, Fence, Intent, Lease, RegionSnapshot
from scavenger.domain.vm import VmSeen
from scavenger.policy.provisioning.config import ProvisioningConfig

T = TypeVar("T")
Call = Callable[[], Any]
Steps = Generator[Call, Any, T]
"""A computation in calls: yields each call before it is made and receives its result."""


class IntentStore(Protocol):
    """The store operations that the reconciler needs; see `scavenger.store.intents.IntentsPart`."""

    def lease(self, name: str) -> Lease | None: ...
    def take_lease(self, name: str, holder: str, seen: Lease | None) -> Lease | None: ...
    def release_lease(self, fence: Fence) -> None: ...
    def situation(self, provider: str, region: str, tokens: Collection[str] = ()) -> RegionSnapshot: ...
    def write_intent(self, fence: Fence, intent: Intent) -> bool: ...
    def ask_again(self, fence: Fence, intent_id: str) -> Intent | None: ...
    def never_asked(self, fence: Fence, intent_id: str) -> Intent | None: ...
    def mark_up(self, fence: Fence, intent_id: str, vm: VmSeen) -> Intent | None: ...
    def mark_deleting(self, fence: Fence, intent_id: str, ending: Ending, reason: str) -> Intent | None: ...
    def mark_gone(
        self,
        fence: Fence | None,
        intent_id: str,
        ending: Ending,
        reason: str,
        vm: VmSeen | None,
        *,
        never: bool,
    ) -> Intent | None: ...
    def charge(self, fence: Fence, added: Mapping[str, tuple[float, float]], at: datetime) -> bool: ...
    def report_shortages(
        self, fence: Fence, job_id: str, provider: str, region: str, alarms: Mapping[str, str]
    ) -> bool: ...
    def set_quarantine(self, provider: str, region: str, vms: Sequence[VmSeen]) -> None: ...
    def is_clean(self, job_id: str) -> bool: ...
    def intents(self, job_id: str | None = None, *, living: bool = False) -> tuple[Intent, ...]: ...


def provisioning_of(provider: Provider) -> ProvisioningConfig:
    """The default settings of provisioning, for VMs of a provider."""
    return ProvisioningConfig(provider.visibility_s, remembers_s=provider.remembers_s)


def ask(call: Callable[[], T]) -> Steps[T]:
    """Make one call as a step; returns its result."""
    return cast(T, (yield call))


def perform(steps: Steps[T]) -> T:
    """Make every call of the steps; returns the result of the computation."""
    try:
        call = next(steps)
        while True:
            try:
                answer = call()
            except Exception as error:  # noqa: BLE001 - raised in the computation
                call = steps.throw(error)
            else:
                call = steps.send(answer)
    except StopIteration as end:
        return cast(T, end.value)


def lease_name(provider: str, region: str) -> str:
    """Name of a region's lease: its holder alone acts in the region, for all jobs of the store."""
    return f"{provider}/{region}"
