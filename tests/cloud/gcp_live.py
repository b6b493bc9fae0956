"""Compute Engine as in `gcp_server.py`, in real time, with VMs that really run: see `machines.py`."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, ClassVar

from gce_metadata import GceMetadata
from gcp_server import ComputeServer
from gcp_state import EPOCH, PROJECT, Machine, Operation, Project, shape
from identity_documents import Signer, identity_token
from machines import Machine as Vm
from machines import Machines

_TICK_S = 0.05
_ACCESS = "ya29.of-a-vm"


def _now() -> float:
    """The time of day, as `gcp_state.stamp` has it."""
    return (datetime.now(UTC) - EPOCH).total_seconds()


class _LiveProject(Project):
    starts_after_s: ClassVar[float] = 0.0
    up_after_s: ClassVar[float] = 0.3
    deleted_after_s: ClassVar[float] = 0.0
    preempted_after_s: ClassVar[float] = 0.0

    def __init__(self, clock: Callable[[], float], machines: Machines, cores_per_vcpu: float) -> None:
        super().__init__(clock)
        self._machines, self._cores_per_vcpu = machines, cores_per_vcpu
        self.vms: dict[int, Vm] = {}
        self.services: dict[int, GceMetadata] = {}
        self.preempted_at: dict[int, float] = {}

    def alive(self) -> list[Machine]:
        """Those that are not gone: what is shown as deleted has really ended."""
        now = self.clock()
        return [
            each
            for each in self.machines.values()
            if each.gone_at > now or (each.id in self.vms and not self.vms[each.id].over.is_set())
        ]

    def insert(self, zone: str, body: dict[str, Any], request_id: str) -> Operation:
        operation = super().insert(zone, body, request_id)
        if operation.error is None and operation.target_id not in self.vms:
            self._boot(self.machines[operation.target_id])
        return operation

    def _boot(self, machine: Machine) -> None:
        self.services[machine.id] = service = GceMetadata(self._machines.address, _token_of(machine))
        if machine.body.get("serviceAccounts"):
            service.values["service-accounts/default/token"] = json.dumps(
                {"access_token": _ACCESS, "expires_in": 3599, "token_type": "Bearer"}
            )
        service.values |= {
            "id": str(machine.id),
            "zone": f"projects/739419398126/zones/{machine.zone}",
        }
        items = {item["key"]: item["value"] for item in machine.body.get("metadata", {}).get("items", ())}
        vcpus, _ = shape(machine.body["machineType"].rpartition("/")[2], machine.zone)
        self.vms[machine.id] = vm = self._machines.boot(
            machine.name,
            items.get("user-data", ""),
            cores=vcpus * self._cores_per_vcpu,
            metadata_port=service.port,
            on_end=lambda _: self._powered_off(machine),
        )
        machine.address = vm.address

    def public_address(self, machine: Machine) -> str:
        """See `Project.public_address`: there is one net."""
        return machine.address

    def console(self, machine: Machine) -> str:
        """See `Project.console`."""
        return self.vms[machine.id].console()

    def _powered_off(self, machine: Machine) -> None:
        with self.lock:
            if self.clock() < machine.ends_at:
                self.power_off(machine)

    def end(self) -> None:
        """End every VM at once."""
        for vm in self.vms.values():
            vm.kill()
        for service in self.services.values():
            service.expire()
            service.close()

    def tick(self) -> None:
        """Do what its time has come for."""
        with self.lock:
            now = self.clock()
            for number, at in list(self.preempted_at.items()):
                if now >= at:
                    del self.preempted_at[number]
                    self.vms[number].kill()
                    self.preempt(number)
            for number, vm in self.vms.items():
                if now >= self.machines[number].ends_at and not vm.over.is_set():
                    vm.stop()


def _token_of(machine: Machine) -> Callable[[str], str] | None:
    """What makes a VM's identity tokens; only one with a service account has any."""
    if not machine.body.get("serviceAccounts"):
        return None
    vm = {
        "instance_id": str(machine.id),
        "instance_name": machine.name,
        "project_id": PROJECT,
        "project_number": 739419398126,
        "zone": machine.zone,
    }
    return lambda audience: identity_token(Signer.of_tests(), audience, vm)


class LiveGcp(ComputeServer):
    """Its VMs boot from their user data; one that powers itself off is `TERMINATED`, and stays until it is deleted.

    Args:
        machines: Where the VMs run; the caller closes it.
        cores_per_vcpu: Processors' time for each of a machine type's vCPUs.
        notice_s: From the announcement of a preemption to the VM's end; half a minute at Compute Engine, or more if the
            VM was made so.
    """

    def __init__(self, machines: Machines, *, cores_per_vcpu: float = 0.25, notice_s: float = 2.0) -> None:
        self._machines, self._cores_per_vcpu, self._notice_s = machines, cores_per_vcpu, notice_s
        self._closed = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)
        super().__init__(_now, host=machines.address)

    @property
    def live(self) -> _LiveProject:
        """The project, whose VMs run."""
        assert isinstance(self.project, _LiveProject)
        return self.project

    def vm(self, instance_id: str) -> Vm:
        """The machine that an instance is."""
        return self.live.vms[int(instance_id)]

    def interrupt(self, instance_id: str, *, in_s: float | None = None) -> None:
        """Announce to a VM that it is preempted, and kill it then."""
        number = int(instance_id)
        with self.live.lock:
            self.live.services[number].preempt()
            self.live.preempted_at[number] = _now() + (self._notice_s if in_s is None else in_s)

    def clear(self) -> None:
        """An empty project without faults; VMs of the one before end at once."""
        before = self.live
        self.reset(_now)
        before.end()

    def __enter__(self) -> LiveGcp:
        self._ticker.start()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        self._ticker.join(5)
        super().__exit__(*error)
        self.live.end()

    def _new_project(self, clock: Callable[[], float]) -> Project:
        return _LiveProject(clock, self._machines, self._cores_per_vcpu)

    def _tick(self) -> None:
        while not self._closed.wait(_TICK_S):
            self.live.tick()
