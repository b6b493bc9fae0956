"""A cloud in memory, for tests of what stands on a `Provider`: every fault is scripted, and time is an argument.

`FakeProvider` is at once the provider and the `World` that the conformance suite asks for::

    cloud = FakeProvider()
    cloud.stock_out("fake-1a")
    cloud.script("terminate", Fault(CloudUnavailableError("no answer"), done=True))
    reconcile(cloud)
    assert cloud.calls == [("launch", token), ...]
    assert not [fact for fact in cloud.truth() if fact.alive]
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeVar

import pytest
from nested import changed

from scavenger import errors
from scavenger.cloud.adapters import Adapter
from scavenger.cloud.base import CONSOLE_CHARACTERS
from scavenger.domain import providers
from scavenger.domain.capabilities import Capabilities
from scavenger.domain.providers import ProviderKind
from scavenger.domain.vm import DEFAULT_SETTINGS, Quota, VmRequest, VmSeen, VmSettings
from scavenger.testing.provider_conformance import Fact

Operation = Literal[
    "zones", "launch", "describe", "terminate", "list_owned", "console", "quotas", "remove_leftovers"
]
Call = tuple[str, ...]
"""An operation and what it was asked for: the token, the instance id, the owner or the type."""

Answer = TypeVar("Answer")
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Fault:
    """What a call meets; `done`: only after it has done its work, so that the answer alone is lost."""

    error: errors.CloudError
    done: bool = False


@dataclass(slots=True)
class _Vm:
    """A VM; times are the cloud's, in seconds."""

    seen: VmSeen
    request: VmRequest | None
    started_at_s: float
    ends_at_s: float
    """When it begins to stop."""
    reason: str = "its time limit"


