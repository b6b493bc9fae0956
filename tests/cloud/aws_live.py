"""EC2 as in `aws_server.py`, in real time, with VMs that really run: see `machines.py`."""

from __future__ import annotations

import base64
import threading
import time
from typing import Any

from aws_imds import Imds
from aws_instances import Life
from aws_server import VCPUS, AwsServer
from machines import Machine, Machines

_TICK_S = 0.05


class LiveAws(AwsServer):
    """Its VMs boot from their user data; ended or powered off, they are shown as terminated, and why.

    Args:
        machines: Where the VMs run; the caller closes it.
        cores_per_vcpu: Processors' time for each of a VM type's vCPUs.
        notice_s: From the announcement of an interruption to the VM's end; two minutes at EC2.
    """

    boot_s, stop_s = 0.0, 0.0

    def __init__(self, machines: Machines, *, cores_per_vcpu: float = 0.25, notice_s: float = 2.0) -> None:
        self._machines, self._cores_per_vcpu, self._notice_s = machines, cores_per_vcpu, notice_s
        self._vms: dict[str, Machine] = {}
        self._ending: set[str] = set()
        self._services: list[Imds] = []
        self._closed = threading.Event()
        super().__init__(machines.address)
        self._ticker = threading.Thread(target=self._tick, daemon=True)
        self._ticker.start()

    @property
    def now_s(self) -> float:
        """Seconds since the account was emptied; real ones."""
        return time.monotonic() - self._began_s

    @now_s.setter
    def now_s(self, now_s: float) -> None:
        self._began_s = time.monotonic() - now_s

    def vm(self, instance_id: str) -> Machine:
        """The machine that an instance is."""
        return self._vms[instance_id]

    def console_text(self, instance_id: str) -> str:
        """See `AwsServer.console_text`."""
        return self._vms[instance_id].console()

    def interrupt(self, instance_id: str, *, in_s: float | None = None) -> None:
        """See `Instances.interrupt`; at its end the VM is killed."""
        with self._lock:
            super().interrupt(instance_id, in_s=self._notice_s if in_s is None else in_s)

    def close(self) -> None:
        """See `AwsServer.close`; the VMs end too."""
        self._closed.set()
        self._ticker.join(5)
        super().close()
        self.clear()

    def clear(self) -> None:
        """See `Instances.clear`."""
        vms = list(self._vms.values())
        self._vms, self._ending = {}, set()
        for vm in vms:
            vm.kill()
        for service in self._services:
            service.close()
        self._services = []
        super().clear()

    def _tick(self) -> None:
        while not self._closed.wait(_TICK_S):
            with self._lock:
                self._settle()

    def _begin(self, instance: Any, user_data: str) -> None:
        self._lives[instance.id] = Life(self.now_s, limit_s=None)
        service = self.imds(instance.id, self._machines.address)
        self._services.append(service)
        vm = self._machines.boot(
            instance.id,
            base64.b64decode(user_data).decode(),
            cores=VCPUS[instance.instance_type] * self._cores_per_vcpu,
            metadata_port=service.port,
            on_end=lambda _: self._powered_off(instance.id),
        )
        self._vms[instance.id] = vm
        instance.nics[0].private_ip_address = vm.address
        instance.nics[0].public_ip = vm.address  # there is one net

    def _powered_off(self, instance_id: str) -> None:
        with self._lock:
            if instance_id in self._vms:
                self._shut_down(
                    instance_id, "Client.InstanceInitiatedShutdown", "Instance initiated shutdown"
                )

    def _shut_down(self, instance_id: str, code: str, message: str) -> None:
        with self._lock:
            if instance_id in self._ending:  # what ended it first is the reason
                return
            self._ending.add(instance_id)
            super()._shut_down(instance_id, code, message)
            vm = self._vms[instance_id]
            if code.startswith("Server."):
                vm.kill()
            else:
                vm.stop()

    def _is_up(self, instance_id: str, life: Life) -> bool:
        return self._vms[instance_id].up.is_set()

    def _is_over(self, instance_id: str, life: Life) -> bool:
        return self._vms[instance_id].over.is_set()