@dataclass(slots=True)
class FakeProvider:
    """See the module.

    Attributes:
        boot_s, stop_s: How long a VM is pending, and stopping.
        forget_s: How long an ended VM can still be seen.
        now_s: The cloud's time.
        calls: All that was asked, in order.
        faults_fired: How many calls met a fault.
        consoles: What VMs have written to their consoles, by instance id.
        prices: Of spot VMs now, by VM type and zone.
        broken_vms: Running VMs that the cloud's own checks find broken: why, by id.
    """

    name: str = "fake"
    region: str = "fake-1"
    visibility_s: float = 30.0
    remembers_s: float = 0.0
    types: tuple[str, ...] = ("small", "large")
    places: tuple[str, ...] = ("fake-1a", "fake-1b")
    boot_s: float = 20.0
    stop_s: float = 10.0
    forget_s: float = 3_600.0
    now_s: float = 0.0
    calls: list[Call] = field(default_factory=list)
    faults_fired: int = 0
    consoles: dict[str, str] = field(default_factory=dict)
    prices: dict[tuple[str, str], float] = field(default_factory=dict)
    broken_vms: dict[str, str] = field(default_factory=dict)
    vm: str = "small"
    vm_unknown: str = "vast"
    instance_unknown: str = "fake-999999"
    _vms: dict[str, _Vm] = field(default_factory=dict)
    _tokens: dict[str, str] = field(default_factory=dict)
    _scripts: dict[str, deque[Fault | None]] = field(default_factory=dict)
    _leftovers: set[str] = field(default_factory=set)
    _empty: set[str] = field(default_factory=set)
    _limit: int | None = None
    _hidden_s: float = 0.0
    _off: set[str] = field(default_factory=set)
    _throttled: int = 0
    _failing: int = 0
    _lost: int = 0
    _denied: bool = False
    _lock: threading.RLock = field(default_factory=threading.RLock)

    # Provider

    def zones(self, vm: str, settings: VmSettings = DEFAULT_SETTINGS) -> tuple[str, ...]:
        """See `Provider.zones`."""
        fault = self._enter("zones", vm)
        if vm not in self.types:
            raise errors.ConfigurationError(
                f"{self.region} has no VM type {vm!r}; it has {', '.join(self.types)}"
            )
        return self._leave(fault, self.places)

    def launch(self, request: VmRequest) -> VmSeen:
        """See `Provider.launch`."""
        with self._lock:
            fault = self._enter("launch", request.tags.token)
            return self._leave(fault, self._launch(request), changes=True)

    def describe(self, instance_id: str, zone: str) -> VmSeen:
        """See `Provider.describe`."""
        fault = self._enter("describe", instance_id)
        vm = self._vms.get(instance_id)
        if vm is None or self._forgotten(vm):
            raise errors.GoneError(f"{self.region} has no VM {instance_id}")
        return self._leave(fault, self._show(vm))

    def terminate(self, instance_id: str, zone: str) -> None:
        """See `Provider.terminate`."""
        with self._lock:
            fault = self._enter("terminate", instance_id)
            self._end(instance_id, "asked to")
            self._leave(fault, None, changes=True)

    def list_owned(self, owner: str) -> tuple[VmSeen, ...]:
        """See `Provider.list_owned`."""
        fault = self._enter("list_owned", owner)
        return self._leave(
            fault,
            tuple(
                self._show(vm)
                for vm in self._vms.values()
                if vm.seen.tags.owner == owner
                and self.now_s - vm.started_at_s >= self._hidden_s
                and not self._forgotten(vm)
            ),
        )

    def console(self, instance_id: str, zone: str) -> str:
        """See `Provider.console`: what `consoles` has of the VM."""
        fault = self._enter("console", instance_id)
        vm = self._vms.get(instance_id)
        if vm is None or self._forgotten(vm):
            raise errors.GoneError(f"{self.region} has no VM {instance_id}")
        return self._leave(fault, self.consoles.get(instance_id, "")[-CONSOLE_CHARACTERS:])

    def quotas(self) -> tuple[Quota, ...]:
        """See `Provider.quotas`: the one limit that `limit` sets."""
        fault = self._enter("quotas")
        limit = float("inf") if self._limit is None else float(self._limit)
        return self._leave(fault, (Quota("VMS", self.region, limit, float(self._living())),))

    def impaired(self, instance_ids: Collection[str]) -> Mapping[str, str]:
        """See `Provider.impaired`: what `broken_vms` says."""
        fault = self._enter("impaired", " ".join(sorted(instance_ids)))
        return self._leave(fault, {one: why for one, why in self.broken_vms.items() if one in instance_ids})

    def spot_prices(self, vms: Collection[str]) -> Mapping[tuple[str, str], float]:
        """See `Provider.spot_prices`: what `prices` says."""
        fault = self._enter("spot_prices", " ".join(sorted(vms)))
        return self._leave(fault, {key: usd for key, usd in self.prices.items() if key[0] in vms})

    def remove_leftovers(self, owner: str) -> tuple[str, ...]:
        """See `Provider.remove_leftovers`: one firewall per owner."""
        fault = self._enter("remove_leftovers", owner)
        if any(self._state(vm) != "gone" and vm.seen.tags.owner == owner for vm in self._vms.values()):
            return self._leave(fault, ())
        name = f"firewall of {owner}"
        removed = (name,) if name in self._leftovers else ()
        self._leftovers.discard(name)
        return self._leave(fault, removed)

    # Faults, time and truth: see `World`

    @property
    def provider(self) -> FakeProvider:
        """See `World`: itself."""
        return self

    def script(self, operation: Operation, *faults: Fault | None) -> None:
        """Each of the operation's next calls meets the next of these; None for a call that goes well."""
        self._scripts.setdefault(operation, deque()).extend(faults)

    def stock_out(self, zone: str, *, on: bool = True) -> None:
        """See `World`."""
        (self._empty.add if on else self._empty.discard)(zone)

    def limit(self, vms: int | None) -> None:
        """See `World`."""
        self._limit = vms

    def throttle(self, calls: int) -> None:
        """See `World`."""
        self._throttled = calls

    def fail(self, calls: int) -> None:
        """See `World`."""
        self._failing = calls

    def deny(self, *, on: bool = True) -> None:
        """See `World`."""
        self._denied = on

    def lose_answers(self, calls: int) -> None:
        """See `World`."""
        self._lost = calls

    def hide(self, seconds: float) -> None:
        """See `World`."""
        self._hidden_s = seconds

    def preempt(self, instance_id: str) -> None:
        """See `World`."""
        self._end(instance_id, "preempted")

    def delete_by_hand(self, instance_id: str) -> None:
        """See `World`."""
        self._end(instance_id, "deleted by hand")

    def write_console(self, instance_id: str, text: str) -> None:
        """See `World`."""
        self.consoles[instance_id] = text

    def power_off(self, instance_id: str) -> None:
        """It ends itself, as on Compute Engine: it is there until it is deleted."""
        self._off.add(instance_id)

    def add_foreign(self, zone: str) -> str:
        """See `World`."""
        return self._add(VmSeen("", self.vm, zone, False, "pending"), None).seen.instance_id

    def advance(self, seconds: float) -> None:
        """See `World`."""
        self.now_s += seconds

    def truth(self) -> tuple[Fact, ...]:
        """See `World`; this cloud forgets nothing."""
        return tuple(
            Fact(
                vm.seen.instance_id,
                vm.seen.tags.token,
                vm.seen.tags.owner,
                vm.seen.zone,
                alive=self._state(vm) != "gone",
            )
            for vm in self._vms.values()
        )

    # Within

    def _enter(self, operation: Operation, *what: str) -> Fault | None:
        """Count the call, and raise the fault that keeps it from being done; the one it meets after, else."""
        with self._lock:
            self.calls.append((operation, *what))
            if self._denied:
                raise self._fired(
                    errors.CredentialsError(f"{self.region}: access denied; check the credentials")
                )
            if self._throttled > 0:
                self._throttled -= 1
                raise self._fired(errors.ThrottledError(f"{self.region}: too many calls; wait"))
            if self._failing > 0:
                self._failing -= 1
                raise self._fired(errors.CloudUnavailableError(f"{self.region}: no answer; try again"))
            scripted = self._scripts.get(operation)
            fault = scripted.popleft() if scripted else None
            if fault is not None and not fault.done:
                raise self._fired(fault.error)
            return fault

    def _leave(self, fault: Fault | None, answer: Answer, *, changes: bool = False) -> Answer:
        if fault is None and changes and self._lost > 0:
            self._lost -= 1
            fault = Fault(
                errors.CloudUnavailableError(f"{self.region}: the answer was lost; try again"), done=True
            )
        if fault is not None:
            raise self._fired(fault.error)
        return answer

    def _fired(self, error: errors.CloudError) -> errors.CloudError:
        self.faults_fired += 1
        return error

    def _launch(self, request: VmRequest) -> VmSeen:
        if request.tags.token in self._tokens:
            vm = self._vms[self._tokens[request.tags.token]]
            if self._state(vm) in ("stopping", "gone"):
                raise errors.GoneError(
                    f"the VM of token {request.tags.token}, {vm.seen.instance_id}, has ended"
                )
            if vm.request != request:
                raise errors.ConfigurationError(f"token {request.tags.token} was used for another launch")
            return self._show(vm)
        if request.vm not in self.types or request.zone not in self.places:
            raise errors.ConfigurationError(f"{request.zone} has no VM type {request.vm!r}")
        if request.zone in self._empty:
            raise errors.StockOutError(f"{request.zone} has no {request.vm} now; try another zone")
        if self._limit is not None and self._living() >= self._limit:
            raise errors.QuotaError(
                f"{self.region}: quota VMS of {self._limit} is used up", quota="VMS", region=self.region
            )
        seen = VmSeen(
            instance_id="",
            vm=request.vm,
            zone=request.zone,
            spot=request.spot,
            state="pending",
            tags=request.tags,
        )
        vm = self._add(seen, request)
        self._tokens[request.tags.token] = vm.seen.instance_id
        self._leftovers.add(f"firewall of {request.tags.owner}")
        return self._show(vm)

    def _add(self, seen: VmSeen, request: VmRequest | None) -> _Vm:
        number = len(self._vms) + 1
        vm = _Vm(
            seen=changed(seen, instance_id=f"fake-{number:06d}", launched_at=self._at(self.now_s)),
            request=request,
            started_at_s=self.now_s,
            ends_at_s=self.now_s + (request.template.run_max_s if request else float("inf")),
        )
        self._vms[vm.seen.instance_id] = vm
        return vm

    def _end(self, instance_id: str, reason: str) -> None:
        vm = self._vms.get(instance_id)
        if vm is not None and vm.ends_at_s > self.now_s:
            vm.ends_at_s, vm.reason = self.now_s, reason

    def _living(self) -> int:
        return sum(self._state(vm) != "gone" for vm in self._vms.values())

    def _forgotten(self, vm: _Vm) -> bool:
        return self.now_s >= vm.ends_at_s + self.stop_s + self.forget_s

    def _state(self, vm: _Vm) -> Literal["pending", "running", "stopping", "gone"]:
        if self.now_s >= vm.ends_at_s:
            return "gone" if self.now_s >= vm.ends_at_s + self.stop_s else "stopping"
        if vm.seen.instance_id in self._off:
            return "stopping"
        return "running" if self.now_s >= vm.started_at_s + self.boot_s else "pending"

    def _show(self, vm: _Vm) -> VmSeen:
        state = self._state(vm)
        number = int(vm.seen.instance_id.rpartition("-")[2])
        return replace(
            vm.seen,
            state=state,
            address="" if state == "pending" else f"10.0.{number // 250}.{number % 250 + 1}",
            ended_at=self._at(vm.ends_at_s + self.stop_s) if state == "gone" else None,
            reason=vm.reason if state in ("stopping", "gone") else "",
        )

    def _at(self, now_s: float) -> datetime:
        return EPOCH + timedelta(seconds=now_s)


ADAPTER = Adapter(open=lambda opening: _installed[-1])
_installed: list[FakeProvider] = []


def install(monkeypatch: pytest.MonkeyPatch, cloud: FakeProvider, **capabilities: bool) -> None:
    """Let `fake` be the name of a provider, until the test ends."""
    kind = ProviderKind("fake", "fake:ADAPTER", Capabilities(**capabilities))
    monkeypatch.setitem(providers._KINDS, "fake", kind)  # type: ignore[arg-type]
    _installed.append(cloud)
